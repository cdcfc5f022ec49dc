"""A few numbers about the noise of each layer, computed where the noise is.

There can be as many alphas as weights, and they can be spread over devices. So
they stay there: one compiled function reduces those of all layers, and their
numbers are fetched together.
"""

import math
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.priors import Normal
from keras_vdrop.core.priors import serialize
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.diagnostics import measures
from keras_vdrop.diagnostics.measures import Histogram

# Variables with at most so many alphas are copied next to those of their kind.
FEW = 2**16
# The functions of each model by the kinds of weights that they read.
_functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


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

    def measure(weight: RandomWeight, values: list[Any]) -> list[Any]:
        return measures.measure(weight, values, threshold, histogram)

    found = _read(model, weights, measure, (threshold, histogram))
    return [
        Reading._make([*map(float, numbers), counts])
        for numbers, counts in found
    ]


def read_kl(model: keras.Layer, weights: Iterable[RandomWeight]) -> list[float]:
    """The KL of each of some built random weights, in nats."""
    found = _read(model, weights, lambda *given: [measures.kl(*given)], "kl")
    return [float(kl) for (kl,) in found]


def _read(
    model: keras.Layer,
    weights: Iterable[RandomWeight],
    measure: Callable[[RandomWeight, list[Any]], list[Any]],
    key: Hashable,
) -> list[list[Any]]:
    """What `measure` finds for each weight, a list of arrays.

    `measure` gets the values of the variables of several weights of a kind, in
    a first axis, and so are its results. One call reads all of them but the
    largest, because a copy of these takes longer than a call.
    """
    functions = _functions.setdefault(model, {})
    weights = list(weights)
    kinds: dict[Hashable, list[int]] = {}
    alone = []
    for number, weight in enumerate(weights):
        if _is_few(weight):
            kinds.setdefault(_kind(weight), []).append(number)
        else:
            alone.append([[number]])
    order, found = [], []
    for groups in [list(kinds.values()), *alone] if kinds else alone:
        of = [[weights[number] for number in group] for group in groups]
        function = _function(functions, of, measure, key)
        values = [[_values(weight) for weight in group] for group in of]
        order += groups
        found += function(values)
    arrays = iter(backend.to_numpy([x for results in found for x in results]))
    read: dict[int, list[Any]] = {}
    for group, results in zip(order, found, strict=True):
        rows = zip(*[next(arrays) for _ in results], strict=True)
        read |= dict(zip(group, map(list, rows), strict=True))
    return [read[number] for number in range(len(weights))]


def _values(weight: RandomWeight) -> list[Any]:
    return [
        None if variable is None else backend.value_of(variable)
        for variable in measures.variables_of(weight)
    ]


def _is_few(weight: RandomWeight) -> bool:
    size = math.prod(weight.variable.shape)
    return size <= FEW and measures.is_by_alpha(weight.prior)


def _kind(weight: RandomWeight) -> Hashable:
    """What the numbers of a weight depend on, beside its variables."""
    posterior = weight.posterior
    return (
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
        repr(serialize(weight.prior)),
        *[
            x if x is None else str(x.dtype)
            for x in measures.variables_of(weight)
        ],
    )


def _function(
    functions: dict[Any, Callable[..., Any]],
    groups: list[list[RandomWeight]],
    measure: Callable[[RandomWeight, list[Any]], list[Any]],
    key: Hashable,
) -> Callable[..., Any]:
    """What `measure` finds for each group, of the values of their variables."""
    first = [group[0] for group in groups]

    def measure_values(values: list[Any]) -> list[Any]:
        return [
            measure(weight, [_stacked(x) for x in zip(*group, strict=True)])
            for weight, group in zip(first, values, strict=True)
        ]

    # A prior of a user may depend on what is not in its config.
    if not all(
        type(weight.prior) is Normal or measures.is_by_alpha(weight.prior)
        for weight in first
    ):
        return measure_values
    kinds = [(_kind(group[0]), len(group)) for group in groups]
    kind = (key, *kinds)
    if kind not in functions:
        functions[kind] = backend.compiled(measure_values)
    return functions[kind]


def _stacked(tensors: Sequence[Any]) -> Any:
    if tensors[0] is None:
        return None
    return tensors[0][None] if len(tensors) == 1 else ops.stack(tensors)
