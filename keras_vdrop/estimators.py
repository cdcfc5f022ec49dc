"""How noise on the weights becomes noise on the outputs of a linear layer.

Pure functions of `linear(inputs, kernel)`, the linear map of the layer, so
that each estimator is written once for every layer. `log_alpha` broadcasts
against what it scales; `normal(shape, dtype)` draws standard normal noise.
"""

import keras
import numpy as np
from keras import ops

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
    noise = std * normal(ops.shape(inputs), noise_dtype(dtype))
    return ops.multiply(inputs, ops.cast(1.0 + noise, dtype))


def correlated(linear, inputs, kernel, log_alpha, normal):
    """Correlated weight noise, locally reparameterized (type A).

    `linear(inputs * xi, kernel)` with `xi ~ N(1, alpha)`.
    """
    return linear(scale_noise(inputs, log_alpha, normal), kernel)


def independent(linear, inputs, kernel, log_alpha, granularity, normal):
    """Independent weight noise, locally reparameterized (type B).

    `linear(a, theta) + sqrt(linear(a**2, alpha * theta**2)) * zeta` with
    `zeta ~ N(0, 1)`. Alpha multiplies the smallest tensor it can.
    """
    mean = linear(inputs, kernel)
    dtype = keras.backend.standardize_dtype(mean.dtype)
    # Squares leave the range of float16; bfloat16 has that of float32.
    variance_dtype = "float32" if dtype == "float16" else dtype
    squared_inputs = ops.square(ops.cast(inputs, variance_dtype))
    squared_kernel = ops.square(ops.cast(kernel, variance_dtype))
    alpha = ops.cast(ops.exp(log_alpha), variance_dtype)
    if granularity == "input":
        squared_inputs = ops.multiply(squared_inputs, alpha)
    elif granularity == "weight":
        squared_kernel = ops.multiply(squared_kernel, alpha)
    variance = linear(squared_inputs, squared_kernel)
    if granularity in ("layer", "output"):
        variance = ops.multiply(variance, alpha)
    std = ops.sqrt(ops.maximum(variance, TINY))
    noise = normal(ops.shape(mean), noise_dtype(dtype))
    return mean + ops.cast(std, dtype) * ops.cast(noise, dtype)


def noise_dtype(dtype):
    """Noise is drawn in float32 at least: half-precision normals are coarse
    and cut their tails off."""
    return keras.backend.result_type(dtype, "float32")
