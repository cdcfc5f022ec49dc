"""A normal distribution whose mean and log variance a model gives."""

import math
from typing import Any

from keras import ops

from keras_vdrop.core import validation
from keras_vdrop.core.pointwise import one_way_limit

# A log variance beyond this counts as this: standard deviations from 1e-11 to
# 7e10.
LIMIT = 50.0
# From this many standard deviations on, the likelihood falls with the logarithm
# of the distance only, so that no square overflows.
FAR = 1e4


def features_of(argument: str, shape: Any) -> int:
    """How many means there are in outputs of this shape."""
    size = shape[-1] if len(shape) > 1 else None
    if size is None or size == 0 or size % 2:
        raise validation.invalid(
            argument,
            "means and then as many log variances on the last axis",
            f"shape {tuple(shape)}",
            "A layer with two outputs for each target gives both. "
            "`keras_vdrop.layers.ObservationNoise` after a layer of means "
            "appends a log variance that is learned.",
        )
    return size // 2


def negative_log_likelihood(y: Any, mean: Any, log_variance: Any) -> Any:
    """`-log N(y; mean, exp(log_variance))`, elementwise.

    Value and derivatives are finite for all finite arguments. A log variance
    beyond `LIMIT` keeps the derivative that leads back.
    """
    log_variance = one_way_limit(log_variance, limit=LIMIT)
    log_variance = -one_way_limit(-log_variance, limit=LIMIT)
    # Half of it, because the difference of two large numbers overflows.
    half = 0.5 * y - 0.5 * mean
    bound = 0.5 * FAR * ops.exp(0.5 * log_variance)
    far = ops.stop_gradient(ops.abs(half)) > ops.stop_gradient(bound)
    near = 2.0 * ops.where(far, 0.0, half) * ops.exp(-0.5 * log_variance)
    times = ops.log(ops.where(far, ops.abs(half), 1.0)) - 0.5 * log_variance
    times = times + math.log(2 / FAR)
    distance = ops.where(far, FAR**2 * (0.5 + times), 0.5 * near * near)
    return distance + 0.5 * (log_variance + math.log(2 * math.pi))
