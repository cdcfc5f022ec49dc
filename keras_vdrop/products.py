"""The two products of a layer with independent noise on its weights.

On torch, where each gradient as large as the kernel has to be allocated, the
two products of a dense layer are one operation: its backward pass adds the
second gradient to the memory of the first. Elsewhere they are left to automatic
differentiation.
"""

from keras import ops

from keras_vdrop import pointwise
from keras_vdrop.pointwise import BACKEND
from keras_vdrop.pointwise import plus_product
from keras_vdrop.pointwise import times

if BACKEND == "torch":
    import torch


def moments(linear, inputs, squares, kernel, log_alpha=None, variance=None):
    """Mean and variance of `linear(inputs, w)` for independent weights `w`.

    Args:
        linear: Function of inputs and a kernel, linear in both.
        inputs: Tensor.
        squares: Tensor, the squares of the inputs, which may have a factor of
            the variance in them.
        kernel: Tensor, the mean of the weights.
        log_alpha: Tensor or `None`. The weights have the variance
            `exp(log_alpha) * kernel**2`, or `kernel**2` without it.
        variance: Tensor or `None`, the variance of the weights if it does not
            depend on the kernel.
    """
    if variance is None:
        if _one_operation(linear, inputs, squares, kernel, log_alpha):
            return _matmul_moments(inputs, squares, kernel, log_alpha)
        variance = _relative_variance(kernel, log_alpha, squares.dtype)
    return linear(inputs, kernel), linear(squares, variance)


def _relative_variance(kernel, log_alpha, dtype):
    if log_alpha is None:
        return pointwise.square(ops.cast(kernel, dtype))
    kernel = ops.cast(kernel, log_alpha.dtype)
    return ops.cast(pointwise.weight_variance(log_alpha, kernel), dtype)


def _one_operation(linear, *tensors):
    """Whether it is a product of matrices of one dtype, on torch."""
    if BACKEND != "torch" or linear is not ops.matmul:
        return False
    tensors = [tensor for tensor in tensors if tensor is not None]
    device = tensors[0].device.type
    return (
        len({tensor.dtype for tensor in tensors}) == 1
        and device != "meta"
        and not torch.is_autocast_enabled(device)
    )


def _matmul_moments(inputs, squares, kernel, log_alpha):
    *batch, features = inputs.shape
    units = kernel.shape[1]
    mean, variance, _ = _MatmulMoments.apply(
        inputs.reshape(-1, features),
        squares.reshape(-1, features),
        kernel,
        log_alpha,
    )
    shape = (*batch, units)
    return mean.reshape(shape), variance.reshape(shape)


if BACKEND == "torch":

    class _MatmulMoments(torch.autograd.Function):
        """`inputs @ kernel`, `squares @ variance`, and what is kept of that."""

        generate_vmap_rule = True

        @staticmethod
        def forward(inputs, squares, kernel, log_alpha):
            mean = inputs @ kernel
            if log_alpha is None:
                return mean, squares @ (kernel * kernel), None
            scaled = torch.exp(log_alpha).mul_(kernel)
            return mean, squares @ (scaled * kernel), scaled

        @staticmethod
        def setup_context(ctx, inputs, output):
            scaled = output[2]
            if scaled is not None:
                ctx.mark_non_differentiable(scaled)
            ctx.save_for_backward(*inputs, scaled)

        @staticmethod
        def backward(ctx, by_mean, by_variance, _):
            inputs, squares, kernel, log_alpha, scaled = ctx.saved_tensors
            needed = ctx.needs_input_grad
            by_inputs = by_squares = by_kernel = by_log_alpha = None
            # The variance divided by the kernel: half its slope.
            if log_alpha is None:
                scaled = kernel
            elif torch.is_grad_enabled():
                # What is kept cannot be differentiated again.
                scaled = torch.exp(log_alpha) * kernel
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
            if needed[2]:
                by_kernel = times(by_weights, scaled)
                by_kernel = plus_product(by_kernel, 2.0, inputs.T, by_mean)
            return by_inputs, by_squares, by_kernel, by_log_alpha
