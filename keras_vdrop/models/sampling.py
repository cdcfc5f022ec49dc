"""`model.predict` with samples of the weights, and the model as it was."""

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import sampling
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.models.monte_carlo_dropout import MonteCarloDropout
from keras_vdrop.models.parts import Part
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
            with _restored(model) as before, self._predict_function():
                for number in range(self.num_samples):
                    self._begin(number, before)
                    add(self._predict(part, number))
                    if not part.is_all:
                        self._end(number, before)
        self.part += 1

    def _predict(self, part: Part, number: int) -> Any:
        if self.dropout is None:
            return part.predict(self.model)
        salt = f"{number} dropout {self.part}"
        with self.dropout.seeded(self.seed, salt):
            return part.predict(self.model)

    def _begin(self, number: int, before: list) -> None:
        left = self.left.get(number, {})
        replaced = self._replaced()
        for variable, value in before:
            if not variable.trainable and id(variable) not in replaced:
                # A copy, because jax donates the arrays of the variables.
                variable.assign(ops.copy(left.get(id(variable), value)))
        words = [
            InitialState(self.seed, self._salt(number, index)).words
            for index in range(len(self.weights))
        ]
        if self.mode == "local":
            for weight, state in zip(self.weights, words, strict=True):
                weight.seed_state.assign(state)
            return
        if not self.weights:
            return
        means = {id(variable): value for variable, value in before}
        values = [
            (
                ops.convert_to_tensor(w.variable),
                means.get(id(w.mean_variable)),
                None if w.pruned is None else ops.convert_to_tensor(w.pruned),
            )
            for w in self.weights
        ]
        states = ops.convert_to_tensor(words, backend.SEED_DTYPE)
        samples = self._sample(values, states)
        for weight, state, sample in zip(
            self.weights, words, samples, strict=True
        ):
            if weight.mean_variable is None:
                weight.seed_state.assign(state)
            else:
                weight.mean_variable.assign(sample)

    def _replaced(self) -> set[int]:
        """The variables that a sample replaces, by their identity."""
        found = {id(weight.seed_state) for weight in self.weights}
        if self.mode == "weights":
            found |= {id(weight.mean_variable) for weight in self.weights}
        return found

    def _salt(self, number: int, index: int) -> str:
        if self.mode == "local":
            return f"{number} {index} {self.part}"
        return f"{number} {index}"

    def _sample(self, values: list, states: Any) -> list:
        """One sample of each weight, by a compiled function."""
        key = (id(self.model), *map(id, self.weights))
        if key not in _functions:
            _remember(key, backend.compiled(_sample_function(self.weights)))
        return _functions[key](values, states)

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


def _remember(key: tuple, function: Callable) -> None:
    _functions[key] = function
    while len(_functions) > FUNCTIONS:
        _functions.popitem(last=False)


def _sample_function(weights: list[RandomWeight]) -> Callable:
    """A function of values of the variables and states of the seeds."""

    def sample(values: list, states: Any) -> list:
        mapping = []
        for weight, found in zip(weights, values, strict=True):
            variables = weight.variable, weight.mean_variable, weight.pruned
            mapping += [
                (variable, value)
                for variable, value in zip(variables, found, strict=True)
                if value is not None
            ]
        samples = []
        with keras.StatelessScope(mapping):
            for number, weight in enumerate(weights):
                with weight.generator.hold(backend.draw_key(states[number])):
                    found = weight.sample()
                if weight.mean_variable is not None:
                    found = ops.cast(found, weight.mean_variable.dtype)
                samples.append(found)
        return samples

    return sample


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


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[list]:
    """Whatever happens in here, the variables are the same afterwards.

    Gives pairs of all variables that may change and their values.
    """
    variables = list(model.non_trainable_variables)
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            if weight.mean_variable is not None:
                variables.append(weight.mean_variable)
    if hasattr(model, "jax_state_sync"):
        # There `predict` takes all of them out of the model.
        variables = list(model.variables)
    # Keras does not count the states of recurrent layers as variables (3.15,
    # layers/rnn/rnn.py).
    for layer in every_layer(model):
        states = getattr(layer, "states", None)
        if getattr(layer, "stateful", False) and states is not None:
            variables += keras.tree.flatten(states)
    before = [(variable, ops.copy(variable)) for variable in variables]
    try:
        yield before
    finally:
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        for variable, value in before:
            variable.assign(value)
