"""Both products of a dense layer as one operation on torch.

Its backward pass adds the second gradient of the kernel to the memory of the
first.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from keras import ops

from keras_vdrop.backend.torch_limit import unless_above
from keras_vdrop.backend.torch_pointwise import Function
from keras_vdrop.backend.torch_pointwise import apply
from keras_vdrop.backend.torch_pointwise import in_place
from keras_vdrop.backend.torch_pointwise import times
from keras_vdrop.backend.torch_pointwise import without_outward


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
