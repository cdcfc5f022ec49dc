"""`model.predict` with samples of the weights, and the model as it was."""

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import sampling
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.models import at_once
from keras_vdrop.models.monte_carlo_dropout import MonteCarloDropout
from keras_vdrop.models.parts import Part
from keras_vdrop.models.restored import restored
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers

# One call at a time for each model.
_locks: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_new_lock = threading.Lock()
# Compiled functions with noise by model and settings, the last few.
_functions: collections.OrderedDict = collections.OrderedDict()
FUNCTIONS = 8


class Sampler:
    """Runs `model.predict` once for each sample.

    Args:
        model: A `keras.Model`.
        mode: One of `keras_vdrop.core.sampling.MODES`.
        num_samples: Positive integer.
        seed: Integer, or `None` for a random one.
        dropout: Boolean, whether the dropout layers of the model are on.
    """

    def __init__(
        self,
        model: Any,
        mode: str,
        num_samples: int,
        seed: int | None,
        dropout: bool = False,
    ):
        self.model = model
        self.mode = mode
        self.num_samples = num_samples
        self.dropout = MonteCarloDropout(model) if dropout else None
        words = InitialState(seed).words
        self.seed = words[0] << 31 | words[1]
        # What each sample has left in variables of the model, such as the
        # states of recurrent layers, for the next part of the data.
        self.left: dict[int, dict] = {}
        self.part = 0
        self.weights: list[RandomWeight] = []

    def run(self, part: Part, add: Callable) -> None:
        """Calls `add` with the outputs of the model for each sample.

        Another call goes on with the next part of the data.
        """
        model = self.model
        with _lock(model):
            if any(not layer.built for layer in variational_layers(model)):
                part.predict(model)
            self.weights = [
                weight
                for layer in variational_layers(model)
                for weight in layer.random_weights
            ]
            with self._predict_function():
                done = self._run_at_once(part, add)
                if done < self.num_samples:
                    self._run_in_turn(part, add, done)
        self.part += 1

    def _run_in_turn(self, part: Part, add: Callable, first: int) -> None:
        with restored(self.model) as before:
            for number in range(first, self.num_samples):
                self._begin(number, before)
                add(self._predict(part, number))
                if not part.is_all:
                    self._end(number, before)

    def _predict(self, part: Part, number: int) -> Any:
        if self.dropout is None:
            return part.predict(self.model)
        salt = f"{number} dropout {self.part}"
        with self.dropout.seeded(self.seed, salt):
            return part.predict(self.model)

    def _run_at_once(self, part: Part, add: Callable) -> int:
        """Runs as many samples as it can in one program, and counts them."""
        model = self.model
        if self.dropout or part.is_spread(model):
            return 0
        if not at_once.is_possible(model):
            return 0
        key = "at once", *_fingerprint(model, self.mode, False)
        key += tuple(map(id, model.variables))
        if key in _functions:
            way = _functions.pop(key)
        else:
            way = at_once.way_of(model, self.weights, self.mode)
        done = 0
        try:
            for sample in self._together(way, part) if way else ():
                add(sample)
                done += 1
        except Exception:
            # The model has an operation that the backend cannot vectorize, or
            # needs more memory. Any other error comes again, one by one.
            way = None
        # `None` too, so that it is not tried again.
        _remember(key, way)
        return done

    def _together(self, way: at_once.Way, part: Part) -> Iterator[Any]:
        """The outputs of each sample, as many at a time as fit."""
        weights = self.weights if self.mode == "weights" else []
        most = way.samples_in_memory(part.batches)
        # Of as equal sizes as can be, because each is compiled.
        turns = -(-self.num_samples // most)
        for numbers in np.array_split(range(self.num_samples), turns):
            states = self._states(numbers)
            samples = self._samples(weights, states, [])
            others = [states[w] for w in self.weights if w not in samples]
            yield from way.predict(part.batches, [*samples.values()], others)

    def _begin(self, number: int, before: list) -> None:
        weights = self.weights if self.mode == "weights" else []
        sampled = [w for w in weights if w.mean_variable is not None]
        states = self._states([number])
        samples = self._samples(sampled, states, before)
        left = self.left.get(number, {})
        replaced = {id(weight.seed_state) for weight in self.weights}
        replaced |= {id(weight.mean_variable) for weight in sampled}
        for variable, value in before:
            if not variable.trainable and id(variable) not in replaced:
                # A copy, because jax donates the arrays of the variables.
                variable.assign(ops.copy(left.get(id(variable), value)))
        for weight, rows in states.items():
            if weight in samples:
                weight.mean_variable.assign(samples[weight][0])
            else:
                weight.seed_state.assign(rows[0])

    def _states(self, numbers: Iterable[int]) -> dict[RandomWeight, Any]:
        """The states of the generators for samples, in rows."""
        return {
            weight: backend.states_of(
                [
                    InitialState(self.seed, self._salt(number, index)).words
                    for number in numbers
                ],
                backend.SEED_DTYPE,
            )
            for index, weight in enumerate(self.weights)
        }

    def _samples(
        self, weights: list[RandomWeight], states: dict, before: list
    ) -> dict[RandomWeight, Any]:
        """Samples of weights, one for each state, by a compiled function."""
        if not weights:
            return {}
        means = {id(variable): value for variable, value in before}
        values = [
            [
                ops.convert_to_tensor(means.get(id(variable), variable))
                for variable in weight.sources()
            ]
            for weight in weights
        ]
        key = id(self.model), *map(id, weights)
        if key not in _functions:
            _remember(key, backend.compiled(_sample_function(weights)))
        found = _functions[key](values, [states[weight] for weight in weights])
        return dict(zip(weights, found, strict=True))

    def _salt(self, number: int, index: int) -> str:
        if self.mode == "local":
            return f"{number} {index} {self.part}"
        return f"{number} {index}"

    def _end(self, number: int, before: list) -> None:
        random = {id(weight.mean_variable) for weight in self.weights}
        self.left[number] = {
            id(variable): ops.copy(variable)
            for variable, value in before
            if id(variable) not in random
            and not variable.trainable
            and not bool(ops.all(ops.equal(variable, value)))
        }

    @contextlib.contextmanager
    def _predict_function(self) -> Iterator[None]:
        """The model's own compiled function, or one with noise in it."""
        on_weights = all(w.mean_variable is not None for w in self.weights)
        if self.mode == "weights" and on_weights and self.dropout is None:
            with backend.outputs_here(self.model):
                yield
            return
        model = self.model
        key = _fingerprint(model, self.mode, self.dropout is not None)
        plain = model.predict_function
        model.predict_function = _functions.pop(key, None)
        try:
            with (
                sampling.scope(
                    self.mode,
                    tuple(every_layer(model)),
                    dropout=self.dropout is not None,
                ),
                self.dropout or contextlib.nullcontext(),
                backend.outputs_here(model),
            ):
                yield
            _remember(key, model.predict_function)
        finally:
            model.predict_function = plain


def _remember(key: tuple, function: Any) -> None:
    _functions[key] = function
    while len(_functions) > FUNCTIONS:
        _functions.popitem(last=False)


def _sample_function(weights: list[RandomWeight]) -> Callable:
    """A function of values of the variables and states of the seeds."""

    def samples(values: list, states: list) -> list:
        mapping = [
            (variable, value)
            for weight, found in zip(weights, values, strict=True)
            for variable, value in zip(weight.sources(), found, strict=True)
        ]
        with keras.StatelessScope(mapping):
            found = [
                weight.samples(rows)
                for weight, rows in zip(weights, states, strict=True)
            ]
        return [
            x if w.mean_variable is None else ops.cast(x, w.mean_variable.dtype)
            for w, x in zip(weights, found, strict=True)
        ]

    return samples


def _fingerprint(model: Any, mode: str, dropout: bool) -> tuple:
    """What a compiled function depends on, beside the shapes of the data.

    The config has the estimators of the layers too.
    """
    try:
        config = repr(model.get_config())
    except Exception:  # A class of a user that has none.
        config = repr(object())
    return (
        id(model),
        mode,
        dropout,
        config,
        # More once weights were pruned.
        len(model.weights),
        model.run_eagerly,
        getattr(model, "jit_compile", None),
        getattr(model, "steps_per_execution", None),
        id(keras.distribution.distribution()),
    )


def _lock(model: Any) -> Any:
    with _new_lock:
        return _locks.setdefault(model, threading.RLock())
