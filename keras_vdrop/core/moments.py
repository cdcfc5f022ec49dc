"""Mean and variance of the outputs of a linear map with random weights."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import pointwise
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.dtypes import variance_dtype
from keras_vdrop.core.posteriors import Variance


def moments(linear: Callable, inputs: Any, weight: Any) -> tuple[Any, Any]:
    """Mean and variance of `linear(inputs, w)` for independent weights `w`.

    A factor of the variance that belongs to the inputs or to the outputs
    multiplies these instead of the weights, because they are smaller.
    """
    dtype = variance_dtype(inputs.dtype)
    variance = weight.variance(dtype)
    kernel = backend.value_of(weight.kept_mean())
    squares = ops.square(ops.cast(inputs, dtype))
    if variance.inputs is not None:
        scale = weight.axes.over_inputs(variance.inputs, len(inputs.shape))
        # tensorflow does not broadcast against sparse inputs.
        scale = ops.broadcast_to(scale, ops.shape(squares))
        squares = ops.multiply(squares, scale)
    axes = weight.axes
    mean, spread = products(linear, inputs, squares, kernel, axes, variance)
    if variance.outputs is not None:
        scale = variance.outputs
        if len(scale.shape):
            scale = weight.axes.over_outputs(scale, len(mean.shape))
        spread = ops.multiply(spread, scale)
    return mean, spread


def products(
    linear: Callable,
    inputs: Any,
    squares: Any,
    kernel: Any,
    axes: Axes,
    variance: Variance,
) -> tuple[Any, Any]:
    """`linear(inputs, kernel)`, and the product of squares and variances."""
    weights = variance.weights
    if weights is None:
        fused = backend.fused_moments(
            linear,
            inputs,
            squares,
            kernel,
            variance.log_alpha,
            variance.limit,
        )
        if fused is not None:
            return fused
        if variance.log_alpha is None:
            return on_shards(
                lambda examples, kernel: (
                    linear(examples[0], kernel),
                    linear(examples[1], _square(kernel, squares.dtype)),
                ),
                axes,
                (inputs, squares),
                kernel,
            )
        weights = _weight_variance(kernel, variance, squares.dtype)
    return linear(inputs, kernel), linear(squares, weights)


def on_shards(
    function: Callable, axes: Axes, examples: Any, shared: Any
) -> Any:
    """`function(examples, shared)`, with one sum of gradients over devices.

    Two products by a kernel have a gradient each. On each device both are
    added first.
    """
    if not axes.keeps_examples():
        return function(examples, shared)
    return backend.on_shards(function, examples, shared)


def _square(kernel: Any, dtype: str) -> Any:
    return pointwise.square(ops.cast(kernel, dtype))


def _weight_variance(kernel: Any, variance: Variance, dtype: str) -> Any:
    log_alpha, limit = variance.log_alpha, variance.limit
    kernel = ops.cast(kernel, log_alpha.dtype)
    if limit is None:
        found = pointwise.weight_variance(log_alpha, kernel)
    else:
        found = pointwise.limited_weight_variance(log_alpha, kernel, limit)
    return ops.cast(found, dtype)
