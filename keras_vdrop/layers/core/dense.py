"""The variational form of `keras.layers.Dense`."""

from typing import Any

import keras

from keras_vdrop.layers.base import VariationalLayer


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalDense(VariationalLayer, keras.layers.Dense):
    """A `Dense` layer that learns its own dropout rates.

    While it trains, its weights are random, `w ~ N(theta, alpha * theta**2)`,
    and its outputs are drawn from the normal distribution with the mean and
    the variance that this gives them. Outside training it is
    `keras.layers.Dense` with the kernel `theta`.

    Args:
        units: Positive integer, the number of outputs.
        activation, use_bias, kernel_initializer, bias_initializer: As in
            `keras.layers.Dense`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.Dense`. The KL is added to the loss besides.
        kernel_constraint, bias_constraint: As in `keras.layers.Dense`.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"correlated"`, noise on each input, which all the weights of
            that input share (the paper's type A), or `"independent"`, noise of
            its own on each weight (type B). By default correlated, and
            independent where `granularity`, `kl` or `parameterization` ask for
            that.
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`.
            `"correlated"` noise takes `"layer"` or `"input"`.
        adaptive: Boolean, whether alpha is learned. With `False` the layer is
            Gaussian dropout with a fixed rate, and there is no KL.
        max_alpha: Float, the largest alpha that may be learned, or `None` for
            no limit. The paper's is 1, a dropout rate of 0.5.
        rate_speed: Float, a power of two, or `None` for 32 with correlated
            and 1 with independent noise. The variable is
            `log(alpha) / rate_speed`, so that a step of Adam moves log alpha
            by `rate_speed` times the learning rate. Its gradient is divided
            by the number of random variables that share the alpha, up to a
            constant, so that SGD can follow it. Only with `rate_speed=1` is
            it the plain gradient of log alpha, as in the paper.
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
        inputs: Tensor of rank 2 or more.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, ..., features)`.

    Output shape:
        `(batch_size, ..., units)`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDense(
    ...     4, activation="relu", rate=0.2, granularity="input"
    ... )
    >>> layer(np.ones((2, 3))).shape == (2, 4)
    True
    >>> layer.dropout_rates().round(2)
    array([0.2, 0.2, 0.2], dtype=float32)

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """

    axes = "... i, i o -> ... o"
    linear = staticmethod(keras.ops.matmul)

    def __init__(
        self,
        units: int,
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
        super().__init__(
            units=units,
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
