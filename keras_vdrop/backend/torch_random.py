"""Keys and random numbers on torch; `default.py` documents the names."""

from typing import Any

import torch
import torch.distributed

# The constants of splitmix64 (Steele, Lea, Flood 2014).
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB


def is_recomputed(state: Any, following: Any) -> bool:
    del state, following
    if torch.compiler.is_compiling():
        return False
    # There is no task outside of a backward pass (torch 2.13,
    # utils/checkpoint.py asks the same).
    return torch._C._current_graph_task_id() != -1


# Generators are unknown to the compiler: pytorch issue 88576.
@torch.compiler.disable()
def draw_key(state: Any) -> Any:
    if state.device.type == "meta":
        return state[:2]
    rank = 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    return _key(_hash(*state.tolist(), rank), state.device)


@torch.compiler.disable()
def fold_key(key: Any, number: int) -> Any:
    if key.device.type == "meta":
        return key
    return _key(_hash(*key.tolist(), number), key.device)


@torch.compiler.disable()
def split_key(key: Any, count: Any) -> Any:
    if key.device.type == "meta":
        return key.new_empty((count, 2))
    return torch.stack([fold_key(key, number) for number in range(count)])


@torch.compiler.disable()
def normal(key: Any, shape: Any, dtype: str) -> Any:
    options = {"dtype": getattr(torch, dtype), "device": key.device}
    if key.device.type == "meta":
        return torch.empty(shape, **options)
    first, second = key.tolist()
    generator = torch.Generator(key.device)
    generator.manual_seed(first << 32 | second)
    return torch.randn(shape, generator=generator, **options)


def _key(bits: int, device: Any) -> Any:
    words = [bits >> 33, bits & 2**32 - 1]
    return torch.tensor(words, dtype=torch.int64, device=device)


def _hash(*numbers: int) -> int:
    """64 well mixed bits of some integers."""
    state = 0
    for number in numbers:
        state = (state ^ number) + GOLDEN & 2**64 - 1
        state = (state ^ state >> 30) * FIRST_FACTOR & 2**64 - 1
        state = (state ^ state >> 27) * SECOND_FACTOR & 2**64 - 1
        state ^= state >> 31
    return state
