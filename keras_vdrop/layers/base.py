"""What turns a Keras layer into a variational one."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vdrop.core import estimators
from keras_vdrop.core import sampling
from keras_vdrop.core import validation
from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.priors import Prior
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.core.seeds import recomputed

UNSUPPORTED = ("lora_rank", "lora_alpha", "quantization_config")


class VariationalLayer:
    """Mixin: a Keras layer some of whose weights are random while it trains.

    Put it before a Keras layer class. A layer with a linear map is its axes
    and that map:

    ```python
    class VariationalDense(VariationalLayer, keras.layers.Dense):
        axes = "... i, i o -> ... o"
        linear = staticmethod(keras.ops.matmul)
    ```

    Outside training the layer is the Keras layer, by its own `call`.

    Args:
        *args: The arguments of the Keras layer.
        rate, noise, granularity, adaptive, max_alpha, kl: As in
            `keras_vdrop.VariationalDense`.
        parameterization, estimator, num_examples, kl_downscale, seed: As in
            `keras_vdrop.VariationalDense`.
        **kwargs: The arguments of the Keras layer by keyword.
    """

    # The axes of the kernel, or of each random variable by its name: see
    # `keras_vdrop.core.axes`.
    axes: Any = ""
    # A function of inputs and any kernel, linear in both, or `None`.
    linear: Any = None
    # The estimators that make sense, and why no others.
    estimators: tuple[str, ...] = tuple(estimators.ESTIMATORS)
    noise_arguments: NoiseArguments
    # Of the Keras layer.
    name: str
    built: bool

    def __init__(
        self,
        *args: Any,
        rate: float = 0.05,
        noise: str = "independent",
        granularity: str = "layer",
        adaptive: bool = True,
        max_alpha: float | None = 1.0,
        kl: Any = "polynomial",
        parameterization: str = "multiplicative",
        estimator: str = "local",
        num_examples: int | None = None,
        kl_downscale: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        seed = check_seed(seed)
        if "seed" in inspect.signature(self.keras_class()).parameters:
            kwargs["seed"] = seed  # Of the dropout of the Keras layer.
        super().__init__(*args, **kwargs)
        self._check_supported()
        self.add_noise(
            NoiseArguments(
                rate=rate,
                noise=noise,
                granularity=granularity,
                adaptive=adaptive,
                max_alpha=max_alpha,
                kl=kl,
                parameterization=parameterization,
                estimator=estimator,
                num_examples=num_examples,
                kl_downscale=kl_downscale,
                seed=seed,
            )
        )

    def add_noise(self: Any, arguments: NoiseArguments) -> None:
        """Gives each random variable its noise, built or not."""
        self.noise_arguments = arguments
        self.seed = arguments.seed
        self.check_noise()
        for name in self.axes_by_name():
            weight = RandomWeight(
                arguments,
                owner=self.name,
                name=f"{name}_noise",
                dtype=self.dtype_policy,
                trainable=self.trainable,
            )
            setattr(self, f"{name}_noise", weight)
        if self.built:
            self.build_noise()

    def check_noise(self) -> None:
        """Refuses arguments that make no sense for this layer."""
        if self.linear is None and self.estimator in estimators.NEED_LINEAR:
            raise validation.invalid(
                "estimator",
                "'batch' or 'example' for a layer without a linear map",
                self.estimator,
            )

    @classmethod
    def keras_class(cls) -> Any:
        """The Keras layer that this layer stands in for."""
        return next(
            base
            for base in cls.__mro__
            if issubclass(base, keras.Layer)
            and not issubclass(base, VariationalLayer)
        )

    def axes_by_name(self) -> dict[str, str]:
        """The axes of each random variable, by the name of its attribute."""
        return (
            self.axes if isinstance(self.axes, dict) else {"kernel": self.axes}
        )

    def axis_sizes(self) -> dict[str, int]:
        """Sizes of axes that the shape of the kernel does not tell."""
        return {}

    def weights_by_name(self) -> dict[str, RandomWeight]:
        """The noise of each random variable of the layer and of its parts.

        A layer that makes its parts when it is built has none before.
        """
        return {
            name: getattr(self, f"{name}_noise") for name in self.axes_by_name()
        }

    @property
    def random_weights(self) -> list[RandomWeight]:
        """The noise of each random variable of the layer and of its parts."""
        return list(self.weights_by_name().values())

    def build(self: Any, input_shape: Any) -> None:
        super().build(input_shape)  # type: ignore[misc]
        self.build_noise()

    def build_noise(self: Any) -> None:
        for name, equation in self.axes_by_name().items():
            variable = getattr(self, name)
            axes = Axes(equation, variable.shape, **self.axis_sizes())
            getattr(self, f"{name}_noise").attach(variable, axes)

    def is_noisy(self, training: Any) -> bool:
        """While it trains, and where samples are asked for."""
        try:
            return bool(training) or sampling.mode() == "local"
        except TypeError as error:
            # On jax a model that is rematerialized makes a tensor of it (3.15,
            # backend/jax/core.py).
            raise recomputed(self.name) from error

    def call(self: Any, inputs: Any, training: bool | None = None) -> Any:
        if not self.is_noisy(training):
            return self.plain_call(inputs)
        estimate = estimators.ESTIMATORS[self.estimator]
        return estimate(self, self.floating(inputs))

    def plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """The call of the Keras layer."""
        return super().call(*args, **kwargs)  # type: ignore[misc]

    def finish(self: Any, outputs: Any) -> Any:
        """Adds the bias and applies the activation."""
        if self.bias is not None:
            outputs = ops.add(outputs, self.bias_over(outputs))
        if self.activation is not None:
            outputs = self.activation(outputs)
        return outputs

    def bias_over(self: Any, outputs: Any) -> Any:
        """The bias in a shape that broadcasts against the outputs."""
        return self.bias

    def floating(self: Any, inputs: Any) -> Any:
        """Inputs that noise can scale: Keras leaves integers as they are."""
        if keras.backend.is_float_dtype(inputs.dtype):
            return inputs
        return ops.cast(inputs, self.compute_dtype)

    def rematerialized_call(
        self: Any, layer_call: Callable, *args: Any, **kwargs: Any
    ) -> Callable:
        # Keras 3.15 (backend/*/core.py, `remat`) would run `call` again with
        # new noise on torch, refuses keywords on tensorflow, and on jax lets
        # the seed state out of the trace. So the keys are drawn outside.
        generators = [weight.generator for weight in self.random_weights]
        keys = []
        if self.is_noisy(kwargs.get("training")):
            keys = [generator.next_key() for generator in generators]
        remat = super().rematerialized_call  # type: ignore[misc]

        def call(*args: Any) -> Any:
            with contextlib.ExitStack() as held:
                for generator, key in zip(generators, keys, strict=False):
                    held.enter_context(generator.hold(key))
                # Outside of a call, where torch computes it again, the layers
                # inside would not find `training`.
                context = self._get_call_context()
                context.set_value("training", kwargs.get("training"))
                held.callback(self._maybe_reset_call_context)
                return layer_call(*args, **kwargs)

        return lambda *args, **_: remat(call, *args)(*args)

    # The arguments, as attributes.
    @property
    def rate(self) -> float:
        return self.noise_arguments.rate

    @property
    def noise(self) -> str:
        return self.noise_arguments.noise

    @property
    def granularity(self) -> str:
        return self.noise_arguments.granularity

    @property
    def adaptive(self) -> bool:
        return self.noise_arguments.adaptive

    @property
    def max_alpha(self) -> float | None:
        return self.noise_arguments.max_alpha

    @property
    def prior(self) -> Prior:
        return self.noise_arguments.prior

    @property
    def parameterization(self) -> str:
        return self.noise_arguments.parameterization

    @property
    def estimator(self) -> str:
        return self.noise_arguments.estimator

    @estimator.setter
    def estimator(self, name: str) -> None:
        validation.check_choice("estimator", name, self.estimators)
        self.noise_arguments.estimator = name

    # What a user asks of a layer.
    @property
    def log_alpha(self) -> Any:
        """Log alpha: a variable, or a tensor where it is derived from some."""
        return self._only(lambda weight: weight.log_alpha_variable())

    @property
    def log_variance(self) -> Any:
        """The variable of the additive posterior, or `None`."""
        if self.parameterization == "multiplicative":
            return None
        return self._only(lambda weight: weight.variable)

    @property
    def kl_weight(self) -> Any:
        """The variable by which the KL is multiplied, once it is built."""
        weights = self.random_weights
        return weights[0].kl_weight if weights else None

    @property
    def num_examples(self) -> int | None:
        return self.noise_arguments.num_examples

    @property
    def kl_downscale(self) -> float:
        return self.noise_arguments.kl_downscale

    def kl(self) -> float:
        """The KL of the layer's posterior from its prior of now, in nats."""
        self._require_built("KL")
        return sum(
            float(ops.convert_to_numpy(weight.kl_tensor()))
            for weight in self.random_weights
        )

    def dropout_rates(self) -> Any:
        """The rates `p = alpha / (1 + alpha)` of now, as a numpy array.

        A layer with several random variables has a dict of arrays by name.
        """
        self._require_built("dropout rates")
        return self._only(
            lambda weight: ops.convert_to_numpy(ops.sigmoid(weight.log_alpha()))
        )

    def scale_kl(self, share: float) -> None:
        """Sets `kl_weight` to a share of its full value, built or not."""
        self.noise_arguments.kl_share = share
        for weight in self.random_weights:
            weight.scale_kl(share)

    def set_num_examples(
        self, num_examples: int, kl_downscale: float = 1.0
    ) -> None:
        """Weighs the KL by `1 / (num_examples * kl_downscale)` from now on."""
        arguments = self.noise_arguments
        num_examples = validation.check_count("num_examples", num_examples)
        kl_downscale = validation.check_positive("kl_downscale", kl_downscale)
        arguments.num_examples = num_examples
        arguments.kl_downscale = kl_downscale
        arguments.kl_share = 1.0
        for weight in self.random_weights:
            weight.set_num_examples(num_examples, kl_downscale)

    def reset_noise(self) -> None:
        """Gives the noise its initial rate, for the weights of now."""
        for weight in self.random_weights:
            weight.reset_noise()

    def _only(self, read: Callable) -> Any:
        """Of the one random variable, or a dict by the names of several."""
        found = {
            name: read(weight)
            for name, weight in self.weights_by_name().items()
        }
        return found if len(found) > 1 else next(iter(found.values()))

    def _require_built(self: Any, what: str) -> None:
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has no {what} before it is built. Call "
                "it, or its model, on some data first, or give the model a "
                "`keras.Input`."
            )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()  # type: ignore[misc]
        return {**config, **self.noise_arguments.as_dict()}

    # LoRA and quantization replace the kernel by something that is not the
    # mean of a posterior.
    def _check_supported(self) -> None:
        for argument in UNSUPPORTED:
            if getattr(self, argument, None) is not None:
                raise self._unsupported(f"`{argument}`")
        policy: Any = getattr(self, "dtype_policy", None)
        if getattr(policy, "quantization_mode", None) is not None:
            raise self._unsupported(f"dtype={policy.name!r}")

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        raise self._unsupported("LoRA")

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        raise self._unsupported("quantization")

    @property
    def dtype_policy(self) -> Any:
        return super().dtype_policy  # type: ignore[misc]

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        if keras.dtype_policies.get(value).quantization_mode is not None:
            raise self._unsupported("quantization")
        keras.Layer.dtype_policy.fset(self, value)

    def _unsupported(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} does not support {what}. Use "
            f"`keras.layers.{self.keras_class().__name__}`, and put a "
            "`keras_vdrop.VariationalDropout` before it for learned noise."
        )
