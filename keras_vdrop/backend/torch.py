"""What torch does differently; `default.py` documents the names.

On torch every result has to be allocated, which can take longer than the
operation. So functions with a gradient of their own work in place, and both
products of a dense layer are one operation: its backward pass adds the second
gradient of the kernel to the memory of the first.
"""

import math
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch
from keras import ops
from torch.utils.weak import WeakIdKeyDictionary

from keras_vdrop.backend.default import FEW
from keras_vdrop.backend.default import compiled
from keras_vdrop.backend.default import data_shards
from keras_vdrop.backend.default import layout_like
from keras_vdrop.backend.default import map_examples
from keras_vdrop.backend.default import on_values
from keras_vdrop.backend.default import outputs_here
from keras_vdrop.backend.default import outside_scope
from keras_vdrop.backend.default import softplus
from keras_vdrop.backend.default import total
from keras_vdrop.backend.default import value_of
from keras_vdrop.backend.default import whole_where_uneven
from keras_vdrop.backend.torch_pointwise import Function
from keras_vdrop.backend.torch_pointwise import apply
from keras_vdrop.backend.torch_pointwise import at_least
from keras_vdrop.backend.torch_pointwise import at_most
from keras_vdrop.backend.torch_pointwise import hard_limit
from keras_vdrop.backend.torch_pointwise import in_place
from keras_vdrop.backend.torch_pointwise import plus
from keras_vdrop.backend.torch_pointwise import times
from keras_vdrop.backend.torch_pointwise import times_rest
from keras_vdrop.backend.torch_pointwise import with_backward
from keras_vdrop.backend.torch_pointwise import with_gradient
from keras_vdrop.backend.torch_pointwise import without_outward
from keras_vdrop.backend.torch_pointwise import zero_where
from keras_vdrop.backend.torch_random import assign_state
from keras_vdrop.backend.torch_random import draw_key
from keras_vdrop.backend.torch_random import fold_key
from keras_vdrop.backend.torch_random import is_recomputed
from keras_vdrop.backend.torch_random import normal
from keras_vdrop.backend.torch_random import random_state
from keras_vdrop.backend.torch_random import split_key
from keras_vdrop.backend.torch_random import state_after
from keras_vdrop.backend.torch_random import uncompiled

__all__ = [
    "FUSES",
    "SEED_DTYPE",
    "assign_state",
    "at_least",
    "at_most",
    "compiled",
    "data_shards",
    "draw_key",
    "fold_key",
    "fused_moments",
    "gradient_function",
    "hard_limit",
    "is_recomputed",
    "layout_like",
    "map_examples",
    "normal",
    "on_values",
    "outputs_here",
    "outside_scope",
    "plus",
    "random_state",
    "remember_limit",
    "softplus",
    "split_key",
    "state_after",
    "times",
    "times_rest",
    "to_numpy",
    "total",
    "uncompiled",
    "unless_above",
    "value_of",
    "whole_where_uneven",
    "with_backward",
    "with_gradient",
    "without_outward",
    "zero_where",
]

SEED_DTYPE = "int64"
FUSES = False


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


def fused_moments(
    linear: Callable,
    inputs: Any,
    squares: Any,
    kernel: Any,
    log_alpha: Any,
    limit: float | None,
) -> tuple[Any, Any] | None:
    tensors = [inputs, squares, kernel]
    if log_alpha is not None:
        tensors.append(log_alpha)
    device = inputs.device.type
    if (
        linear is not ops.matmul
        or len({tensor.dtype for tensor in tensors}) > 1
        or device == "meta"
        or torch.is_autocast_enabled(device)
    ):
        return None
    *batch, features = inputs.shape
    inputs = inputs.reshape(-1, features)
    squares = squares.reshape(-1, features)

    def product(limit: float | None) -> tuple:
        return apply(
            _MatmulMoments,
            _ForwardMode,
            inputs,
            squares,
            kernel,
            log_alpha,
            limit,
        )

    if log_alpha is None or limit is None:
        mean, variance, _ = product(None)
    else:
        mean, variance, _ = unless_above(
            log_alpha.amax,
            limit,
            lambda: product(limit),
            lambda: product(None),
            made_of=(log_alpha,),
        )
    shape = (*batch, kernel.shape[1])
    return mean.reshape(shape), variance.reshape(shape)


class _MatmulMoments(Function):
    """`inputs @ kernel` and `squares @ (alpha * kernel**2)`.

    The third result, `alpha * kernel`, is kept for the backward pass.
    """

    @staticmethod
    def forward(
        inputs: Any,
        squares: Any,
        kernel: Any,
        log_alpha: Any,
        limit: float | None,
    ) -> tuple:
        mean = inputs @ kernel
        if log_alpha is None:
            return mean, squares @ (kernel * kernel), None
        scaled = torch.exp(log_alpha)
        if limit is not None:
            scaled.clamp_(max=math.exp(limit))
        scaled = times(scaled, kernel)
        return mean, squares @ (scaled * kernel), scaled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        scaled = output[2]
        if scaled is not None:
            ctx.mark_non_differentiable(scaled)
        *tensors, ctx.limit = inputs
        ctx.save_for_backward(*tensors, scaled)

    @staticmethod
    def backward(ctx: Any, by_mean: Any, by_variance: Any, _: Any) -> tuple:
        inputs, squares, kernel, log_alpha, scaled = ctx.saved_tensors
        needed = ctx.needs_input_grad
        by_inputs = by_squares = by_kernel = by_log_alpha = None
        # `scaled` is half the derivative of the variance with respect to the
        # kernel.
        if log_alpha is None:
            scaled = kernel
        elif torch.is_grad_enabled():
            # The kept tensor cannot be differentiated again.
            scaled = torch.exp(log_alpha)
            if ctx.limit is not None:
                scaled = scaled.clamp(max=math.exp(ctx.limit))
            scaled = scaled * kernel
        if needed[0]:
            by_inputs = by_mean @ kernel.T
        if needed[1] or needed[3]:
            variance = scaled * kernel
        if needed[1]:
            by_squares = by_variance @ variance.T
        if needed[2] or needed[3]:
            by_weights = squares.T @ by_variance
        if needed[3]:
            by_log_alpha = times(variance, by_weights)
            if ctx.limit is not None:
                by_log_alpha = without_outward(
                    by_log_alpha, log_alpha, ctx.limit
                )
        if needed[2]:
            by_kernel = times(by_weights, scaled)
            by_kernel = _plus_product(by_kernel, 2.0, inputs.T, by_mean)
        return by_inputs, by_squares, by_kernel, by_log_alpha, None


class _ForwardMode(_MatmulMoments):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        _MatmulMoments.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple:
        inputs, squares, kernel, log_alpha, scaled = ctx.saved_tensors
        by_inputs, by_squares, by_kernel, by_log_alpha, _ = tangents
        mean = variance = 0.0
        # The same as in `backward`.
        scaled = kernel if log_alpha is None else scaled
        if by_inputs is not None:
            mean = mean + by_inputs @ kernel
        if by_kernel is not None:
            mean = mean + inputs @ by_kernel
            variance = variance + squares @ (2.0 * scaled * by_kernel)
        if by_squares is not None:
            variance = variance + by_squares @ (scaled * kernel)
        if by_log_alpha is not None:
            variance = variance + squares @ (scaled * kernel * by_log_alpha)
        return mean, variance, None


def _plus_product(x: Any, factor: float, y: Any, z: Any) -> Any:
    """`factor * x + y @ z`, in the memory of `x` unless differentiated."""
    if in_place():
        return x.addmm_(y, z, beta=factor)
    return factor * x + y @ z


def to_numpy(tensors: Sequence) -> list:
    tensors = [ops.convert_to_tensor(tensor).detach() for tensor in tensors]
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) != 1 or tensors[0].device.type == "cpu":
        return [ops.convert_to_numpy(tensor) for tensor in tensors]
    # One copy, because the host waits for each.
    sizes = [tensor.numel() for tensor in tensors]
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    return [
        ops.convert_to_numpy(part.reshape(tensor.shape))
        for part, tensor in zip(joined.split(sizes), tensors, strict=True)
    ]


def gradient_function(loss: Callable, model: Any, variables: list) -> Callable:
    # With respect to all variables: a rematerialized call keeps what it
    # computed again until all of its gradients have been found.
    every = model.trainable_variables
    chosen = [
        index
        for variable in variables
        for index, other in enumerate(every)
        if other is variable
    ]

    def gradients(x: Any, y: Any) -> list:
        found = torch.autograd.grad(
            loss(x, y), [v.value for v in every], allow_unused=True
        )
        return [found[index] for index in chosen]

    return gradients
