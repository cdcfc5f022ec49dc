"""Noise outside training, for predictions that tell how sure they are."""

import contextlib
import contextvars

_on = contextvars.ContextVar("keras_vdrop_sampling", default=False)


def is_on():
    return _on.get()


@contextlib.contextmanager
def scope():
    """Variational layers called in here draw noise; no other layer changes.

    What counts is when the call is traced: a function compiled in here goes
    on drawing noise, and one compiled before does not begin to.
    """
    token = _on.set(True)
    try:
        yield
    finally:
        _on.reset(token)
