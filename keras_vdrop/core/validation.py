"""One wording for every refused argument."""

import math
import numbers
import operator
from collections.abc import Collection
from typing import Any


def invalid(
    argument: str, expected: str, value: Any, fix: str = ""
) -> ValueError:
    """The error for a bad argument: what was expected, what came, the fix."""
    message = (
        f"Invalid value for argument `{argument}`. Expected {expected}. "
        f"Received: {argument}={value!r}"
    )
    return ValueError(f"{message}. {fix}" if fix else message)


def check_choice(argument: str, value: Any, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise invalid(argument, f"one of {tuple(choices)}", value)
    return value


def check_bool(argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(argument, "a bool", value)
    return value


def check_limit(argument: str, value: Any) -> float:
    """A finite number, for log alpha to be compared with."""
    if not _is_number(value) or not math.isfinite(value):
        raise invalid(argument, "a finite float, a limit for log alpha", value)
    return float(value)


def check_positive(argument: str, value: Any) -> float:
    """A finite number above zero, as a float that JSON can hold."""
    if not _is_number(value) or not 0 < value < float("inf"):
        raise invalid(argument, "a finite float above 0", value)
    return float(value)


def check_power_of_two(argument: str, value: Any) -> float:
    """A finite number 2**n, by which floats are scaled without rounding."""
    if (
        not _is_number(value)
        or not 0 < value < float("inf")
        or math.frexp(value)[0] != 0.5
    ):
        raise invalid(argument, "a power of two", value)
    return float(value)


def check_rate(argument: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value < 1:
        raise invalid(argument, "a float in (0, 1)", value)
    return float(value)


def check_share(argument: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise invalid(argument, "a float in [0, 1]", value)
    return float(value)


def check_count(argument: str, value: Any) -> int:
    """A positive integer of Python, numpy or a backend."""
    number = as_integer(value)
    if number is None or number <= 0:
        raise invalid(argument, "a positive integer", value)
    return number


def as_integer(value: Any) -> int | None:
    """What an integer or a scalar tensor of integers is, or `None`."""
    kind = str(getattr(value, "dtype", type(value).__name__))
    if "bool" in kind or len(getattr(value, "shape", ())):
        return None
    try:
        return operator.index(value)
    except (AttributeError, TypeError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
