"""The inputs and the weights of a layer that only its own code knows."""

from collections.abc import Iterator
from typing import Any

import keras

from keras_vdrop.core import validation


def symbolic(x: Any) -> Any:
    """A symbolic tensor in the place of a tensor or an array."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        dtype = keras.backend.standardize_dtype(x.dtype)
        return keras.KerasTensor(x.shape, dtype)
    return x


def to_text(x: Any) -> Any:
    """Of a symbolic tensor, for JSON: `"tensor float32 None 3"`."""
    if not isinstance(x, keras.KerasTensor):
        return x
    return " ".join(map(str, ("tensor", x.dtype, *x.shape)))


def from_text(text: Any) -> Any:
    """The inverse of `to_text`."""
    if not isinstance(text, str) or not text.startswith("tensor "):
        return text
    _, dtype, *sizes = text.split()
    shape = [None if size == "None" else int(size) for size in sizes]
    return keras.KerasTensor(shape, dtype)


def variables(layer: Any) -> dict[str, Any]:
    """The weights of a layer by their paths inside the layer, each once."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path, variable in _paths(layer, ""):
        if id(variable) not in seen:
            seen.add(id(variable))
            # Layers inside may have the same name.
            number, name = 0, path
            while name in found:
                number += 1
                name = f"{path}_{number}"
            found[name] = variable
    return found


def _paths(layer: Any, start: str) -> Iterator[tuple[str, Any]]:
    for variable in layer._trainable_variables + layer._non_trainable_variables:
        yield f"{start}{variable.name}", variable
    for child in layer._flatten_layers(include_self=False, recursive=False):
        yield from _paths(child, f"{start}{child.name}/")


def choose(layer: Any, names: list[str] | None) -> list[tuple[str, Any]]:
    """The weights of a layer that have these names, or that look random.

    Args:
        layer: A built layer.
        names: Names of weights or ends of their paths, or `None` for kernels
            and tables.
    """
    every = variables(layer)
    floating = {
        path: variable
        for path, variable in every.items()
        if keras.backend.is_float_dtype(variable.dtype)
    }
    if names is None:
        trained = made_trainable(layer)
        chosen = {
            path: variable
            for path, variable in floating.items()
            if id(variable) in trained
            and len(variable.shape) >= 2
            # That of a GRU has two axes.
            and not variable.name.endswith("bias")
        }
    else:
        matches = [
            {path for path in floating if f"/{path}".endswith(f"/{name}")}
            for name in names
        ]
        asked = set().union(*matches) if all(matches) else set()
        chosen = {path: v for path, v in floating.items() if path in asked}
    if not chosen:
        raise validation.invalid(
            "weights",
            f"some of the weights of layer '{layer.name}', {list(floating)}",
            names,
        )
    return list(chosen.items())


def made_trainable(layer: Any) -> set[int]:
    # Not those that are trainable now: a layer may be frozen when it is saved.
    return {
        id(variable)
        for inside in layer._flatten_layers()
        for variable in inside._trainable_variables
    }


def has_state(layer: Any) -> bool:
    trained = made_trainable(layer)
    return any(id(variable) not in trained for variable in layer.variables)


def unused(name: str, owner: Any) -> str:
    """A name that no attribute has yet."""
    number, found = 0, name
    while hasattr(owner, found):
        number += 1
        found = f"{name}_{number}"
    return found
