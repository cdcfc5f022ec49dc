"""The variational form of `keras.layers.LSTM`."""

from typing import Any

import keras

from keras_vdrop.layers.recurrent.base_cell import VariationalCell
from keras_vdrop.layers.recurrent.base_recurrent import VariationalRecurrent


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalLSTMCell(VariationalCell, keras.layers.LSTMCell):
    """The cell of `VariationalLSTM`.

    In a `keras.layers.RNN`, alone or among `keras.layers.StackedRNNCells`, its
    noise is drawn once for a sequence. Called by itself, it draws new noise.

    Args:
        units, activation, recurrent_activation, use_bias: As in
            `keras.layers.LSTMCell`.
        kernel_initializer, recurrent_initializer: As in
            `keras.layers.LSTMCell`.
        bias_initializer, unit_forget_bias, kernel_regularizer: As in
            `keras.layers.LSTMCell`.
        recurrent_regularizer, bias_regularizer, kernel_constraint: As in
            `keras.layers.LSTMCell`.
        recurrent_constraint, bias_constraint, dropout: As in
            `keras.layers.LSTMCell`.
        recurrent_dropout: As in `keras.layers.LSTMCell`.
        seed: As in `keras_vdrop.VariationalLSTM`.
        rate, noise, granularity, adaptive, max_alpha, rate_speed, kl: As in
            `keras_vdrop.VariationalLSTM`.
        parameterization, estimator, num_examples, kl_downscale: As in
            `keras_vdrop.VariationalLSTM`.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> cell = keras_vdrop.layers.VariationalLSTMCell(4)
    >>> layer = keras.layers.RNN(cell)
    >>> layer(np.ones((2, 7, 3))).shape == (2, 4)
    True
    """

    def __init__(
        self,
        units: int,
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
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
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
            units=units,
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
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
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


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalLSTM(VariationalRecurrent, keras.layers.LSTM):
    """An `LSTM` layer that learns its own dropout rates.

    While it trains, its kernel and its recurrent kernel are random, each with
    noise of its own, which is drawn once for a sequence and is the same at all
    its steps. Outside training it is `keras.layers.LSTM`.

    Args:
        units: Positive integer, the number of outputs.
        activation, recurrent_activation, use_bias: As in `keras.layers.LSTM`.
        kernel_initializer, recurrent_initializer: As in `keras.layers.LSTM`.
        bias_initializer, unit_forget_bias: As in `keras.layers.LSTM`.
        kernel_regularizer, recurrent_regularizer: As in `keras.layers.LSTM`.
        bias_regularizer, activity_regularizer: As in `keras.layers.LSTM`. The
            KL is added to the loss besides.
        kernel_constraint, recurrent_constraint, bias_constraint: As in
            `keras.layers.LSTM`.
        dropout, recurrent_dropout: As in `keras.layers.LSTM`.
        seed: Integer, the seed of the noise and of dropout, or `None` for a
            random one.
        return_sequences, return_state, go_backwards, stateful: As in
            `keras.layers.LSTM`.
        unroll: As in `keras.layers.LSTM`.
        use_cudnn: As in `keras.layers.LSTM`. While it trains, the layer takes
            step after step.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"independent"`, noise of its own on each weight (the paper's
            type B), or `"correlated"`, noise on each input, which all the
            weights of that input share (type A).
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`.
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
        parameterization: What is learned beside the kernel: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `noise="independent"` and `granularity="weight"`; its gradients
            have less variance where alpha is large.
        estimator: How noise is drawn: `"local"`, a factor for each example on
            the inputs and on the state, for correlated noise; `"batch"`, one
            sample of the weights for the whole minibatch, which independent
            noise needs.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        sequences: Tensor of rank 3.
        initial_state, mask: As in `keras.layers.LSTM`.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, steps, features)`.

    Output shape:
        As `keras.layers.LSTM`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalLSTM(4, rate=0.2)
    >>> layer(np.ones((2, 7, 3))).shape == (2, 4)
    True
    >>> sorted(layer.dropout_rates())
    ['kernel', 'recurrent_kernel']

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    - [Gal, Ghahramani, 2016](https://arxiv.org/abs/1512.05287)
    """

    cell_class = VariationalLSTMCell

    def __init__(
        self,
        units: int,
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
        unroll: bool = False,
        use_cudnn: Any = "auto",
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
            units=units,
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
            unroll=unroll,
            use_cudnn=use_cudnn,
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
