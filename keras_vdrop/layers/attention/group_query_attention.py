"""The variational form of `keras.layers.GroupQueryAttention`."""

from typing import Any

import keras

from keras_vdrop.layers.attention.base_attention import VariationalAttention


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalGroupQueryAttention(
    VariationalAttention, keras.layers.GroupQueryAttention
):
    """A `GroupQueryAttention` layer that learns its own dropout rates.

    While it trains, the weights of its projections are random,
    `w ~ N(theta, alpha * theta**2)`, each projection with noise and an alpha
    of its own. A projection draws its outputs from the normal distribution
    with the mean and the variance that this gives them: the covariance
    between positions, which share their weights, is left out. Outside
    training it is `keras.layers.GroupQueryAttention` with the kernels
    `theta`.

    Its random variables are called `"query"`, `"key"`, `"value"`,
    `"attention_output"`, and with `use_gate=True` `"gate"`: the methods
    `dropout_rates` and `log_alpha` give a dict by these names, and
    `keras_vdrop.summary` a line for each.

    Args:
        head_dim, num_query_heads, num_key_value_heads, dropout: As in
            `keras.layers.GroupQueryAttention`.
        use_bias, sliding_window, flash_attention: As in
            `keras.layers.GroupQueryAttention`.
        kernel_initializer, bias_initializer: As in
            `keras.layers.GroupQueryAttention`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.GroupQueryAttention`. The KL is added to the
            loss besides.
        kernel_constraint, bias_constraint, use_gate: As in
            `keras.layers.GroupQueryAttention`.
        seed: Integer, the seed of the noise and of dropout, or `None` for a
            random one. Each projection has a seed that follows from it.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`. This and all that follows is for
            each projection.
        noise: `"correlated"`, noise on each input, which all the weights of
            that input share (the paper's type A), or `"independent"`, noise of
            its own on each weight (type B). By default correlated, and
            independent where `granularity`, `kl` or `parameterization` ask for
            that.
        granularity: What has an alpha of its own: the `"layer"`, that is each
            projection, each `"input"`, each `"output"` or each `"weight"`.
            Features are the inputs of the first projections and the outputs
            of the last one; their other side are the units of all heads.
            `"correlated"` noise takes `"layer"` or `"input"`.
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
        parameterization: What is learned beside the kernels: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `noise="independent"` and `granularity="weight"`; its gradients
            have less variance where alpha is large.
        estimator: How noise is drawn: `"local"`, for the outputs of each
            position (local reparameterization); `"flipout"`, one sample of
            the weights whose noise has other signs in each example;
            `"batch"`, one sample of the weights for the whole minibatch;
            `"example"`, one for each example, which is slow.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        query, value, key, query_mask, value_mask, key_mask: As in
            `keras.layers.GroupQueryAttention`.
        attention_mask, return_attention_scores, use_causal_mask: As in
            `keras.layers.GroupQueryAttention`.
        training: Boolean, whether the weights are random.

    Input shape:
        As `keras.layers.GroupQueryAttention`.

    Output shape:
        As `keras.layers.GroupQueryAttention`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalGroupQueryAttention(4, 2, 1, rate=0.2)
    >>> x = np.ones((2, 5, 3))
    >>> layer(x, x, use_causal_mask=True).shape == (2, 5, 3)
    True
    >>> list(layer.dropout_rates())
    ['query', 'key', 'value', 'attention_output']

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
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
        **kwargs: Any,
    ):
        super().__init__(
            head_dim=head_dim,
            num_query_heads=num_query_heads,
            num_key_value_heads=num_key_value_heads,
            dropout=dropout,
            use_bias=use_bias,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
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
            **kwargs,
        )
