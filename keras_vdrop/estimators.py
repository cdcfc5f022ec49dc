"""How noise on the weights becomes noise on the outputs of a linear layer.

Pure functions of `linear(inputs, kernel)`, the linear map of the layer, so
that each estimator is written once for every layer. `log_alpha` broadcasts
against what it scales; `normal(shape, dtype)` draws standard normal noise, in
float32 at least: half-precision normals are coarse and have no tails.
"""

import keras
import numpy as np
from keras import ops

from keras_vdrop.dtypes import at_least_float32

# The smallest normal float32, and bfloat16: far below any variance that can
# matter, so that the square root is unbiased, and its gradient is finite where
# the variance is exactly zero (an all-zero row, a padded border, theta = 0).
TINY = float(np.finfo("float32").tiny)


def scale_noise(inputs, log_alpha, normal):
    """`inputs * xi` with `xi ~ N(1, alpha)`: the paper's type A noise."""
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    # exp(log_alpha / 2), because sqrt(exp(log_alpha)) has no gradient once
    # alpha underflows.
    std = ops.exp(0.5 * log_alpha)
    noise = std * normal(ops.shape(inputs), at_least_float32(dtype))
    return ops.multiply(inputs, ops.cast(1.0 + noise, dtype))


def correlated(linear, inputs, kernel, log_alpha, normal):
    """Correlated weight noise, locally reparameterized (type A).

    `linear(inputs * xi, kernel)` with `xi ~ N(1, alpha)`.
    """
    return linear(scale_noise(inputs, log_alpha, normal), kernel)


def independent(
    linear,
    inputs,
    kernel,
    variance,
    normal,
    input_scale=None,
    output_scale=None,
):
    """Independent weight noise, locally reparameterized (type B).

    `linear(a, theta) + sqrt(linear(a**2, variance)) * zeta` with
    `zeta ~ N(0, 1)`, where `variance` is that of the weights. A factor of it
    that belongs to the inputs or to the outputs multiplies those instead,
    which are smaller.
    """
    mean = linear(inputs, kernel)
    dtype = keras.backend.standardize_dtype(mean.dtype)
    squares = ops.square(ops.cast(inputs, variance.dtype))
    if input_scale is not None:
        # tensorflow does not broadcast against sparse inputs.
        input_scale = ops.broadcast_to(input_scale, ops.shape(squares))
        squares = ops.multiply(squares, input_scale)
    variance = linear(squares, variance)
    if output_scale is not None:
        variance = ops.multiply(variance, output_scale)
    std = ops.sqrt(ops.maximum(variance, TINY))
    noise = normal(ops.shape(mean), at_least_float32(dtype))
    return mean + ops.cast(std, dtype) * ops.cast(noise, dtype)


def variance_dtype(dtype):
    """Squares leave the range of float16; bfloat16 has that of float32."""
    return "float32" if dtype == "float16" else dtype
