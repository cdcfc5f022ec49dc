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
from keras_vdrop.core.arguments import NAMES
from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.core.seeds import recomputed
from keras_vdrop.layers.noise_view import NoiseView

UNSUPPORTED = ("lora_rank", "lora_alpha", "quantization_config")


class VariationalLayer(NoiseView):
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
        rate, noise, granularity, adaptive, max_alpha, rate_speed, kl: As in
            `keras_vdrop.VariationalDense`.
        parameterization, estimator, num_examples, kl_downscale, seed: As in
            `keras_vdrop.VariationalDense`.
        **kwargs: The arguments of the Keras layer by keyword.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> class Scores(keras_vdrop.layers.VariationalLayer, keras.layers.Dense):
    ...     axes = "... i, i o -> ... o"
    ...     linear = staticmethod(keras.ops.matmul)
    >>> layer = Scores(4, noise="correlated", num_examples=100)
    >>> layer(np.ones((2, 3)), training=True).shape == (2, 4)
    True
    """

    # The axes of the kernel, or of each random variable by its name: see
    # `keras_vdrop.core.axes`.
    axes: Any = ""
    # A function of inputs and any kernel, linear in both, or `None`. Of maps
    # that apply in turn a dict by the name of the variable.
    linear: Any = None
    # The estimators that make sense.
    estimators: tuple[str, ...] = tuple(estimators.ESTIMATORS)

    def __init__(
        self,
        *args: Any,
        rate: float = 0.05,
        noise: str | None = None,
        granularity: str = "layer",
        adaptive: bool = True,
        max_alpha: float | None = 1.0,
        rate_speed: float | None = None,
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
                rate_speed=rate_speed,
                kl=kl,
                parameterization=parameterization,
                estimator=estimator,
                num_examples=num_examples,
                kl_downscale=kl_downscale,
                seed=seed,
            )
        )

    @classmethod
    def arguments_of(cls, **arguments: Any) -> NoiseArguments:
        """Arguments of the noise, with the defaults of this class."""
        known = inspect.signature(cls).parameters
        defaults = {
            name: known[name].default for name in NAMES if name in known
        }
        return NoiseArguments(**{**defaults, **arguments})

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

    def linear_maps(self) -> list[tuple[RandomWeight, Callable[..., Any]]]:
        """The linear maps that apply in turn, each with its random weight."""
        linear = self.linear
        if linear is None:
            return []
        maps = linear if isinstance(linear, dict) else {"kernel": linear}
        return [
            (getattr(self, f"{name}_noise"), found)
            for name, found in maps.items()
        ]

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
            return bool(training) or sampling.mode(self) == "local"
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
        self: Any, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
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

    def _set_dtype_policy(self, value: Any) -> None:
        if keras.dtype_policies.get(value).quantization_mode is not None:
            raise self._unsupported("quantization")
        keras.Layer.dtype_policy.fset(self, value)

    # Keras's getter, for the compiler of torch.
    dtype_policy = keras.Layer.dtype_policy.setter(_set_dtype_policy)

    def _unsupported(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} does not support {what}. Use "
            f"`keras.layers.{self.keras_class().__name__}`, and put a "
            "`keras_vdrop.VariationalDropout` before it for learned noise."
        )
