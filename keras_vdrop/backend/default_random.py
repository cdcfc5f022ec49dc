"""Keys and random numbers by `keras.ops`; `default.py` has the other names."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def is_recomputed(state: Any, following: Any) -> bool:
    """Whether a draw is inside a call that the backward pass repeats.

    Args:
        state: The state of a generator, a tensor.
        following: The state after the draw.
    """
    del state, following
    return False


def state_after(state: Any) -> Any:
    """The state of a generator after a draw."""
    return state + ops.convert_to_tensor([0, 0, 1], state.dtype)


def assign_state(variable: Any, state: Any, following: Any) -> None:
    """Gives the variable of a state the state that follows."""
    del state
    variable.assign(following)


def draw_key(state: Any) -> Any:
    """The key of one draw, integers, different on each replica and rank.

    Args:
        state: Integer tensor of shape `(3,)`: two words of a seed and the
            number of draws so far.
    """
    return ops.stack([state[0], state[1] + state[2]])


# The key of a draw that is the same on all replicas.
shared_key = draw_key


def fold_key(key: Any, number: int) -> Any:
    """Another key, which follows from a key and a number."""
    return key + ops.convert_to_tensor([number, 0], key.dtype)


def split_key(key: Any, count: Any) -> Any:
    """Several keys, which follow from one: in a first axis."""
    numbers = ops.arange(count, dtype=key.dtype)
    return key + ops.stack([numbers, ops.zeros_like(numbers)], axis=-1)


def states_of(words: Any, dtype: str) -> Any:
    """States of a generator, one in each row, whose numbers the host knows."""
    return ops.convert_to_tensor(words, dtype)


def for_each_state(function: Callable, states: Any) -> Any:
    """`function(state)` for each row, in a first axis."""
    found = [function(state) for state in ops.unstack(states)]
    return ops.stack(found) if len(found) > 1 else found[0][None]


def normal(key: Any, shape: Any, dtype: str) -> Any:
    """Standard normal numbers, the same for the same key."""
    return keras.random.normal(shape, dtype=dtype, seed=int(key[0] ^ key[1]))


def random_state(seed: int) -> Any:
    """A scope in which random numbers without a seed follow from this one."""
    del seed
    return contextlib.nullcontext()
