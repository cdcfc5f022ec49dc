"""The work of a limit left out on torch; `default.py` documents the names."""

import math
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from keras_vdrop.backend.default import FEW

# By a tensor that was limited: the limit, the versions of the tensors that this
# follows from, and for how many looks it holds. An optimizer that changes
# `param.data` leaves the version as it is, and so it is forgotten soon.
_limited = WeakIdKeyDictionary()


def remember_limit(made_of: Sequence, limit: float, looks: int) -> None:
    versions = _versions(made_of)
    if versions:
        # The value that is about to be assigned counts as a change.
        versions[0] = versions[0][0], versions[0][1] + 1
        _limited[made_of[0]] = limit, versions, looks


def unless_above(
    largest: Callable,
    limit: float,
    limited: Callable,
    plain: Callable,
    made_of: Sequence,
    exponential: Callable | None = None,
) -> Any:
    del exponential
    x = made_of[0]
    # A look at a value of another device would wait for it.
    is_slow = x.device.type != "cpu" or torch.compiler.is_compiling()
    if is_slow or x.numel() < FEW:
        return limited()
    known, versions, looks = _limited.pop(x, (math.inf, None, 0))
    if known <= limit and versions == _versions(made_of):
        if looks > 1:
            _limited[x] = known, versions, looks - 1
        return plain()
    try:
        with torch.no_grad():
            # Not `>`, which NaN fails.
            within = bool(largest() <= limit)
    except RuntimeError:  # A vmap over `x` has no single value.
        return limited()
    return plain() if within else limited()


def _versions(tensors: Sequence) -> list:
    if torch.compiler.is_compiling() or any(x.is_inference() for x in tensors):
        return []
    return [(weakref.ref(x), x._version) for x in tensors]
