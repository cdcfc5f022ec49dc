"""The variational form of `keras.layers.GRUCell`."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.layers.recurrent.base_cell import VariationalCell
from keras_vdrop.layers.recurrent.base_cell import hidden_state


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalGRUCell(VariationalCell, keras.layers.GRUCell):
    """The cell of `VariationalGRU`.

    In a `keras.layers.RNN`, alone or among `keras.layers.StackedRNNCells`, its
    noise is drawn once for a sequence. Called by itself, it draws new noise.

    Args:
        units, activation, recurrent_activation, use_bias: As in
            `keras.layers.GRUCell`.
        kernel_initializer, recurrent_initializer: As in `keras.layers.GRUCell`.
        bias_initializer, kernel_regularizer: As in `keras.layers.GRUCell`.
        recurrent_regularizer, bias_regularizer, kernel_constraint: As in
            `keras.layers.GRUCell`.
        recurrent_constraint, bias_constraint, dropout: As in
            `keras.layers.GRUCell`.
        recurrent_dropout, reset_after: As in `keras.layers.GRUCell`.
        seed: As in `keras_vdrop.VariationalGRU`.
        rate, noise, granularity, adaptive, max_alpha, rate_speed, kl: As in
            `keras_vdrop.VariationalGRU`.
        parameterization, estimator, num_examples, kl_downscale: As in
            `keras_vdrop.VariationalGRU`.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> cell = keras_vdrop.layers.VariationalGRUCell(4)
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
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        reset_after: bool = True,
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
            kernel_regularizer=kernel_regularizer,
            recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            reset_after=reset_after,
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

    def scaled_call(
        self: Any, inputs: Any, states: Any, scales: Any, training: bool
    ) -> Any:
        # A part of the state goes into the next one without a weight, and so
        # without noise: the step of Keras would scale that part too.
        state = hidden_state(states)
        read, kernel = state * scales, self.recurrent_kernel
        on_inputs, on_state = self._masks(inputs, state, training)
        biases = [self.bias, None]
        if self.bias is not None and self.reset_after:
            biases = [self.bias[0], self.bias[1]]
        z, r, h = _gates(inputs, on_inputs, self.kernel, biases[0], 3)
        if self.reset_after:
            past = _gates(read, on_state, kernel, biases[1], 3)
            reset = self.recurrent_activation(r + past[1])
            candidate = h + reset * past[2]
        else:
            size = 2 * self.units
            past = _gates(read, on_state, kernel[:, :size], None, 2)
            reset = self.recurrent_activation(r + past[1])
            read = read * on_state[2] if on_state else read
            candidate = h + ops.matmul(reset * read, kernel[:, size:])
        update = self.recurrent_activation(z + past[0])
        state = update * state + (1 - update) * self.activation(candidate)
        return state, [state] if isinstance(states, (list, tuple)) else state

    def _masks(
        self: Any, inputs: Any, state: Any, training: bool
    ) -> tuple[Any, Any]:
        """Of dropout: one for all gates, one for each, or none."""
        on_inputs = on_state = None
        if training and 0 < self.dropout < 1:
            on_inputs = self.get_dropout_mask(inputs)
        if training and 0 < self.recurrent_dropout < 1:
            on_state = self.get_recurrent_dropout_mask(state)
        return on_inputs, on_state


def _gates(x: Any, masks: Any, kernel: Any, bias: Any, count: int) -> list[Any]:
    """What some gates read, with masks as `_masks` gives them."""
    if isinstance(masks, list):
        kernels = ops.split(kernel, count, axis=-1)
        found = [
            ops.matmul(x * mask, part)
            for mask, part in zip(masks[:count], kernels, strict=True)
        ]
        product = ops.concatenate(found, axis=-1)
    else:
        product = ops.matmul(x if masks is None else x * masks, kernel)
    if bias is not None:
        product = product + bias
    return ops.split(product, count, axis=-1)
