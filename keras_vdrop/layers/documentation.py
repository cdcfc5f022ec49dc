"""What `help` and editors show of a layer made by mixins."""

import inspect

# The part of the docstring that all layers with a kernel share.
NOISE_ARGUMENTS = """\
rate: Float in (0, 1), the initial dropout rate p; the noise has variance
            `alpha = p / (1 - p)`.
        noise: `"independent"`, noise of its own on each weight (the paper's
            type B), or `"correlated"`, noise on each input, which all the
            weights of that input share (type A).
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`. Inputs and outputs
            of a convolution are channels. `"correlated"` noise takes
            `"layer"` or `"input"`.
        adaptive: Boolean, whether alpha is learned. With `False` the layer is
            Gaussian dropout with a fixed rate, and there is no KL.
        max_alpha: Float, the largest alpha that may be learned, or `None` for
            no limit. The paper's is 1, a dropout rate of 0.5.
        kl: Name of a function of `keras_vdrop.divergence`, or a callable: the
            KL of one weight, as a function of log alpha.
        parameterization: What is learned beside the kernel: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `noise="independent"` and `granularity="weight"`; its gradients
            have less variance where alpha is large.
        estimator: How noise is drawn: `"local"`, for the outputs of each
            example (local reparameterization); `"batch"`, one sample of the
            weights for the whole minibatch; `"example"`, one for each
            example, which is slow.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`..."""


def document_arguments(cls, keras_class, hidden=()):
    """Gives a class the signature and the docstring of all its arguments.

    The signature has the arguments of the Keras layer, then by keyword those
    of the mixins before it, instead of `*args, **kwargs`; in the docstring,
    `{noise_arguments}` becomes the text they share.
    """
    if cls.__doc__:
        cls.__doc__ = cls.__doc__.replace("{noise_arguments}", NOISE_ARGUMENTS)
    if "__init__" in vars(cls):
        cls.__signature__ = None
        return
    mixins = cls.__mro__[: cls.__mro__.index(keras_class)]
    parameters = {}
    for source in (keras_class, *reversed(mixins)):
        if "__init__" in vars(source):
            signature = inspect.signature(source.__init__)
            parameters.update(signature.parameters)
    shown = [
        parameter
        for name, parameter in parameters.items()
        if name not in ("self", "args", *hidden)
    ]
    cls.__signature__ = inspect.Signature(sorted(shown, key=lambda p: p.kind))
