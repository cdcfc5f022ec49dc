"""Noise outside training, for predictions that tell how sure they are."""

import contextlib
import contextvars
from collections.abc import Iterator

# "weights": the weights are samples, and noise that is on no weight is one
# draw for all examples. "local": noise as in training.
MODES = ("weights", "local")

_mode: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "keras_vdrop_sampling", default=None
)


def mode() -> str | None:
    """How variational layers sample outside training, or `None`."""
    return _mode.get()


@contextlib.contextmanager
def scope(mode: str) -> Iterator[None]:
    """Variational layers called in here draw noise; no other layer changes.

    What counts is when the call is traced: a function compiled in here goes
    on drawing noise, and one compiled before does not begin to.
    """
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)
