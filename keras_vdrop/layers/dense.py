"""The variational form of `keras.layers.Dense`."""

import keras

from keras_vdrop.layers.kernel import VariationalKernel


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalDense(VariationalKernel, keras.layers.Dense):
    """A `Dense` layer that learns its own dropout rates.

    While it trains, its weights are random, `w ~ N(theta, alpha * theta**2)`,
    with `theta` the kernel, and its outputs are drawn from the distribution
    that this gives them (the local reparameterization trick):
    `activation(matmul(a, theta) + std * zeta + bias)` with
    `std**2 = matmul(a**2, alpha * theta**2)` and `zeta ~ N(0, 1)`. Outside
    training it is `keras.layers.Dense` with the kernel `theta`.

    Args:
        units: Positive integer, dimensionality of the output space.
        activation, use_bias, kernel_initializer, bias_initializer: As in
            `keras.layers.Dense`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.Dense`. The KL is added to the loss besides.
        kernel_constraint, bias_constraint: As in `keras.layers.Dense`.
        {noise_arguments}

    Call arguments:
        inputs: Tensor of rank 2 or more.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, ..., input_dim)`.

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

    linear = staticmethod(keras.ops.matmul)
