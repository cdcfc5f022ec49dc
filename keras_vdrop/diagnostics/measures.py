"""The numbers of several random weights, of the values of their variables."""

import math
from typing import Any
from typing import NamedTuple
from typing import TypeGuard

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.priors import DIVERGENCES
from keras_vdrop.core.priors import ScaleInvariant
from keras_vdrop.core.pruned import NO_NOISE
from keras_vdrop.core.random_weight import RandomWeight

# A log alpha that is nearer than this to its limit is at the limit.
STILL = 0.05


class Histogram(NamedTuple):
    """In how many bins to count the rates.

    Attributes:
        bins: Integer.
        is_whole: Whether the bins are those of `[0, 1]`, and not those from
            the least rate to the greatest.
    """

    bins: int
    is_whole: bool


def variables_of(weight: RandomWeight) -> list[Any]:
    """The variables that the numbers of a weight follow from, or `None`."""
    by_mean = weight.posterior.variable_name != "log_alpha"
    by_mean = by_mean or not is_by_alpha(weight.prior)
    mean = weight.mean_variable if by_mean else None
    return [weight.variable, mean, weight.pruned]


def is_by_alpha(prior: Any) -> TypeGuard[ScaleInvariant]:
    """Whether a KL is the sum of a function of this package of each alpha."""
    return (
        type(prior) is ScaleInvariant
        and prior.divergence in DIVERGENCES.values()
    )


def measure(
    weight: RandomWeight,
    values: list[Any],
    threshold: float,
    histogram: Histogram | None,
) -> list[Any]:
    """The numbers of a `Reading` but for the counts, and these.

    Args:
        weight: One of several random weights of a kind.
        values: The values of `variables_of` all of them, in a first axis. Only
            one weight may have a KL that is not `is_by_alpha`.
        threshold: Float, for log alpha.
        histogram: Which rates to count, or `None`.
    """
    value, mean, pruned = values
    posterior = weight.posterior
    log_alpha = posterior.to_log_alpha(value, mean)
    log_alpha = _unless(pruned, log_alpha, math.inf)
    if posterior.log_limit is not None:
        log_alpha = backend.hard_limit(log_alpha, posterior.log_limit)
    # At least one axis to reduce.
    log_alpha = log_alpha[..., None]
    axes = tuple(range(1, len(log_alpha.shape)))
    rates = ops.sigmoid(log_alpha)
    least, greatest = ops.min(rates, axes), ops.max(rates, axes)
    numbers = [ops.mean(rates, axes), least, greatest]
    nothing = ops.zeros_like(least)
    if weight.adaptive:
        began = math.log(weight.rate / (1 - weight.rate))
        limit = math.log(weight.limit or 1.0) - STILL
        numbers += [
            ops.cast(kl(weight, values), rates.dtype),
            _share(log_alpha > threshold, axes, rates.dtype),
            ops.max(ops.abs(log_alpha - began), axes),
            # Without a limit, not even what is infinite is at it.
            nothing
            if weight.limit is None
            else _share(log_alpha >= limit, axes, rates.dtype),
        ]
    else:
        numbers += 4 * [nothing]
    counts = ops.zeros((rates.shape[0], 0), "int32")
    if histogram is not None:
        start, length = ops.zeros_like(least), ops.ones_like(least)
        if not histogram.is_whole:
            start, length = least, greatest - least
        counts = _counts(rates, axes, start, length, histogram.bins)
    return [ops.stack(numbers, axis=1), counts]


def kl(weight: RandomWeight, values: list[Any]) -> Any:
    """The KL of each, in nats: arguments as of `measure`."""
    if is_by_alpha(weight.prior):
        value, mean, pruned = values
        posterior, divergence = weight.posterior, weight.prior.divergence
        kept = _unless(pruned, value, NO_NOISE)
        found = posterior.of_log_alpha(divergence, kept, mean)
        found = _unless(pruned, found, 0.0)[..., None]
        axes = tuple(range(1, len(found.shape)))
        share = posterior.terms / math.prod(found.shape[1:])
        return share * ops.sum(found, axes)
    mapping = [
        (variable, value[0])
        for variable, value in zip(variables_of(weight), values, strict=True)
        if variable is not None
    ]
    with keras.StatelessScope(mapping):
        return ops.stack([weight.kl_tensor()])


def _unless(pruned: Any, values: Any, otherwise: float) -> Any:
    if pruned is None:
        return values
    return ops.where(pruned, ops.cast(otherwise, values.dtype), values)


def _share(condition: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    return ops.mean(ops.cast(condition, dtype), axes)


def _counts(
    rates: Any, axes: tuple[int, ...], start: Any, length: Any, bins: int
) -> Any:
    """As `numpy.histogram`, without an index of each rate.

    To compare them with one edge after the other needs no memory, and nothing
    of the devices but sums.
    """
    parts = ops.arange(1, bins, dtype=rates.dtype) / bins
    shape = (-1, *len(axes) * [1])

    def above(part: Any) -> Any:
        edge = ops.reshape(start + length * part, shape)
        return ops.sum(ops.cast(rates >= edge, "int32"), axes)

    inner = ops.transpose(ops.map(above, parts))
    every = ops.full((rates.shape[0], 1), math.prod(rates.shape[1:]), "int32")
    inner = ops.concatenate([every, inner, ops.zeros_like(every)], axis=1)
    return inner[:, :-1] - inner[:, 1:]
