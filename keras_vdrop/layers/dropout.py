"""Learned Gaussian dropout as a layer of its own."""

import string
from typing import Any

import keras
from keras import ops

from keras_vdrop.core import sampling
from keras_vdrop.core import validation
from keras_vdrop.core.axes import Axes
from keras_vdrop.layers.base import VariationalLayer


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalDropout(VariationalLayer, keras.layers.Layer):
    """Gaussian dropout that learns its own rates, before any layer.

    While it trains, it multiplies its inputs by noise `N(1, alpha)`, new for
    each example, position and feature: an adaptive
    `keras.layers.GaussianDropout`, and the paper's type A when a layer with a
    kernel follows. Outside training it passes its inputs on.

    Args:
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        granularity: What has an alpha of its own: the `"layer"` or each
            `"input"`, that is each index of `axis`.
        adaptive: Boolean, whether alpha is learned. With `False` the layer is
            Gaussian dropout with a fixed rate, and there is no KL.
        max_alpha: Float, the largest alpha that may be learned, or `None` for
            no limit. The paper's is 1, a dropout rate of 0.5.
        rate_speed: Float, a power of two, or `None` for 32. With 1 the
            variable is log alpha, as in the paper. Otherwise it is
            `log(alpha) / rate_speed`, so that a step of Adam moves log alpha
            by `rate_speed` times the learning rate, and its gradient is
            divided by the number of random variables that share the alpha, so
            that SGD can follow it.
        kl: Name of a function of `keras_vdrop.divergence`, or a function of log
            alpha: the KL of one scale.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        axis: Integer, the axis of the features or channels. The KL is counted
            once for each of its indices.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        inputs: Tensor of rank 2 or more.
        training: Boolean, whether there is noise.

    Input shape:
        Any with a batch axis and a known size of `axis`.

    Output shape:
        That of the inputs.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDropout(0.2, seed=0)
    >>> x = np.ones((1000, 3), "float32")
    >>> keras.ops.convert_to_numpy(layer(x)).std().round(1)
    np.float32(0.0)
    >>> keras.ops.convert_to_numpy(layer(x, training=True)).std().round(1)
    np.float32(0.5)

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """

    def __init__(
        self,
        rate: float = 0.05,
        granularity: str = "layer",
        adaptive: bool = True,
        max_alpha: float | None = 1.0,
        rate_speed: float | None = None,
        kl: Any = "polynomial",
        num_examples: int | None = None,
        kl_downscale: float = 1.0,
        seed: int | None = None,
        axis: int = -1,
        **kwargs: Any,
    ):
        validation.check_choice("granularity", granularity, ("layer", "input"))
        super().__init__(
            rate=rate,
            noise="correlated",
            granularity=granularity,
            adaptive=adaptive,
            max_alpha=max_alpha,
            rate_speed=rate_speed,
            kl=kl,
            num_examples=num_examples,
            kl_downscale=kl_downscale,
            seed=seed,
            **kwargs,
        )
        if isinstance(axis, bool) or not isinstance(axis, int) or axis == 0:
            raise validation.invalid(
                "axis", "an integer other than 0, the batch axis", axis
            )
        self.axis = axis
        self.supports_masking = True

    def check_noise(self) -> None:
        """The noise is on the inputs: there is nothing to choose."""

    def axes_by_name(self) -> dict[str, str]:
        # The random weights are scales of mean 1: no variable of the layer.
        return {"scale": ""}

    def build(self, input_shape: Any) -> None:
        rank = len(input_shape)
        axis = self.axis + rank if self.axis < 0 else self.axis
        if not 0 < axis < rank or input_shape[axis] is None:
            raise validation.invalid(
                "axis",
                f"an axis of known size of inputs of shape {input_shape}, and "
                "not the batch axis",
                self.axis,
            )
        size = input_shape[axis]
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes={axis: size})
        names = list(string.ascii_lowercase[:rank])
        inputs = " ".join(names)
        equation = f"{inputs}, {names[axis]} -> {inputs}"
        self.scale_noise.attach(None, Axes(equation, (size,)))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        weight = self.scale_noise
        if self.is_noisy(training):
            inputs = self.floating(inputs)
            return ops.multiply(inputs, weight.scales(inputs))
        if sampling.mode(self) == "weights":
            inputs = self.floating(inputs)
            scales = ops.cast(weight.held_sample(), inputs.dtype)
            scales = weight.axes.over_inputs(scales, len(inputs.shape))
            return ops.multiply(inputs, scales)
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # There is one kind of noise, and one way to draw it.
        for name in ("noise", "parameterization", "estimator"):
            del config[name]
        return {**config, "axis": self.axis}
