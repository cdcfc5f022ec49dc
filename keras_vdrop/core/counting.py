"""Callbacks that will say how many training examples there are.

`fit` builds a model before it asks any callback, and the loss of that is not
used. Whether a callback will know the number by the first step is told here.
"""

import weakref
from typing import Any

import keras

_counters: weakref.WeakSet = weakref.WeakSet()


def announce(counter: Any) -> None:
    """A callback that counts, for as long as it lives."""
    _counters.add(counter)


def is_pending(variable: Any) -> bool:
    """Whether this is the symbolic build of a `fit` that may be counted.

    Args:
        variable: A variable of the model.
    """
    if not _counters:
        return False
    with keras.StatelessScope(initialize_variables=False) as scope:
        outer = scope.original_scope
    # A compiled step has values for the variables, a symbolic build has none.
    return outer is not None and outer.get_current_value(variable) is None
