"""The variational forms of `keras.layers.Conv1D`, `Conv2D` and `Conv3D`."""

import keras
from keras import ops

from keras_vdrop.layers.kernel import VariationalKernel


class VariationalConv(VariationalKernel):
    """Mixin: convolution as the linear map, for any number of dimensions."""

    def linear(self, inputs, kernel):
        padding = self.padding
        if padding == "causal":
            past = (self.dilation_rate[0] * (self.kernel_size[0] - 1), 0)
            channels_first = self.data_format == "channels_first"
            widths = ((0, 0), past) if channels_first else (past, (0, 0))
            inputs = ops.pad(inputs, ((0, 0), *widths))
            padding = "valid"
        return ops.conv(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalConv1D(VariationalConv, keras.layers.Conv1D):
    """A `Conv1D` layer that learns its own dropout rates.

    While it trains, its weights are random, `w ~ N(theta, alpha * theta**2)`,
    and its outputs are drawn from the normal distribution with the mean and
    the variance that this gives them, each output on its own: the covariance
    between positions, which share their weights, is left out. Outside training
    it is `keras.layers.Conv1D` with the kernel `theta`.

    Args:
        filters: Positive integer, the number of output channels.
        kernel_size, strides, padding, data_format, dilation_rate, groups: As
            in `keras.layers.Conv1D`.
        activation, use_bias, kernel_initializer, bias_initializer: As in
            `keras.layers.Conv1D`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.Conv1D`. The KL is added to the loss besides.
        kernel_constraint, bias_constraint: As in `keras.layers.Conv1D`.
        {noise_arguments}

    Call arguments:
        inputs: Tensor of rank 3.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, steps, channels)`, or with
        `data_format="channels_first"` `(batch_size, channels, steps)`.

    Output shape:
        As `keras.layers.Conv1D`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalConv1D(
    ...     4, 3, data_format="channels_last"
    ... )
    >>> layer(np.ones((2, 8, 3))).shape == (2, 6, 4)
    True

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalConv2D(VariationalConv, keras.layers.Conv2D):
    """A `Conv2D` layer that learns its own dropout rates.

    While it trains, its weights are random, `w ~ N(theta, alpha * theta**2)`,
    and its outputs are drawn from the normal distribution with the mean and
    the variance that this gives them, each output on its own: the covariance
    between positions, which share their weights, is left out. Outside training
    it is `keras.layers.Conv2D` with the kernel `theta`.

    Args:
        filters: Positive integer, the number of output channels.
        kernel_size, strides, padding, data_format, dilation_rate, groups: As
            in `keras.layers.Conv2D`.
        activation, use_bias, kernel_initializer, bias_initializer: As in
            `keras.layers.Conv2D`.
        kernel_regularizer, bias_regularizer, activity_regularizer: As in
            `keras.layers.Conv2D`. The KL is added to the loss besides.
        kernel_constraint, bias_constraint: As in `keras.layers.Conv2D`.
        {noise_arguments}

    Call arguments:
        inputs: Tensor of rank 4.
        training: Boolean, whether the weights are random.

    Input shape:
        `(batch_size, height, width, channels)`, or with
        `data_format="channels_first"` `(batch_size, channels, height, width)`.

    Output shape:
        As `keras.layers.Conv2D`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalConv2D(
    ...     4, 3, data_format="channels_last"
    ... )
    >>> layer(np.ones((2, 8, 8, 3))).shape == (2, 6, 6, 4)
    True

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalConv3D(VariationalConv, keras.layers.Conv3D):
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
        {noise_arguments}

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
