"""What turns a Keras layer with a kernel into a variational one."""

import math

import keras
from keras import ops

from keras_vdrop import estimators
from keras_vdrop import validation
from keras_vdrop.layers.documentation import document_arguments
from keras_vdrop.layers.noise import VariationalNoise

UNSUPPORTED = ("lora_rank", "lora_alpha", "quantization_config")


class VariationalKernel(VariationalNoise):
    """Mixin: a Keras layer whose kernel is random while it trains.

    A layer supplies its linear map and nothing else:

    ```python
    class VariationalDense(VariationalKernel, keras.layers.Dense):
        def linear(self, inputs, kernel):
            return keras.ops.matmul(inputs, kernel)
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

    def __init__(self, *args, noise="independent", estimator="local", **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = validation.check_choice(
            "noise", noise, ("independent", "correlated")
        )
        self.estimator = validation.check_choice(
            "estimator", estimator, ("local",)
        )
        if noise == "correlated" and self.granularity not in (
            VariationalNoise.granularities
        ):
            raise validation.invalid(
                "granularity",
                f"one of {VariationalNoise.granularities} with "
                "noise='correlated'",
                self.granularity,
                "Use `noise='independent'` for one alpha for each output or "
                "weight.",
            )
        for argument in UNSUPPORTED:
            if getattr(self, argument, None) is not None:
                raise self._unsupported(f"`{argument}`")
        if self.quantization_mode is not None:
            raise self._unsupported(f"dtype={self.dtype_policy.name!r}")

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

    def linear(self, inputs, kernel):
        """The layer without bias and activation, for any kernel."""
        raise NotImplementedError

    def call(self, inputs, training=None):
        if not training:
            return super().call(inputs)
        outputs = self._noisy_linear(inputs)
        if self.bias is not None:
            outputs = ops.add(outputs, self._over_channels(self.bias, outputs))
        if self.activation is not None:
            outputs = self.activation(outputs)
        return outputs

    def _noisy_linear(self, inputs):
        log_alpha = ops.convert_to_tensor(self.log_alpha)
        if self.granularity != "weight":
            log_alpha = self._over_channels(log_alpha, inputs)
        if self.noise == "correlated":
            return estimators.correlated(
                self.linear, inputs, self.kernel, log_alpha, self.normal
            )
        return estimators.independent(
            self.linear,
            inputs,
            self.kernel,
            log_alpha,
            self.granularity,
            self.normal,
        )

    def _channels_first(self):
        return getattr(self, "data_format", None) == "channels_first"

    def _over_channels(self, vector, batch):
        """Shapes one value for each channel to broadcast against a batch."""
        spatial = len(batch.shape) - 2 if self._channels_first() else 0
        return ops.reshape(vector, (-1,) + (1,) * spatial)

    # Keras layers with a kernel store that and the bias alone (3.15,
    # layers/core/dense.py): without these two a file would lack the noise.
    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.built:
            store["log_alpha"] = self.log_alpha
            store["kl_weight"] = self.kl_weight

    def load_own_variables(self, store):
        super().load_own_variables(store)
        if self.built:
            self.log_alpha.assign(store["log_alpha"])
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
        config = {"noise": self.noise, "estimator": self.estimator}
        return {**super().get_config(), **config}
