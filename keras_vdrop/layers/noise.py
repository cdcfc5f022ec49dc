"""What every variational layer has: its alpha, its KL and its seed."""

import math

import keras
from keras import ops

from keras_vdrop import divergence
from keras_vdrop import sampling
from keras_vdrop import validation
from keras_vdrop.dtypes import at_least_float32
from keras_vdrop.pointwise import at_most
from keras_vdrop.pointwise import total
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
        rate=0.05,
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
        self.divergence = divergence.get(kl)
        self.num_examples = num_examples
        if num_examples is not None:
            self.num_examples = validation.check_count(
                "num_examples", num_examples
            )
        self.kl_downscale = validation.check_positive(
            "kl_downscale", kl_downscale
        )
        self._kl_share = 1.0
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
        domain = getattr(self.divergence, "max_alpha", math.inf)
        if bound > domain:
            name = divergence.serialize(self.divergence)
            raise validation.invalid(
                "max_alpha",
                f"at most {domain}, where kl={name!r} ceases to hold",
                self.max_alpha,
                f"Use `max_alpha={domain}`, or `kl='exact'`, which holds for "
                "every alpha.",
            )

    def add_noise_weights(self, shape, stands_for):
        """Creates the variable of the noise and `kl_weight`.

        Args:
            shape: Shape of the variable of the noise.
            stands_for: Number of random variables the KL is summed over, which
                all its elements share evenly.
        """
        dtype = at_least_float32(self.variable_dtype)
        self._kl_count = stands_for / math.prod(shape)
        self._noise_variable = self.add_weight(
            name=self.noise_variable_name,
            shape=shape,
            initializer=self._initial_noise,
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

    # What the variable of the noise is. Here it is log alpha itself.
    noise_variable_name = "log_alpha"

    def to_log_alpha(self, value):
        """Log alpha, of a value of the variable of the noise."""
        return value

    def from_log_alpha(self, log_alpha):
        """The value of the variable of the noise for a log alpha."""
        return log_alpha

    @property
    def log_alpha(self):
        """Log alpha: a variable, or a tensor where it is derived from some."""
        return self.to_log_alpha(self._noise_variable)

    def _initial_noise(self, shape, dtype):
        log_alpha = math.log(self.rate / (1 - self.rate))
        return self.from_log_alpha(ops.full(shape, log_alpha, dtype))

    def _constrain(self, value):
        bound = self.from_log_alpha(math.log(self.max_alpha))
        return at_most(ops.convert_to_tensor(value), bound)

    def _kl_nats(self, value):
        log_alpha = ops.convert_to_tensor(self.to_log_alpha(value))
        return self._kl_count * total(self.divergence(log_alpha))

    def _kl_loss(self, value):
        if self.num_examples is None:
            raise ValueError(
                f"The loss of layer '{self.name}' is not known before the "
                "number of training examples is, by which its KL is divided. "
                "Add this line before `fit` or `evaluate`:\n\n"
                "    keras_vdrop.set_num_examples(model, len(x_train))\n\n"
                "or pass `num_examples` to the layer, or fix its dropout rate "
                "with `adaptive=False`."
            )
        loss = ops.multiply(self.kl_weight, self._kl_nats(value))
        # Keras's losses are of this dtype, and tensorflow adds no others.
        return ops.cast(loss, keras.config.floatx())

    def kl(self):
        """The KL of the layer's posterior from its prior of now, in nats."""
        self._require_built("KL")
        return float(ops.convert_to_numpy(self._kl_nats(self._noise_variable)))

    def _kl_weight_value(self):
        if self.num_examples is None:
            return 0.0
        return self._kl_share / (self.num_examples * self.kl_downscale)

    def scale_kl(self, share):
        """Sets `kl_weight` to a share of its full value, built or not."""
        self._kl_share = share
        if self.built:
            self.kl_weight.assign(self._kl_weight_value())

    def set_num_examples(self, num_examples, kl_downscale=1.0):
        """Weighs the KL by `1 / (num_examples * kl_downscale)` from now on."""
        num_examples = validation.check_count("num_examples", num_examples)
        kl_downscale = validation.check_positive("kl_downscale", kl_downscale)
        self.num_examples = num_examples
        self.kl_downscale = kl_downscale
        self.scale_kl(1.0)

    def is_noisy(self, training):
        """While it trains, and where samples are asked for."""
        return bool(training) or sampling.is_on()

    def normal(self, shape, dtype):
        """Standard normal noise, new on each call."""
        return keras.random.normal(shape, dtype=dtype, seed=self.seed_generator)

    def dropout_rates(self):
        """The rates `p = alpha / (1 + alpha)` of now, as a numpy array."""
        self._require_built("dropout rates")
        return ops.convert_to_numpy(ops.sigmoid(self.log_alpha))

    def _require_built(self, what):
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has no {what} before it is built. Call "
                "it, or its model, on some data first, or give the model a "
                "`keras.Input`."
            )

    def floating(self, inputs):
        """Inputs that noise can scale: Keras leaves integers as they are."""
        if keras.backend.is_float_dtype(inputs.dtype):
            return inputs
        return ops.cast(inputs, self.compute_dtype)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        # Keras 3.15 (backend/*/core.py, `remat`) would run `call` again with
        # new noise on torch, refuses keywords on tensorflow, and on jax lets
        # the seed state out of the trace. So the seed is drawn outside.
        noisy = self.is_noisy(kwargs.get("training"))
        seed = self.seed_generator.next() if noisy else None
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
            "kl": divergence.serialize(self.divergence),
            "num_examples": self.num_examples,
            "kl_downscale": self.kl_downscale,
            "seed": self.seed,
        }
        return {**super().get_config(), **config}
