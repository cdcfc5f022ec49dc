"""A mixture of normal distributions, one for each sample, equally weighted.

In double precision of numpy: nothing here is differentiated, and quantiles
need the tails.
"""

import math
import statistics
from typing import Any

import numpy as np

from keras_vdrop.core.gaussian import LIMIT

# A step of Newton's method inside a bracket is over after some ten steps, and
# bisection of a bracket after this many.
STEPS = 100
# Relative to the standard deviations.
PRECISION = 1e-9

_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_quantile(q: float) -> float:
    """The `q`-quantile of the standard normal distribution."""
    if q in (0.0, 1.0):
        return -math.inf if q == 0 else math.inf
    return statistics.NormalDist().inv_cdf(q)


def split(outputs: Any) -> tuple[Any, Any]:
    """Means and variances, of outputs with log variances."""
    outputs = np.asarray(outputs, "float64")
    mean, log_variance = np.split(outputs, 2, axis=-1)
    return mean, np.exp(np.clip(log_variance, -LIMIT, LIMIT))


def quantile(samples: Any, q: float) -> Any:
    """The `q`-quantile of the mixture of each example and feature.

    Newton's method on the distribution function, by bisection where a step
    would leave the bracket. The quantiles of the components are the first one.

    Args:
        samples: Array `(samples, ..., 2 * features)`.
        q: Float in [0, 1].
    """
    mean, variance = split(samples)
    deviation = np.sqrt(variance)
    if q in (0.0, 1.0):
        return np.full(mean.shape[1:], normal_quantile(q))
    shape = mean.shape[1:]
    # The distribution has one axis for the components, and one for the rest.
    mean, deviation = (x.reshape(len(x), -1) for x in (mean, deviation))
    ends = mean + normal_quantile(q) * deviation
    low, high = ends.min(axis=0), ends.max(axis=0)
    found = ends.mean(axis=0)
    enough = PRECISION * deviation.min(axis=0)
    left = np.flatnonzero(high - low > enough)
    for _ in range(STEPS):
        if not left.size:
            break
        at, m, d = found[left], mean[:, left], deviation[:, left]
        z = (at - m) / d
        share = _below(z).mean(axis=0)
        is_low = share < q
        low[left] = np.where(is_low, at, low[left])
        high[left] = np.where(is_low, high[left], at)
        density = (np.exp(-0.5 * z * z) / d).mean(axis=0)
        density = density / math.sqrt(2 * math.pi)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = at - (share - q) / density
        inside = (step > low[left]) & (step < high[left])
        step = np.where(inside, step, 0.5 * (low[left] + high[left]))
        found[left] = step
        moved = np.abs(step - at)
        left = left[(moved > enough[left]) & (high[left] > low[left])]
    return found.reshape(shape)


def log_density(samples: Any, y: Any) -> Any:
    """Of each example: features are independent given the weights.

    Args:
        samples: Array `(samples, ..., 2 * features)`.
        y: Array `(..., features)`.
    """
    mean, variance = split(samples)
    difference = np.asarray(y, "float64") - mean
    logs = difference**2 / variance + np.log(2 * math.pi * variance)
    logs = -0.5 * logs.sum(axis=-1)
    largest = logs.max(axis=0)
    return largest + np.log(np.mean(np.exp(logs - largest), axis=0))


def _below(z: Any) -> Any:
    """The standard normal distribution function, exact in the lower tail."""
    return 0.5 * _erfc(-z / math.sqrt(2)).astype("float64")
