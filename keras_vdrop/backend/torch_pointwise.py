"""Pointwise operations on torch; `default.py` documents the names."""

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
        class Pointwise(Function):
            @staticmethod
            def forward(numbers: dict, *arguments: Any) -> Any:
                return function(*arguments, **numbers)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
                ctx.numbers = inputs[0]
                ctx.save_for_backward(*inputs[1 + kept_from :])

            @staticmethod
            def backward(ctx: Any, upstream: Any) -> tuple:
                found = gradient(upstream, *ctx.saved_tensors, **ctx.numbers)
                return None, *found

        return lambda *arguments, **numbers: Pointwise.apply(
            numbers, *arguments
        )

    return decorate


with_backward = with_gradient


def times(x: Any, y: Any) -> Any:
    return x * y if torch.is_grad_enabled() else x.mul_(y)


def times_rest(x: Any, y: Any) -> Any:
    if torch.is_grad_enabled():
        return x - x * y
    return x.addcmul_(x, y, value=-1)


def plus(x: Any, y: Any, factor: float | None = None) -> Any:
    factor = 1 if factor is None else factor
    if torch.is_grad_enabled():
        return torch.add(x, y, alpha=factor)
    return x.add_(y, alpha=factor)


def at_least(x: Any, limit: float) -> Any:
    # Keras makes a tensor of the number first, which takes longer.
    return x.clamp(min=limit)


def at_most(x: Any, limit: Any) -> Any:
    return x.clamp(max=limit)


def hard_limit(x: Any, limit: float) -> Any:
    return x.clamp(max=limit)


def without_outward(gradient: Any, x: Any, limit: Any) -> Any:
    return zero_where((x > limit).logical_and_(gradient < 0), gradient)


def zero_where(condition: Any, x: Any) -> Any:
    if torch.is_grad_enabled():
        return x.masked_fill(condition, 0)
    return x.masked_fill_(condition, 0)
