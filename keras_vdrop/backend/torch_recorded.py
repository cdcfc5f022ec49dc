"""Random numbers on torch by operations on tensors alone.

A compiler and a CUDA graph record these. The keys are those that the host
computes in torch_random.py. A normal number is made of 64 hashed bits of its
key and its position (Box, Muller 1958).
"""

import math
from typing import Any

import torch

# The constants of splitmix64 (Steele, Lea, Flood 2014).
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB


def is_recording(tensor: Any) -> bool:
    """Whether operations on a tensor are recorded, to be run again."""
    if torch.compiler.is_compiling():
        return True
    is_cuda = tensor.device.type == "cuda"
    return is_cuda and torch.cuda.is_current_stream_capturing()


def signed(bits: int) -> int:
    """64 bits as a number that a tensor of int64 can hold."""
    return bits - 2**64 if bits >= 2**63 else bits


def state_after(state: Any) -> Any:
    # No tensor of numbers, which would be a copy from the host.
    return state + (torch.arange(3, device=state.device) == 2)


def hashed(*numbers: Any) -> Any:
    """64 well mixed bits of some integers, of tensors or not."""
    mixed: Any = 0
    for number in numbers:
        mixed = (mixed ^ number) + signed(GOLDEN)
        mixed = (mixed ^ _shifted(mixed, 30)) * signed(FIRST_FACTOR)
        mixed = (mixed ^ _shifted(mixed, 27)) * signed(SECOND_FACTOR)
        mixed = mixed ^ _shifted(mixed, 31)
    return mixed


def normal(key: Any, shape: Any, dtype: Any, device: Any) -> Any:
    """Standard normal numbers of a key."""
    positions = torch.arange(math.prod(shape), device=device)
    bits = hashed(key, positions)
    # Halves of the bits as numbers in (0, 1): the first is never 0.
    first = ((bits & 0xFFFFFFFF).to(dtype) + 0.5) * 2.0**-32
    second = _shifted(bits, 32).to(dtype) * 2.0**-32
    radius = torch.sqrt(-2.0 * torch.log(first))
    return (radius * torch.cos(2.0 * math.pi * second)).reshape(tuple(shape))


def _shifted(bits: Any, count: int) -> Any:
    """Bits shifted to the right. That of int64 keeps the sign."""
    return (bits >> count) & (2 ** (64 - count) - 1)
