"""What every variational layer has: its alpha, its KL and its seed."""

import math

import keras
import numpy as np
from keras import ops

from keras_vdrop import divergence
from keras_vdrop import validation
from keras_vdrop.seeds import NoiseSeedGenerator


class VariationalNoise:
    """Mixin: learned multiplicative noise `N(1, alpha)` and its KL.

    Put it before a Keras layer class and call `add_noise_weights` in `build`.
    The KL reaches `model.losses` as the regularizer of `log_alpha`, once for
    each layer however often the layer is called.
    """

    granularities = ("layer", "input")

    def __init__(
        self,
        *args,
        rate=0.5,
        granularity="layer",
        adaptive=True,
        max_alpha=1.0,
        kl="polynomial",
        num_examples=None,
        kl_downscale=1.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.rate = validation.check_rate("rate", rate)
        self.granularity = validation.check_choice(
            "granularity", granularity, self.granularities
        )
        self.adaptive = validation.check_bool("adaptive", adaptive)
        self.max_alpha = max_alpha
        if max_alpha is not None:
            self.max_alpha = validation.check_positive("max_alpha", max_alpha)
        self.kl = divergence.get(kl)
        self.num_examples = num_examples
        if num_examples is not None:
            self.num_examples = validation.check_count(
                "num_examples", num_examples
            )
        self.kl_downscale = validation.check_positive(
            "kl_downscale", kl_downscale
        )
        self.seed = seed
        self.seed_generator = NoiseSeedGenerator(seed)
        if adaptive:
            self._check_bounds()

    def _check_bounds(self):
        bound = math.inf if self.max_alpha is None else self.max_alpha
        if self.rate / (1 - self.rate) > bound:
            raise validation.invalid(
                "rate",
                f"alpha = rate / (1 - rate) of at most max_alpha={bound}",
                self.rate,
                "Lower `rate`, raise `max_alpha`, or fix the rate with "
                "`adaptive=False`.",
            )
        domain = getattr(self.kl, "max_alpha", math.inf)
        if bound > domain:
            name = divergence.serialize(self.kl)
            raise validation.invalid(
                "max_alpha",
                f"at most {domain}, where kl={name!r} ends to hold",
                self.max_alpha,
                f"Use `max_alpha={domain}`, or a `kl` that holds for every "
                "alpha.",
            )

    def add_noise_weights(self, shape, stands_for):
        """Creates `log_alpha` and `kl_weight`, in float32 at least.

        Args:
            shape: Shape of `log_alpha`.
            stands_for: Number of random variables the KL is summed over, which
                all the elements of `log_alpha` share evenly.
        """
        dtype = keras.backend.result_type(self.variable_dtype, "float32")
        self._kl_count = stands_for / math.prod(shape)
        self.log_alpha = self.add_weight(
            name="log_alpha",
            shape=shape,
            initializer=keras.initializers.Constant(
                math.log(self.rate / (1 - self.rate))
            ),
            dtype=dtype,
            trainable=self.adaptive,
            autocast=False,
            regularizer=self._kl_loss,
            constraint=None if self.max_alpha is None else self._constrain,
        )
        self.kl_weight = self.add_weight(
            name="kl_weight",
            initializer=keras.initializers.Constant(self._kl_weight_value()),
            dtype=dtype,
            trainable=False,
            autocast=False,
        )

    def _kl_loss(self, log_alpha):
        if self.num_examples is None:
            raise ValueError(
                f"The loss of layer '{self.name}' is not known before the "
                "number of training examples is, by which its KL is divided. "
                "Add this line before `fit` or `evaluate`:\n\n"
                "    keras_vdrop.set_num_examples(model, len(x_train))\n\n"
                "or pass `num_examples` to the layer, or fix its dropout rate "
                "with `adaptive=False`."
            )
        kl = self._kl_count * ops.sum(self.kl(log_alpha))
        loss = ops.multiply(self.kl_weight, kl)
        # Keras's losses are of this dtype, and tensorflow adds no others.
        return ops.cast(loss, keras.config.floatx())

    def _constrain(self, log_alpha):
        return ops.minimum(log_alpha, math.log(self.max_alpha))

    def _kl_weight_value(self):
        if self.num_examples is None:
            return 0.0
        return 1.0 / (self.num_examples * self.kl_downscale)

    def set_num_examples(self, num_examples, kl_downscale=1.0):
        """Weighs the KL by `1 / (num_examples * kl_downscale)` from now on."""
        num_examples = validation.check_count("num_examples", num_examples)
        kl_downscale = validation.check_positive("kl_downscale", kl_downscale)
        self.num_examples = num_examples
        self.kl_downscale = kl_downscale
        if self.built:
            self.kl_weight.assign(self._kl_weight_value())

    def normal(self, shape, dtype):
        """Standard normal noise, new on each call."""
        return keras.random.normal(shape, dtype=dtype, seed=self.seed_generator)

    def dropout_rates(self):
        """The rates `p = alpha / (1 + alpha)` of now, as a numpy array."""
        log_alpha = ops.convert_to_numpy(self.log_alpha)
        return 1 / (1 + np.exp(-log_alpha))

    def rematerialized_call(self, layer_call, *args, **kwargs):
        # Keras 3.15 (backend/*/core.py, `remat`) would run `call` again with
        # new noise on torch, refuses keywords on tensorflow, and on jax lets
        # the seed state out of the trace. So the seed is drawn outside.
        seed = self.seed_generator.next()
        remat = super().rematerialized_call

        def call(*args):
            with self.seed_generator.hold(seed):
                return layer_call(*args, **kwargs)

        return lambda *args, **_: remat(call, *args)(*args)

    def get_config(self):
        config = {
            "rate": self.rate,
            "granularity": self.granularity,
            "adaptive": self.adaptive,
            "max_alpha": self.max_alpha,
            "kl": divergence.serialize(self.kl),
            "num_examples": self.num_examples,
            "kl_downscale": self.kl_downscale,
            "seed": self.seed,
        }
        return {**super().get_config(), **config}
