"""What Keras's own checks of a layer cannot know of."""


class WithKLWeight:
    """Mixin: torch knows a parameter for `kl_weight` besides.

    Keras expects one for each weight and each seed generator.
    """

    def assertLen(self, container, expected, msg=None):
        if msg == "Unexpected number of torch_params":
            noise = [name for name in container if "kl_weight" in name]
            assert noise or not expected
            expected += len(noise)
        super().assertLen(container, expected, msg)
