"""The variational form of `keras.layers.Conv3D`."""

from typing import Any

import keras

from keras_vdrop.layers.convolutional.base_conv import VariationalBaseConv


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalConv3D(VariationalBaseConv, keras.layers.Conv3D):
    """A `Conv3D` layer that learns its own dropout rates.

    While it trains, its weights are random, `w ~ N(theta, alpha * theta**2)`,
    and its outputs are drawn from the normal distribution with the mean and
    the variance that this gives them, each output on its own: the covariance
    between positions, which share their weights, is left out. Outside training
    it is `keras.layers.Conv3D` with the kernel `theta`.

    Args:
        filters: Positive integer, the number of output channels.
        kernel_size, strides, padding, data_format, dilation_rate, groups: As
            in `keras.layers.Conv3D`.
        activation, use_bias, kernel_initializer, bias_initializer: As in
            `keras.layers.Conv3D`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.Conv3D`. The KL is added to the loss besides.
        kernel_constraint, bias_constraint: As in `keras.layers.Conv3D`.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"independent"`, noise of its own on each weight (the paper's
            type B), or `"correlated"`, noise on each input, which all the
            weights of that input share (type A).
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`. Inputs and outputs
            are channels. `"correlated"` noise takes
            `"layer"` or `"input"`.
        adaptive: Boolean, whether alpha is learned. With `False` the layer is
            Gaussian dropout with a fixed rate, and there is no KL.
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
        parameterization: What is learned beside the kernel: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `noise="independent"` and `granularity="weight"`; its gradients
            have less variance where alpha is large.
        estimator: How noise is drawn: `"local"`, for the outputs of each
            example (local reparameterization); `"flipout"`, one sample of the
            weights whose noise has other signs in each example; `"batch"`,
            one sample of the weights for the whole minibatch; `"example"`,
            one for each example, which is slow.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        inputs: Tensor of rank 5.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, depth, height, width, channels)`, or with
        `data_format="channels_first"`
        `(batch_size, channels, depth, height, width)`.

    Output shape:
        As `keras.layers.Conv3D`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalConv3D(
    ...     4, 3, data_format="channels_last"
    ... )
    >>> layer(np.ones((2, 8, 8, 8, 3))).shape == (2, 6, 6, 6, 4)
    True

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = (1, 1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        rate: float = 0.05,
        noise: str = "independent",
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
        super().__init__(
            filters=filters,
            kernel_size=kernel_size,
            strides=strides,
            padding=padding,
            data_format=data_format,
            dilation_rate=dilation_rate,
            groups=groups,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
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
            **kwargs,
        )
