"""How noise on the weights becomes noise on the outputs of a linear layer.

Pure functions of `linear(inputs, kernel)`, the linear map of the layer, so
that each estimator is written once for every layer: `correlated` and
`independent` are local reparameterization, `sampled` draws the weights once
for all examples, and `for_each_example` runs that for one example at a time.

`log_alpha` broadcasts against what it scales; `normal(shape, dtype)` draws
standard normal noise, in float32 at least: half-precision normals are coarse
and have no tails.
"""

import keras
from keras import ops

from keras_vdrop import pointwise
from keras_vdrop import products
from keras_vdrop.dtypes import at_least_float32


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
    normal,
    log_alpha=None,
    variance=None,
    input_scale=None,
    output_scale=None,
):
    """Independent weight noise, locally reparameterized (type B).

    `linear(a, theta) + sqrt(linear(a**2, variance)) * zeta` with
    `zeta ~ N(0, 1)`, where `variance` is that of the weights: given, or
    `alpha * theta**2`. A factor of it that belongs to the inputs or to the
    outputs multiplies those instead, which are smaller.
    """
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    squares = ops.square(ops.cast(inputs, variance_dtype(dtype)))
    if input_scale is not None:
        squares = _scale_inputs(squares, input_scale)
    mean, variance = products.moments(
        linear, inputs, squares, kernel, log_alpha, variance
    )
    if output_scale is not None:
        variance = ops.multiply(variance, output_scale)
    noise = normal(ops.shape(mean), at_least_float32(dtype))
    noise = ops.cast(noise, variance.dtype)
    return mean + ops.cast(pointwise.deviation(variance, noise), dtype)


def sampled(
    linear,
    inputs,
    noise,
    kernel,
    std,
    input_scale=None,
    output_scale=None,
):
    """One sample of the weights: `linear(a, theta + std * noise)`.

    `noise` is standard normal and broadcasts against the kernel. A factor of
    the deviation that belongs to the inputs or to the outputs multiplies those
    instead, because which weights it belongs to is known to `linear` alone.
    """
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    deviation = ops.multiply(std, noise)
    if input_scale is None and output_scale is None:
        return linear(inputs, ops.cast(ops.add(kernel, deviation), dtype))
    mean = linear(inputs, ops.cast(kernel, dtype))
    if input_scale is not None:
        inputs = _scale_inputs(inputs, ops.cast(input_scale, dtype))
    deviation = linear(inputs, ops.cast(deviation, dtype))
    if output_scale is not None:
        deviation = ops.multiply(deviation, ops.cast(output_scale, dtype))
    return mean + deviation


def for_each_example(function, inputs, tensors, seed_generator):
    """`function(example, *tensors)` for batches of one example, each with its
    own noise of `seed_generator`.

    Noise is drawn again in the backward pass instead of kept, so that there
    is never more than one sample of the weights at a time.
    """
    inputs = ops.convert_to_tensor(inputs, sparse=False)
    if inputs.shape[0] == 0:
        return function(inputs, *tensors)
    seeds = seed_generator.split(ops.shape(inputs)[0])

    def run(example_and_seed):
        example, seed = example_and_seed

        def with_seed(example, *tensors):
            with seed_generator.hold(seed):
                return function(example[None], *tensors)[0]

        return keras.remat(with_seed)(example, *tensors)

    return ops.map(run, (inputs, seeds))


def _scale_inputs(inputs, scale):
    # tensorflow does not broadcast against sparse inputs.
    scale = ops.broadcast_to(scale, ops.shape(inputs))
    return ops.multiply(inputs, scale)


def variance_dtype(dtype):
    """Squares leave the range of float16; bfloat16 has that of float32."""
    return "float32" if dtype == "float16" else dtype
