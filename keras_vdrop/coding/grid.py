"""Arrays whose values are all multiples of one power of two."""

from typing import Any

import numpy as np

# Integers of more bits than this are no shorter than the floats themselves.
MOST_BITS = 16


def nearest_step(deviation: float) -> float:
    """The power of two nearest to a positive number, by ratio."""
    return float(2.0 ** np.clip(np.rint(np.log2(deviation)), -120, 120))


def rounded(values: Any, step: float) -> Any:
    """The nearest multiples of a step, in float64, none of them -0."""
    return np.rint(np.asarray(values, "float64") / step) * step + 0.0


def find_exponent(array: Any) -> int | None:
    """The largest e such that all values are integers of few bits times 2**e.

    Returns `None` if there is none, or if a value is -0, infinite or NaN: such
    arrays are better kept as they are.
    """
    if array.dtype.kind not in "biuf":
        return None
    values = array.ravel()
    if array.dtype.kind == "f":
        if not np.isfinite(values).all():
            return None
        if np.signbit(values[values == 0]).any():
            return None
    values = values[values != 0].astype("float64")
    if not values.size:
        return 0
    if np.abs(values).max() >= 2.0**53:
        return None
    mantissa, power = np.frexp(values)
    digits = (np.abs(mantissa) * 2.0**53).astype("int64")
    trailing = np.frexp((digits & -digits).astype("float64"))[1] - 1
    lowest = int((power - 53 + trailing).min())
    return lowest if power.max() - lowest <= MOST_BITS else None


def to_integers(array: Any, exponent: int) -> Any:
    """The integers that are multiplied by `2**exponent`."""
    return np.rint(np.ldexp(array.astype("float64"), -exponent)).astype("int64")


def from_integers(integers: Any, exponent: int, dtype: Any) -> Any:
    """The inverse of `to_integers`."""
    return np.ldexp(integers.astype("float64"), exponent).astype(dtype)
