"""Pointwise operations on torch; `default.py` documents the names."""

import functools
from collections.abc import Callable
from typing import Any

import torch


class Function(torch.autograd.Function):
    """A function with a derivative of its own, which also runs in `vmap`."""

    generate_vmap_rule = True

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)
        arguments = torch._functorch.utils.unwrap_dead_wrappers(arguments)
        # What is skipped fills in default arguments, and takes longer than the
        # function of a small tensor (torch 2.13, autograd/function.py).
        return super(torch.autograd.Function, cls).apply(*arguments)


def with_gradient(gradient: Callable, kept_from: int = 0) -> Callable:
    def decorate(function: Callable) -> Callable:
        # `vmap` of a tangent knows no other arguments than tensors.
        @functools.cache
        def with_numbers(**numbers: float) -> type[Function]:
            class Pointwise(Function):
                @staticmethod
                def forward(*arguments: Any) -> Any:
                    return function(*arguments, **numbers)

                @staticmethod
                def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
                    ctx.save_for_backward(*inputs[kept_from:])
                    ctx.save_for_forward(*inputs[kept_from:])

                @staticmethod
                def jvp(ctx: Any, *tangents: Any) -> Any:
                    # The derivative of a pointwise function is what it makes
                    # of an upstream gradient of 1.
                    one = next(x for x in tangents if x is not None)
                    one = torch.ones_like(one)
                    slopes = gradient(one, *ctx.saved_tensors, **numbers)
                    pairs = zip(slopes, tangents, strict=True)
                    products = [
                        slope * tangent
                        for slope, tangent in pairs
                        if slope is not None and tangent is not None
                    ]
                    return sum(products) if products else 0 * one

                @staticmethod
                def backward(ctx: Any, upstream: Any) -> tuple:
                    return gradient(upstream, *ctx.saved_tensors, **numbers)

            return Pointwise

        return lambda *arguments, **numbers: with_numbers(**numbers).apply(
            *arguments
        )

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
