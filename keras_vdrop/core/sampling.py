"""Noise outside training, for predictions that tell how sure they are."""

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from keras_vdrop import backend

# "weights": the weights are samples, and noise that is on no weight is one
# draw for all examples. "local": noise as in training.
MODES = ("weights", "local")


@dataclasses.dataclass(frozen=True)
class Scope:
    """What is random in the layers of a model.

    Args:
        mode: One of `MODES`.
        dropout: Whether the dropout layers of Keras are as in training.
        layers: Their layers.
    """

    mode: str
    dropout: bool
    layers: tuple[Any, ...]


_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar(
    "keras_vdrop_sampling", default=None
)
# Those of all threads.
_open: list[Scope] = []
_changing = threading.Lock()


@backend.traced_once
def _scope_here() -> Scope | None:
    return _scope.get()


def scope_of(layer: Any) -> Scope | None:
    """The scope that a call of a layer is in."""
    found = _scope_here()
    if found is not None or backend.replica() is None:
        return found
    # A thread of a replica, which the scope of its caller does not reach.
    with _changing:
        scopes = reversed(_open)
        return next((x for x in scopes if layer in x.layers), None)


def mode(layer: Any) -> str | None:
    """How a variational layer samples outside training, or `None`."""
    found = scope_of(layer)
    return None if found is None else found.mode


@contextlib.contextmanager
def scope(
    mode: str, layers: Sequence[Any], dropout: bool = False
) -> Iterator[None]:
    """Variational layers called in here draw noise; no other layer changes.

    What counts is when the call is traced: a function compiled in here goes
    on drawing noise, and one compiled before does not begin to. Other threads
    are not in the scope, but those of replicas are for `layers`.
    """
    own = Scope(mode, dropout, tuple(layers))
    with _changing:
        _open.append(own)
    token = _scope.set(own)
    try:
        yield
    finally:
        _scope.reset(token)
        with _changing:
            _open[:] = [x for x in _open if x is not own]
