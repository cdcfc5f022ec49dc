"""Noise on the weights of any layer."""

import types
from collections.abc import Sequence
from typing import Any

import keras

from keras_vdrop.core import estimators
from keras_vdrop.core import validation
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers import inside
from keras_vdrop.layers.base import VariationalLayer


@keras.saving.register_keras_serializable(package="keras_vdrop")
class Variational(VariationalLayer, keras.layers.Wrapper):
    """A wrapper that makes weights of any layer random.

    While it trains, the chosen weights of the layer inside are samples of
    their posterior, `w ~ N(theta, alpha * theta**2)`. The layer runs its own
    `call` with them, whatever that does. Outside training it is the layer.

    A layer with a class of its own in `keras_vdrop` learns better with that
    one: its noise is drawn for each example, and here for a whole minibatch.

    Args:
        layer: A `keras.Layer`, built or not, without variational layers in it.
        weights: List of strings, the weights that are random: names such as
            `"kernel"`, or the ends of paths such as `"query/kernel"`. By
            default all that were made trainable, have at least two axes and
            are not called a bias: kernels and tables.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"independent"`, noise of its own on each weight. What the
            inputs of a weight are is not known, so that no others exist.
        granularity: What has an alpha of its own: with `"layer"` each random
            variable, or each `"weight"`.
        adaptive: Boolean, whether alpha is learned. With `False` the rate is
            fixed, and there is no KL.
        max_alpha: Float, the largest alpha that may be learned, or `None` for
            no limit. The paper's is 1, a dropout rate of 0.5.
        rate_speed: Float, a power of two, or `None` for 32 with correlated
            and 1 with independent noise. With 1 the variable is log alpha, as
            in the paper. Otherwise it is `log(alpha) / rate_speed`, so that a
            step of Adam moves log alpha by `rate_speed` times the learning
            rate, and its gradient is divided by the number of random
            variables that share the alpha, so that SGD can follow it.
        kl: Name of a function of `keras_vdrop.divergence`, `"normal"`, a prior
            of `keras_vdrop.priors`, or a function of log alpha: the KL of one
            weight.
        parameterization: What is learned beside the weights: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `granularity="weight"`.
        estimator: How noise is drawn: `"batch"`, one sample of the weights for
            the whole minibatch, or `"example"`, one for each example, which is
            slow. `"example"` runs the layer on one example at a time: for a
            layer with one tensor as its input, without a mask, and without a
            state, such as that of batch normalization or dropout.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        **kwargs: As in `keras.layers.Layer`. The name is by default that of
            the layer inside.

    Call arguments:
        inputs: The first argument of the layer inside, by position.
        *args: Its other tensors.
        training: Boolean, whether the weights are random.
        **kwargs: Its other arguments by keyword.

    Input shape:
        That of the layer inside.

    Output shape:
        That of the layer inside.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.Variational(keras.layers.GRU(4), rate=0.2)
    >>> layer(np.ones((2, 7, 3))).shape == (2, 4)
    True
    >>> sorted(layer.dropout_rates())
    ['gru_cell/kernel', 'gru_cell/recurrent_kernel']

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """

    def __init__(
        self,
        layer: keras.Layer,
        weights: Sequence[str] | None = None,
        *,
        rate: float = 0.05,
        noise: str = "independent",
        granularity: str = "layer",
        adaptive: bool = True,
        max_alpha: float | None = 1.0,
        rate_speed: float | None = None,
        kl: Any = "polynomial",
        parameterization: str = "multiplicative",
        estimator: str = "batch",
        num_examples: int | None = None,
        kl_downscale: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        if not isinstance(layer, keras.Layer):
            raise validation.invalid("layer", "a keras.Layer", layer)
        _check_plain(layer)
        self._chosen_weights = _check_names(weights)
        # The name of a random variable, and of the attribute of its noise.
        self._attributes = types.SimpleNamespace(by_name={})
        self._inputs = types.SimpleNamespace(args=None, kwargs=None)
        super().__init__(
            layer=layer,
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
            **{"name": layer.name, "dtype": layer.dtype_policy, **kwargs},
        )
        # The layer inside casts its inputs, or leaves them, as it likes.
        self.autocast = False
        self.supports_masking = layer.supports_masking

    def check_noise(self) -> None:
        reason = "What the inputs of a weight are, only the layer knows."
        if self.noise == "correlated":
            raise validation.invalid(
                "noise", "'independent' for any layer", self.noise, reason
            )
        if self.granularity not in ("layer", "weight"):
            raise validation.invalid(
                "granularity",
                "'layer' or 'weight' for any layer",
                self.granularity,
                reason,
            )
        if self.estimator in estimators.NEED_LINEAR:
            raise validation.invalid(
                "estimator",
                "'batch' or 'example' for any layer",
                self.estimator,
                "Its linear maps, if it has some, only the layer knows.",
            )

    @property
    def estimators(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those that make sense for the layer inside."""
        if inside.has_state(self.layer):
            return ("batch",)
        return ("batch", "example")

    def axes_by_name(self) -> dict[str, str]:
        return {}  # Which weights there are is known when they are built.

    def weights_by_name(self) -> dict[str, RandomWeight]:
        return {
            name: getattr(self, attribute)
            for name, attribute in self._attributes.by_name.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.built:
            self._build_layer(args, kwargs)
        return super().__call__(*args, **kwargs)

    def _build_layer(self, args: Any, kwargs: Any) -> None:
        """Builds the layer as Keras does, which knows how for each layer."""
        args, kwargs = keras.tree.map_structure(inside.symbolic, (args, kwargs))
        self._inputs.args, self._inputs.kwargs = args, kwargs
        if not all(layer.built for layer in self.layer._flatten_layers()):
            kwargs = {k: v for k, v in kwargs.items() if k != "training"}
            self.layer(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        if self._inputs.args is None:
            inputs = keras.tree.map_shape_structure(
                keras.KerasTensor, input_shape
            )
            self._build_layer((inputs,), {})
        _check_plain(self.layer)
        if self.estimator == "example" and inside.has_state(self.layer):
            raise validation.invalid(
                "estimator",
                "'batch' for a layer with a state",
                self.estimator,
                f"Layer '{self.layer.name}' has variables that are not "
                "trained, such as moving averages or the seed of dropout, "
                "which belong to a whole minibatch.",
            )
        for name, variable in inside.choose(self.layer, self._chosen_weights):
            attribute = inside.unused(f"{variable.name}_noise", self)
            weight = RandomWeight(
                self.noise_arguments,
                owner=self.name,
                name=attribute,
                dtype=self.dtype_policy,
                trainable=self.trainable,
            )
            setattr(self, attribute, weight)
            self._attributes.by_name[name] = attribute
            axes = " ".join(f"w{n}" for n in range(len(variable.shape)))
            weight.attach(variable, Axes(f"..., {axes} -> ...", variable.shape))

    def call(
        self,
        inputs: Any,
        *args: Any,
        training: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if not self.is_noisy(training):
            return self.plain_call(inputs, *args, **kwargs)
        if self.estimator == "batch":
            return estimators.batch(self, inputs, *args, **kwargs)
        given = keras.tree.flatten((inputs, args, kwargs))
        if args or sum(map(keras.ops.is_tensor, given)) != 1:
            raise validation.invalid(
                "estimator",
                "'batch' for a layer that is called with several tensors, or "
                "with a mask",
                self.estimator,
            )
        return estimators.example(self, inputs, **kwargs)

    def plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """The call of the layer inside. It finds `training` by itself."""
        return self.layer(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.layer.compute_output_shape(input_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # By the call: not every layer has one shape, or tells its own.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_build_config(self) -> dict[str, Any] | None:
        if self._inputs.args is None:
            return None
        inputs = [list(self._inputs.args), self._inputs.kwargs]
        return {"inputs": keras.tree.map_structure(inside.to_text, inputs)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        inputs = keras.tree.map_structure(inside.from_text, config["inputs"])
        self._build_layer(*inputs)
        self.build()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weights": self._chosen_weights}


def _check_names(weights: Any) -> list[str] | None:
    if weights is None:
        return None
    names = list(weights) if isinstance(weights, (list, tuple)) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise validation.invalid(
            "weights", "a list of names of weights, or None", weights
        )
    return names


def _check_plain(layer: keras.Layer) -> None:
    for part in layer._flatten_layers():
        if isinstance(part, VariationalLayer):
            raise validation.invalid(
                "layer",
                "a layer without variational layers in it",
                layer,
                f"Layer '{part.name}' has noise of its own.",
            )
