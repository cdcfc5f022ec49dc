"""Functions of every weight or output, in few passes over memory.

With an alpha for each weight a training step is bound by memory as much as by
its products of matrices. Automatic differentiation keeps each intermediate
result for the backward pass and reads it again there. These functions have
derivatives of their own instead: they keep nothing but the arguments they
need. The derivatives are functions of the arguments, so that they can be
differentiated again.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_vdrop.backend import FUSES
from keras_vdrop.backend import at_least
from keras_vdrop.backend import at_most
from keras_vdrop.backend import times
from keras_vdrop.backend import unless_above
from keras_vdrop.backend import with_backward
from keras_vdrop.backend import with_gradient
from keras_vdrop.backend import without_outward

# The smallest normal float32 and bfloat16, far below any variance that can
# matter.
TINY = float(np.finfo("float32").tiny)
# How far log alpha may be above its limit by rounding, when a constraint of
# the optimizer keeps it there.
ROUNDING = 1e-5


@with_gradient(lambda upstream, x: (times(upstream * x, 2.0),))
def square(x: Any) -> Any:
    """`x**2`."""
    return ops.square(x)


def _log_square_gradient(upstream: Any, x: Any) -> tuple[Any]:
    slope = times(upstream * x, 2.0)
    return (slope / at_least(ops.square(x), TINY),)


@with_gradient(_log_square_gradient)
def log_square(x: Any) -> Any:
    """`log(x**2)`, but never less than that of a variance of `TINY`."""
    return ops.log(at_least(ops.square(x), TINY))


def _log_ratio_gradient(upstream: Any, x: Any) -> tuple[Any, Any]:
    slope = times(upstream * x, -2.0)
    return upstream, slope / at_least(ops.square(x), TINY)


def _log_ratio(log_variance: Any, mean: Any) -> Any:
    return log_variance - ops.log(at_least(ops.square(mean), TINY))


@with_gradient(_log_ratio_gradient, kept_from=1)
def log_ratio(log_variance: Any, mean: Any) -> Any:
    """Log alpha, `log_variance - log_square(mean)`."""
    return _log_ratio(log_variance, mean)


def _one_way_limit_gradient(upstream: Any, x: Any, limit: float) -> tuple[Any]:
    return (without_outward(upstream, x, limit),)


@with_backward(_one_way_limit_gradient)
def one_way_limit(x: Any, limit: float) -> Any:
    """`minimum(x, limit)`, with a gradient that leads back to the limit.

    The derivative with respect to `x` is 1, also beyond the limit. It is 0
    only where `x` is beyond the limit and a step of gradient descent would
    move it further out.
    """
    return at_most(x, limit)


def _limited_scale_gradient(
    upstream: Any, log_alpha: Any, limit: float
) -> tuple[Any]:
    slope = times(_limited_scale(log_alpha, limit) * upstream, 0.5)
    return (without_outward(slope, log_alpha, limit),)


def _limited_scale(log_alpha: Any, limit: float) -> Any:
    return ops.exp(times(at_most(log_alpha, limit), 0.5))


@with_backward(_limited_scale_gradient)
def limited_scale(log_alpha: Any, limit: float) -> Any:
    """`sqrt(alpha)` with a log alpha of at most `limit`, as `one_way_limit`.

    Of the logarithm, because a square root has no gradient once alpha
    underflows. All of it is one function, whose parts would be most of the
    time of a small layer.
    """
    return _limited_scale(log_alpha, limit)


def _weight_variance_gradient(
    upstream: Any, log_alpha: Any, kernel: Any
) -> tuple[Any, Any]:
    # A second exponential costs no more than to keep the first.
    product = times(times(ops.exp(log_alpha), upstream), kernel)
    return product * kernel, times(product, 2.0)


@with_gradient(_weight_variance_gradient)
def weight_variance(log_alpha: Any, kernel: Any) -> Any:
    """`exp(log_alpha) * kernel**2`, for an alpha of each weight."""
    return times(times(ops.exp(log_alpha), kernel), kernel)


def limited_weight_variance(log_alpha: Any, kernel: Any, limit: float) -> Any:
    """`weight_variance` with a log alpha of at most `limit`.

    The derivative with respect to log alpha is as in `one_way_limit`.
    """
    if FUSES:
        return _limited_weight_variance(
            log_alpha, kernel, max_alpha=math.exp(limit)
        )
    limited = unless_above(
        lambda: ops.max(log_alpha),
        limit + ROUNDING,
        lambda: one_way_limit(log_alpha, limit=limit),
        lambda: log_alpha,
        made_of=(log_alpha,),
    )
    return weight_variance(limited, kernel)


# In these alpha is limited, and not log alpha: its exponential is that of the
# KL, which a compiler then computes once.
def _limited_weight_variance_gradient(
    upstream: Any, log_alpha: Any, kernel: Any, max_alpha: float
) -> tuple[Any, Any]:
    alpha = ops.exp(log_alpha)
    product = at_most(alpha, max_alpha) * upstream * kernel
    by_log_alpha = without_outward(product * kernel, alpha, max_alpha)
    return by_log_alpha, times(product, 2.0)


@with_backward(_limited_weight_variance_gradient)
def _limited_weight_variance(
    log_alpha: Any, kernel: Any, max_alpha: float
) -> Any:
    alpha = at_most(ops.exp(log_alpha), max_alpha)
    return times(times(alpha, kernel), kernel)


def limited_exp(log_variance: Any, mean: Any, limit: float) -> Any:
    """`exp(log_variance)`, with a log alpha of at most `limit`.

    The derivative with respect to the logarithm of the variance is as in
    `one_way_limit`. There is none with respect to the mean.
    """
    variance = ops.exp(log_variance)
    max_alpha = math.exp(limit)

    def largest() -> Any:
        # Infinite or NaN for a mean of zero, and so never below the limit.
        alpha = variance / ops.square(mean)
        return ops.log(ops.max(ops.stop_gradient(alpha)))

    return unless_above(
        largest,
        limit + ROUNDING,
        lambda: _limited_exp(log_variance, mean, max_alpha=max_alpha),
        lambda: variance,
        made_of=(log_variance, mean),
        exponential=lambda gradient: without_outward(
            gradient, ops.exp(log_ratio(log_variance, mean)), max_alpha
        ),
    )


def _limited_exp_gradient(
    upstream: Any, log_variance: Any, mean: Any, max_alpha: float
) -> tuple[Any, None]:
    alpha = ops.exp(log_ratio(log_variance, mean))
    squares = at_least(ops.square(mean), TINY)
    gradient = at_most(alpha, max_alpha) * squares * upstream
    return without_outward(gradient, alpha, max_alpha), None


@with_backward(_limited_exp_gradient)
def _limited_exp(log_variance: Any, mean: Any, max_alpha: float) -> Any:
    # The compiler of torch knows no function with a gradient inside another.
    alpha = ops.exp(_log_ratio(log_variance, mean))
    squares = at_least(ops.square(mean), TINY)
    return at_most(alpha, max_alpha) * squares


def _deviation_gradient(
    upstream: Any, variance: Any, noise: Any
) -> tuple[Any, None]:
    # Below `TINY` the derivative would be infinite. A variance as small as
    # that is made of inputs or weights near zero, which multiply this
    # derivative in turn, so that the limit does not show.
    slope = ops.rsqrt(at_least(variance, TINY))
    slope = times(times(slope, noise), upstream)
    return times(slope, 0.5), None


@with_gradient(_deviation_gradient)
def deviation(variance: Any, noise: Any) -> Any:
    """`sqrt(variance) * noise`, with no derivative of the noise."""
    return times(ops.sqrt(variance), noise)


def scaled(scale: float, slope: float) -> Callable:
    """A function that multiplies by `scale`, with a derivative of `slope`."""

    @with_gradient(lambda upstream: (upstream * slope,), kept_from=1)
    def multiply(x: Any) -> Any:
        return x * scale

    return multiply
