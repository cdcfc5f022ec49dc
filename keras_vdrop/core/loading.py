"""The noise of a layer in a file: log alpha, whatever its scale."""

import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from keras_vdrop import backend

# Keras tries a layer of a `Sequential` again by a path that is in no file and
# tells the last error (3.15, saving/saving_lib.py): what the first one was.
_refused: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def save_noise(weight: Any, store: Any) -> None:
    """Writes the weights of a `RandomWeight`."""
    for variable in weight.weights:
        (value,) = backend.to_numpy([variable])
        if variable is weight.variable:
            # Of the array: of the variable each process would have to.
            (value,) = backend.to_numpy([weight.posterior.read(value)])
        store[variable.name] = value


def load_noise(weight: Any, store: Any) -> None:
    """Reads what `save_noise` wrote, or refuses other weights."""
    check_noise(weight, store)
    for variable in weight.weights:
        if variable.name in store.keys():
            _in_file(weight, variable).assign(store[variable.name])


def _in_file(weight: Any, variable: Any) -> Any:
    return weight.unscaled() if variable is weight.variable else variable


def check_noise(weight: Any, store: Any) -> None:
    """Raises an error before anything is assigned.

    Args:
        weight: A built `RandomWeight`.
        store: What is to be loaded, as Keras gives it.
    """
    found = {key: np.shape(store[key]) for key in store.keys()}
    expected = {x.name: tuple(x.shape) for x in weight.weights}
    # A layer has this variable once a weight of it was pruned.
    expected.pop("pruned", None)
    noise = [x for name, x in expected.items() if name != "seed_state"]
    pruned = {**expected, "pruned": noise[0]} if noise else expected
    if found in (expected, pruned):
        return
    message = (
        f"Layer '{weight.owner}' cannot load the noise of its "
        f"{weight.name.removesuffix('_noise')}. Expected {_noise(expected)}. "
        f"Received: {_noise(found)}. Load the weights into a layer with the "
        "`parameterization` and `granularity` of the layer that was saved."
    )
    if isinstance(store, Hashable):
        messages = _refused.setdefault(store, {})
        message = messages.setdefault(id(weight), message)
    raise ValueError(message)


def _noise(shapes: dict[str, tuple]) -> str:
    for name in ("log_alpha", "log_variance"):
        if name in shapes:
            return f"{name} of shape {shapes[name]}"
    return "no noise"
