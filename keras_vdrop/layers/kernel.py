"""What turns a Keras layer with a kernel into a variational one."""

import math

import keras
from keras import ops

from keras_vdrop import estimators
from keras_vdrop import pointwise
from keras_vdrop import validation
from keras_vdrop.dtypes import at_least_float32
from keras_vdrop.layers.documentation import document_arguments
from keras_vdrop.layers.noise import VariationalNoise

ESTIMATORS = ("local", "batch", "example")
UNSUPPORTED = ("lora_rank", "lora_alpha", "quantization_config")


class VariationalKernel(VariationalNoise):
    """Mixin: a Keras layer whose kernel is random while it trains.

    A layer supplies its linear map, a function of its inputs and any kernel,
    and nothing else:

    ```python
    class VariationalDense(VariationalKernel, keras.layers.Dense):
        linear = staticmethod(keras.ops.matmul)
    ```

    Outside training the layer is the Keras layer, by its own `call`.
    """

    granularities = ("layer", "input", "output", "weight")

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if issubclass(cls, keras.Layer):
            document_arguments(cls, cls.keras_class(), hidden=UNSUPPORTED)

    @classmethod
    def keras_class(cls):
        """The Keras layer that this layer stands in for."""
        return next(
            base
            for base in cls.__mro__
            if issubclass(base, keras.Layer)
            and not issubclass(base, VariationalNoise)
        )

    def __init__(
        self,
        *args,
        noise="independent",
        parameterization="multiplicative",
        estimator="local",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.noise = validation.check_choice(
            "noise", noise, ("independent", "correlated")
        )
        self.parameterization = validation.check_choice(
            "parameterization", parameterization, ("multiplicative", "additive")
        )
        self.estimator = validation.check_choice(
            "estimator", estimator, ESTIMATORS
        )
        self._check_posterior()
        for argument in UNSUPPORTED:
            if getattr(self, argument, None) is not None:
                raise self._unsupported(f"`{argument}`")
        if self.quantization_mode is not None:
            raise self._unsupported(f"dtype={self.dtype_policy.name!r}")

    def _check_posterior(self):
        shared = VariationalNoise.granularities
        if self.noise == "correlated" and self.granularity not in shared:
            raise validation.invalid(
                "granularity",
                f"one of {shared} with noise='correlated'",
                self.granularity,
                "Use `noise='independent'` for one alpha for each output or "
                "weight.",
            )
        needs = {
            "noise": "independent",
            "granularity": "weight",
            "adaptive": True,
        }
        for argument, value in needs.items():
            found = getattr(self, argument)
            if self.parameterization == "additive" and found != value:
                raise validation.invalid(
                    argument,
                    f"{value!r} with parameterization='additive', which has "
                    "a variance to learn for each weight",
                    found,
                    f"Pass `{argument}={value!r}`.",
                )

    def build(self, input_shape):
        super().build(input_shape)
        output_shape = self.compute_output_shape(input_shape)
        axis = 1 if self._channels_first() else -1
        kernel_shape = tuple(self.kernel.shape)
        shape = {
            "layer": (),
            "input": (input_shape[axis],),
            "output": (output_shape[axis],),
            "weight": kernel_shape,
        }
        scales = {
            "independent": math.prod(kernel_shape),
            "correlated": input_shape[axis],
        }
        self.add_noise_weights(shape[self.granularity], scales[self.noise])

    @property
    def noise_variable_name(self):
        additive = self.parameterization == "additive"
        return "log_variance" if additive else "log_alpha"

    def to_log_alpha(self, value):
        if self.parameterization == "multiplicative":
            return value
        return ops.subtract(value, self._log_squares())

    def from_log_alpha(self, log_alpha):
        if self.parameterization == "multiplicative":
            return log_alpha
        return ops.add(log_alpha, self._log_squares())

    def _log_squares(self):
        """Of the means: log alpha is the log variance minus these."""
        dtype = at_least_float32(self.variable_dtype)
        return pointwise.log_square(ops.cast(self.kernel, dtype))

    @property
    def log_variance(self):
        """The variable of the additive posterior, or `None`."""
        if self.parameterization == "multiplicative":
            return None
        return self._noise_variable

    def linear(self, inputs, kernel):
        """The layer without bias and activation, for any kernel."""
        raise NotImplementedError

    def call(self, inputs, training=None):
        if not self.is_noisy(training):
            return super().call(inputs)
        outputs = self._noisy_linear(inputs)
        if self.bias is not None:
            outputs = ops.add(outputs, self._over_channels(self.bias, outputs))
        if self.activation is not None:
            outputs = self.activation(outputs)
        return outputs

    def _noisy_linear(self, inputs):
        inputs = self.floating(inputs)
        if self.estimator != "local":
            return self._sampled_linear(inputs)
        if self.noise == "correlated":
            log_alpha = self._over_channels(self.log_alpha, inputs)
            return estimators.correlated(
                self.linear, inputs, self.kernel, log_alpha, self.normal
            )
        return estimators.independent(
            self.linear,
            inputs,
            ops.convert_to_tensor(self.kernel),
            self.normal,
            **self._weight_variance(inputs),
        )

    def _sampled_linear(self, inputs):
        posterior = self._weight_deviation(inputs)

        def sample(inputs, *tensors):
            return estimators.sampled(
                self.linear,
                inputs,
                self._weight_noise(),
                **dict(zip(posterior, tensors, strict=True)),
            )

        if self.estimator == "batch":
            return sample(inputs, *posterior.values())
        return estimators.for_each_example(
            sample, inputs, list(posterior.values()), self.seed_generator
        )

    def _weight_noise(self):
        """Standard normal, for each weight or for each row of the kernel."""
        *rows, outputs = tuple(self.kernel.shape)
        dtype = at_least_float32(self.compute_dtype)
        if self.noise == "independent":
            return self.normal((*rows, outputs), dtype)
        # Groups of outputs have inputs of their own.
        groups = getattr(self, "groups", 1)
        noise = self.normal((*rows, groups), dtype)
        return ops.repeat(noise, outputs // groups, axis=-1)

    def _weight_deviation(self, inputs):
        """Mean and standard deviation, in the factors `sampled` takes."""
        dtype = at_least_float32(self.compute_dtype)
        kernel = ops.cast(self.kernel, dtype)
        if self.parameterization == "additive":
            std = ops.exp(0.5 * self.log_variance)
            return {"kernel": kernel, "std": ops.cast(std, dtype)}
        scale = ops.cast(ops.exp(0.5 * self.log_alpha), dtype)
        if self.granularity in ("layer", "weight"):
            return {"kernel": kernel, "std": ops.multiply(scale, kernel)}
        scale = self._over_channels(scale, inputs)
        factor = f"{self.granularity}_scale"
        return {"kernel": kernel, "std": kernel, factor: scale}

    def _weight_variance(self, inputs):
        """In the terms `independent` takes."""
        dtype = estimators.variance_dtype(self.compute_dtype)
        if self.parameterization == "additive":
            return {"variance": ops.cast(ops.exp(self.log_variance), dtype)}
        if self.granularity == "weight":
            return {"log_alpha": ops.convert_to_tensor(self.log_alpha)}
        alpha = ops.cast(ops.exp(self.log_alpha), dtype)
        alpha = self._over_channels(alpha, inputs)
        side = "input" if self.granularity == "input" else "output"
        return {f"{side}_scale": alpha}

    def _channels_first(self):
        return getattr(self, "data_format", None) == "channels_first"

    def _over_channels(self, vector, batch):
        """Shapes one value for each channel to broadcast against a batch."""
        if not self._channels_first():
            return vector
        return ops.reshape(vector, (-1,) + (1,) * (len(batch.shape) - 2))

    # Keras layers with a kernel store that and the bias alone (3.15,
    # layers/core/dense.py): without these two a file would lack the noise.
    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.built:
            store[self.noise_variable_name] = self._noise_variable
            store["kl_weight"] = self.kl_weight

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.built:
            self._noise_variable.assign(store[self.noise_variable_name])
            self.kl_weight.assign(store["kl_weight"])

    def enable_lora(self, *args, **kwargs):
        raise self._unsupported("LoRA")

    def quantize(self, *args, **kwargs):
        raise self._unsupported("quantization")

    @property
    def dtype_policy(self):
        return super().dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value):
        if keras.dtype_policies.get(value).quantization_mode is not None:
            raise self._unsupported("quantization")
        keras.Layer.dtype_policy.fset(self, value)

    def _unsupported(self, what):
        return NotImplementedError(
            f"{type(self).__name__} does not support {what}. Use "
            f"`keras.layers.{self.keras_class().__name__}`, and put a "
            "`keras_vdrop.VariationalDropout` before it for learned noise."
        )

    def get_config(self):
        config = {
            "noise": self.noise,
            "parameterization": self.parameterization,
            "estimator": self.estimator,
        }
        return {**super().get_config(), **config}
