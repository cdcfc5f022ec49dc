"""Learned Gaussian dropout as a layer of its own."""

import keras
from keras import ops

from keras_vdrop import estimators
from keras_vdrop import validation
from keras_vdrop.layers.noise import VariationalNoise


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalDropout(VariationalNoise, keras.layers.Layer):
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
        kl: Name of a function of `keras_vdrop.divergence`, or a callable: the
            KL of one scale, as a function of log alpha.
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
        rate=0.05,
        granularity="layer",
        adaptive=True,
        max_alpha=1.0,
        kl="polynomial",
        num_examples=None,
        kl_downscale=1.0,
        seed=None,
        axis=-1,
        **kwargs,
    ):
        super().__init__(
            rate=rate,
            granularity=granularity,
            adaptive=adaptive,
            max_alpha=max_alpha,
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

    def build(self, input_shape):
        rank = len(input_shape)
        axis = self.axis + rank if self.axis < 0 else self.axis
        if not 0 < axis < rank or input_shape[axis] is None:
            raise validation.invalid(
                "axis",
                f"an axis of known size of inputs of shape {input_shape}, and "
                "not the batch axis",
                self.axis,
            )
        scales = input_shape[axis]
        shape = () if self.granularity == "layer" else (scales,)
        self._trailing_axes = rank - 1 - axis
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes={axis: scales})
        self.add_noise_weights(shape, stands_for=scales)

    def call(self, inputs, training=None):
        if not self.is_noisy(training):
            return inputs
        log_alpha = ops.reshape(
            self.log_alpha, (-1,) + (1,) * self._trailing_axes
        )
        inputs = self.floating(inputs)
        return estimators.scale_noise(inputs, log_alpha, self.normal)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "axis": self.axis}
