"""A few numbers about the noise of each layer, computed where the noise is.

There can be as many alphas as weights, and they can be spread over devices. So
they stay there: a compiled function reduces them, and the numbers of all
layers are fetched together.
"""

import math
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.priors import DIVERGENCES
from keras_vdrop.core.priors import Normal
from keras_vdrop.core.priors import ScaleInvariant
from keras_vdrop.core.priors import serialize
from keras_vdrop.core.random_weight import RandomWeight

# A log alpha that is nearer than this to its limit is at the limit.
STILL = 0.05
# The functions of each model by what they depend on. One for each kind of
# layer: one for all layers would take ten seconds to compile for a hundred.
_functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class Histogram(NamedTuple):
    """In how many bins to count the rates.

    Attributes:
        bins: Integer.
        is_whole: Whether the bins are those of `[0, 1]`, and not those from
            the least rate to the greatest.
    """

    bins: int
    is_whole: bool


class Reading(NamedTuple):
    """The numbers of one random weight.

    Attributes:
        mean, least, greatest: Of the dropout rates.
        kl: In nats.
        prunable: The share of the alphas whose logarithm is above the
            threshold.
        moved: How far the log alpha is that moved furthest.
        at_limit: The share of the alphas at `max_alpha`.
        counts: How many rates are in each bin of the histogram.
    """

    mean: float
    least: float
    greatest: float
    kl: float
    prunable: float
    moved: float
    at_limit: float
    counts: Any


def read(
    model: keras.Layer,
    weights: Iterable[RandomWeight],
    threshold: float = 3.0,
    histogram: Histogram | None = None,
) -> list[Reading]:
    """A `Reading` of each built random weight of a model.

    Where arrays are spread over processes, all of them have to call this.
    """

    def measure(weight: RandomWeight) -> list[Any]:
        return _measure(weight, threshold, histogram)

    found = _read(model, weights, measure, (threshold, histogram))
    return [
        Reading._make([*map(float, numbers), counts])
        for numbers, counts in found
    ]


def read_kl(model: keras.Layer, weights: Iterable[RandomWeight]) -> list[float]:
    """The KL of each of some built random weights, in nats."""
    found = _read(model, weights, lambda weight: [weight.kl_tensor()], "kl")
    return [float(kl) for (kl,) in found]


def _read(
    model: keras.Layer,
    weights: Iterable[RandomWeight],
    measure: Callable[[RandomWeight], list[Any]],
    key: Hashable,
) -> list[list[Any]]:
    """What `measure` finds for each weight, a list of tensors, as arrays."""
    functions = _functions.setdefault(model, {})
    measured = []
    for weight in weights:
        function = _function(functions, weight, measure, key)
        measured.append(function([_value(x) for x in _variables(weight)]))
    arrays = iter(backend.to_numpy([x for found in measured for x in found]))
    return [[next(arrays) for _ in found] for found in measured]


def _variables(weight: RandomWeight) -> list[Any]:
    return [weight.variable, weight.mean_variable, weight.pruned]


def _value(variable: Any) -> Any:
    return None if variable is None else ops.convert_to_tensor(variable)


def _function(
    functions: dict[Any, Callable[..., Any]],
    weight: RandomWeight,
    measure: Callable[[RandomWeight], list[Any]],
    key: Hashable,
) -> Callable[..., Any]:
    """`measure` as a function of the values of the variables of a weight."""

    def measure_values(values: list[Any]) -> list[Any]:
        mapping = [
            (variable, value)
            for variable, value in zip(_variables(weight), values, strict=True)
            if variable is not None
        ]
        with keras.StatelessScope(mapping):
            return measure(weight)

    # A prior of a user may depend on what is not in its config.
    prior = weight.prior
    is_known = type(prior) is Normal or (
        type(prior) is ScaleInvariant
        and prior.divergence in DIVERGENCES.values()
    )
    if not is_known:
        return measure_values
    posterior = weight.posterior
    kind = (
        type(posterior),
        posterior.axes.equation,
        posterior.axes.kernel_shape,
        repr(posterior.axes.sizes),
        weight.granularity,
        weight.limit,
        weight.speed,
        weight.natural,
        weight.adaptive,
        weight.rate,
        repr(serialize(prior)),
        *[x if x is None else str(x.dtype) for x in _variables(weight)],
        key,
    )
    if kind not in functions:
        functions[kind] = backend.compiled(measure_values)
    return functions[kind]


def _measure(
    weight: RandomWeight, threshold: float, histogram: Histogram | None
) -> list[Any]:
    log_alpha = weight.log_alpha()
    rates = ops.sigmoid(log_alpha)
    least, greatest = ops.min(rates), ops.max(rates)
    numbers = [ops.mean(rates), least, greatest]
    nothing = ops.zeros_like(least)
    if weight.adaptive:
        began = math.log(weight.rate / (1 - weight.rate))
        limit = math.log(weight.limit or 1.0) - STILL
        numbers += [
            ops.cast(weight.kl_tensor(), rates.dtype),
            _share(log_alpha > threshold, rates.dtype),
            ops.max(ops.abs(log_alpha - began)),
            # Without a limit, not even what is infinite is at it.
            nothing
            if weight.limit is None
            else _share(log_alpha >= limit, rates.dtype),
        ]
    else:
        numbers += 4 * [nothing]
    counts = ops.zeros((0,), "int32")
    if histogram is not None:
        start, length = 0.0, 1.0
        if not histogram.is_whole:
            start, length = least, greatest - least
        counts = _counts(rates, start, length, histogram.bins)
    return [ops.stack(numbers), counts]


def _share(condition: Any, dtype: Any) -> Any:
    return ops.mean(ops.cast(condition, dtype))


def _counts(rates: Any, start: Any, length: Any, bins: int) -> Any:
    """As `numpy.histogram`, without an index of each rate.

    To compare them with one edge after the other needs no memory, and nothing
    of the devices but sums.
    """
    edges = start + length * ops.arange(1, bins, dtype=rates.dtype) / bins
    above = ops.map(
        lambda edge: ops.sum(ops.cast(rates >= edge, "int32")), edges
    )
    every = ops.full((1,), math.prod(rates.shape), "int32")
    above = ops.concatenate([every, above, ops.zeros_like(every)])
    return above[:-1] - above[1:]
