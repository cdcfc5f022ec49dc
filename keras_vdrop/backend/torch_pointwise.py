"""Pointwise operations on torch; `default.py` documents the names."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch


class Function(torch.autograd.Function):
    """A function with a derivative of its own, which also runs in `vmap`."""

    generate_vmap_rule = True


def apply(function: Any, forward_mode: Any, *arguments: Any) -> Any:
    """`function.apply(*arguments)`, in less time for small tensors.

    Args:
        function: A `Function`.
        forward_mode: The same with a `jvp`. The compiler does not take a
            function that has one (torch 2.13).
        *arguments: Its arguments.
    """
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    if (
        torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    ):
        return forward_mode.apply(*arguments)
    arguments = torch._functorch.utils.unwrap_dead_wrappers(arguments)
    # What is skipped fills in default arguments, and takes longer than the
    # function of a small tensor (torch 2.13, autograd/function.py).
    return super(torch.autograd.Function, function).apply(*arguments)


def with_gradient(gradient: Callable, kept_from: int = 0) -> Callable:
    def decorate(function: Callable) -> Callable:
        class Pointwise(Function):
            @staticmethod
            def forward(*arguments: Any) -> Any:
                return function(*arguments)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
                # Tensors and then numbers.
                ctx.numbers = [x for x in inputs if isinstance(x, float)]
                kept = inputs[kept_from : len(inputs) - len(ctx.numbers)]
                ctx.save_for_backward(*kept)

            @staticmethod
            def backward(ctx: Any, upstream: Any) -> tuple:
                found = gradient(upstream, *ctx.saved_tensors, *ctx.numbers)
                return *found, *(None for _ in ctx.numbers)

        class ForwardMode(Pointwise):
            @staticmethod
            def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
                Pointwise.setup_context(ctx, inputs, output)
                ctx.save_for_forward(*ctx.to_save)

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                # The derivative of a pointwise function is what it makes of an
                # upstream gradient of 1.
                one = next(x for x in tangents if x is not None)
                one = torch.ones_like(one)
                slopes = gradient(one, *ctx.saved_tensors, *ctx.numbers)
                products = [
                    slope * tangent
                    for slope, tangent in zip(slopes, tangents, strict=False)
                    if slope is not None and tangent is not None
                ]
                return sum(products) if products else 0 * one

        def call(*arguments: Any, **numbers: float) -> Any:
            if torch.compiler.is_compiling() and not torch.is_grad_enabled():
                # The compiler would pass a context too (torch 2.13,
                # _dynamo/variables/misc.py).
                return function(*arguments, *numbers.values())
            return apply(Pointwise, ForwardMode, *arguments, *numbers.values())

        return call

    return decorate


with_backward = with_gradient


def in_place() -> bool:
    """Whether no derivative and no `vmap` needs the memory of arguments."""
    transformed = torch._C._are_functorch_transforms_active()
    return not torch.is_grad_enabled() and not transformed


def times(x: Any, y: Any) -> Any:
    return x.mul_(y) if in_place() else x * y


def times_rest(x: Any, y: Any) -> Any:
    return x.addcmul_(x, y, value=-1) if in_place() else x - x * y


def plus(x: Any, y: Any, factor: float | None = None) -> Any:
    factor = 1 if factor is None else factor
    if in_place():
        return x.add_(y, alpha=factor)
    return torch.add(x, y, alpha=factor)


def horner(powers: Sequence[float], z: Any) -> Any:
    *others, before, last = powers
    value = plus(z * last, before)
    if not in_place() or torch.compiler.is_compiling():
        for power in reversed(others):
            value = value * z + power
        return value
    # One pass over memory for a product and a sum: half the time.
    for power in reversed(_constants(tuple(others), z.dtype, z.device)):
        torch.addcmul(power, value, z, out=value)
    return value


@functools.lru_cache(maxsize=64)
def _constants(numbers: tuple, dtype: Any, device: Any) -> list:
    return [torch.tensor(x, dtype=dtype, device=device) for x in numbers]


def at_least(x: Any, limit: float) -> Any:
    # Keras makes a tensor of the number first, which takes longer.
    return x.clamp(min=limit)


def at_most(x: Any, limit: Any) -> Any:
    return x.clamp(max=limit)


def hard_limit(x: Any, limit: float) -> Any:
    return x.clamp(max=limit)


def without_outward(gradient: Any, x: Any, limit: Any) -> Any:
    above, below = x > limit, gradient < 0
    outward = above.logical_and_(below) if in_place() else above & below
    return zero_where(outward, gradient)


def zero_where(condition: Any, x: Any) -> Any:
    if in_place():
        return x.masked_fill_(condition, 0)
    return x.masked_fill(condition, 0)
