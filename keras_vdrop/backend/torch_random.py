"""Keys and random numbers on torch; `default.py` documents the names.

The numbers come from torch's own generators, and the host computes what seeds
them. A compiler and a CUDA graph record operations on tensors alone: there, the
same keys and other numbers come from such operations, in torch_recorded.py.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import torch
import torch.distributed
from keras import ops
from torch.utils.weak import WeakIdKeyDictionary

from keras_vdrop.backend import torch_recorded
from keras_vdrop.backend.torch_recorded import FIRST_FACTOR
from keras_vdrop.backend.torch_recorded import GOLDEN
from keras_vdrop.backend.torch_recorded import SECOND_FACTOR
from keras_vdrop.backend.torch_recorded import is_recording
from keras_vdrop.backend.torch_recorded import signed


def is_recomputed(state: Any, following: Any) -> bool:
    del following
    if is_recording(state):
        # The compiler has its own way to compute again, with the same noise.
        return False
    # There is no task outside of a backward pass (torch 2.13,
    # utils/checkpoint.py asks the same).
    return torch._C._current_graph_task_id() != -1


def state_after(state: Any) -> Any:
    if is_recording(state):
        return torch_recorded.state_after(state)
    return state + _one_draw(state.device)


@functools.cache
def _one_draw(device: Any) -> Any:
    return torch.tensor([0, 0, 1], device=device)


def assign_state(variable: Any, state: Any, following: Any) -> None:
    if state.device.type == "meta":
        return
    if is_recording(state):
        variable.assign(following)
        return
    first, second, draws = _read(state)
    version = state._version
    variable.assign(following)
    # In a stateless scope the variable is left as it is.
    assigned = state if state._version == version + 1 else following
    _know(assigned, [first, second, draws + 1])


def draw_key(state: Any) -> Any:
    if state.device.type == "meta":
        return state[0]
    rank = 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    if is_recording(state):
        return torch_recorded.hashed(*state.unbind(), rank)
    return _key(_hash(*_read(state), rank), state.device)


shared_key = draw_key


def fold_key(key: Any, number: int) -> Any:
    if key.device.type == "meta":
        return key
    if is_recording(key):
        return torch_recorded.hashed(key, number)
    return _key(_hash(*_read(key), number), key.device)


def split_key(key: Any, count: Any) -> Any:
    if key.device.type == "meta":
        return key.new_empty((count,))
    numbers = torch.arange(count, device=key.device)
    keys = torch_recorded.hashed(key, numbers)
    if not is_recording(key):
        (bits,) = _read(key)
        _know(keys, [signed(_hash(bits, number)) for number in range(count)])
    return keys


def states_of(words: Any, dtype: str) -> Any:
    states = ops.convert_to_tensor(words, dtype)
    _know(states, [number for row in words for number in row])
    return states


def for_each_state(function: Callable, states: Any) -> Any:
    numbers, rows = _read(states), states.unbind()
    size = len(numbers) // len(rows)
    for index, row in enumerate(rows):
        _know(row, numbers[index * size : (index + 1) * size])
    found = [function(row) for row in rows]
    return torch.stack(found) if len(found) > 1 else found[0][None]


def map_examples(function: Callable, arguments: Any) -> Any:
    inputs, keys = arguments
    rows = keys.unbind()
    if keys.device.type != "meta" and not is_recording(keys):
        rows = [_key(bits, keys.device) for bits in _read(keys)]
    outputs = map(function, zip(inputs.unbind(), rows, strict=True))
    return keras.tree.map_structure(lambda *x: torch.stack(x), *outputs)


def normal(key: Any, shape: Any, dtype: str) -> Any:
    options = {"dtype": getattr(torch, dtype), "device": key.device}
    if key.device.type == "meta":
        return torch.empty(shape, **options)
    if is_recording(key):
        return torch_recorded.normal(key, shape, **options)
    generator = torch.Generator(key.device)
    generator.manual_seed(*_read(key))
    return torch.randn(shape, generator=generator, **options)


# The numbers in a tensor and its version then. To read them from another device
# would be to wait for all the work that this device still has.
_known = WeakIdKeyDictionary()


def _read(tensor: Any) -> list[int]:
    """The numbers in the state of a generator, or the one in a key."""
    if not tensor.is_inference():
        numbers, version = _known.get(tensor, (None, None))
        if version == tensor._version:
            return numbers
    numbers = tensor.reshape(-1).tolist()
    _know(tensor, numbers)
    return numbers


def _know(tensor: Any, numbers: list[int]) -> None:
    if not tensor.is_inference():
        _known[tensor] = numbers, tensor._version


def _key(bits: int, device: Any) -> Any:
    # The number is an argument of a kernel, and no copy that the host waits
    # for.
    key = torch.full((), signed(bits), dtype=torch.int64, device=device)
    _know(key, [signed(bits)])
    return key


def _hash(*numbers: int) -> int:
    """64 well mixed bits of some integers."""
    state = 0
    for number in numbers:
        state = (state ^ number & 2**64 - 1) + GOLDEN & 2**64 - 1
        state = (state ^ state >> 30) * FIRST_FACTOR & 2**64 - 1
        state = (state ^ state >> 27) * SECOND_FACTOR & 2**64 - 1
        state ^= state >> 31
    return state


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[None]:
    # Dropout without a seed is torch's own (Keras 3.15,
    # backend/torch/random.py).
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
