"""The variational form of `keras.layers.ConvLSTM1D`."""

from typing import Any

import keras

from keras_vdrop.layers.recurrent.base_conv_lstm import VariationalConvLSTM


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalConvLSTM1D(VariationalConvLSTM, keras.layers.ConvLSTM1D):
    """A `ConvLSTM1D` layer that learns its own dropout rates.

    While it trains, its kernel and its recurrent kernel are random, each with
    noise of its own, which is drawn once for a sequence and is the same at all
    its steps and positions. Outside training it is `keras.layers.ConvLSTM1D`.

    Args:
        filters: Positive integer, the number of output channels.
        kernel_size, strides, padding, data_format, dilation_rate: As in
            `keras.layers.ConvLSTM1D`.
        activation, recurrent_activation, use_bias: As in
            `keras.layers.ConvLSTM1D`.
        kernel_initializer, recurrent_initializer: As in
            `keras.layers.ConvLSTM1D`.
        bias_initializer, unit_forget_bias: As in `keras.layers.ConvLSTM1D`.
        kernel_regularizer, recurrent_regularizer: As in
            `keras.layers.ConvLSTM1D`.
        bias_regularizer, activity_regularizer: As in `keras.layers.ConvLSTM1D`.
            The KL is added to the loss besides.
        kernel_constraint, recurrent_constraint, bias_constraint: As in
            `keras.layers.ConvLSTM1D`.
        dropout, recurrent_dropout: As in `keras.layers.ConvLSTM1D`.
        seed: Integer, the seed of the noise and of dropout, or `None` for a
            random one.
        return_sequences, return_state, go_backwards, stateful: As in
            `keras.layers.ConvLSTM1D`.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"independent"`, noise of its own on each weight (the paper's
            type B), or `"correlated"`, noise on each input channel and on
            each channel of the state, which all the weights of that channel
            share, at all positions of the window (type A).
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`. Inputs and outputs
            are channels. `"correlated"` noise takes `"layer"` or `"input"`.
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
        estimator: How noise is drawn: `"local"`, a factor for each example on
            the channels of the inputs and of the state, for correlated noise;
            `"batch"`, one sample of the weights for the whole minibatch, which
            independent noise needs.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        **kwargs: As in `keras.layers.ConvLSTM1D`: `unroll`, `name`, `dtype`...

    Call arguments:
        sequences: Tensor of rank 4.
        initial_state, mask: As in `keras.layers.ConvLSTM1D`.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, steps, rows, channels)`, or with
        `data_format="channels_first"` `(batch_size, steps, channels, rows)`.

    Output shape:
        As `keras.layers.ConvLSTM1D`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalConvLSTM1D(
    ...     4, 3, data_format="channels_last"
    ... )
    >>> layer(np.ones((2, 5, 8, 3))).shape == (2, 6, 4)
    True

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    - [Gal, Ghahramani, 2016](https://arxiv.org/abs/1512.05287)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        *,
        rate: float = 0.05,
        noise: str = "correlated",
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
            filters=filters,
            kernel_size=kernel_size,
            strides=strides,
            padding=padding,
            data_format=data_format,
            dilation_rate=dilation_rate,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            unit_forget_bias=unit_forget_bias,
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            seed=seed,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
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
