"""What is done to every weight or output, in few passes over memory.

With an alpha for each weight a training step is bound by memory as much as by
its matrix products. Automatic differentiation keeps each intermediate result
for the backward pass, and reads it again there. So these functions have
gradients of their own: they keep nothing but the arguments they need, and on
torch, where each result has to be allocated, they work in place. The gradients
are functions of the arguments, so that they can be differentiated again.
"""

import keras
import numpy as np
from keras import ops

# The smallest normal float32, and bfloat16: far below any variance that can
# matter, so that the square root is unbiased, and its gradient is finite where
# the variance is exactly zero (an all-zero row, a padded border, theta = 0).
TINY = float(np.finfo("float32").tiny)

BACKEND = keras.backend.backend()

if BACKEND == "jax":
    import jax
elif BACKEND == "tensorflow":
    import tensorflow as tf
elif BACKEND == "torch":
    import torch


def with_gradient(gradient, kept_from=0):
    """Decorator: gives a pointwise function a gradient of its own.

    `gradient(upstream, *kept)` returns the gradient by each argument, or `None`
    where it is zero. `kept` are the arguments from that one on.
    """
    wrappers = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
    if BACKEND not in wrappers:
        return lambda function: function
    return lambda function: wrappers[BACKEND](function, gradient, kept_from)


def _jax(function, gradient, kept_from):
    def jvp(arguments, tangents):
        # Pointwise, so a tangent is multiplied by what a gradient is.
        products = [
            gradient(tangent, *arguments[kept_from:])[number]
            for number, tangent in enumerate(tangents)
        ]
        return function(*arguments), sum(p for p in products if p is not None)

    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(jvp)
    return wrapped


def _tensorflow(function, gradient, kept_from):
    @tf.custom_gradient
    def wrapped(*arguments):
        def backward(upstream):
            return gradient(upstream, *arguments[kept_from:])

        return function(*arguments), backward

    # Variables would have to be told of apart.
    return lambda *arguments: wrapped(*map(tf.convert_to_tensor, arguments))


def _torch(function, gradient, kept_from):
    class Pointwise(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            return function(*arguments)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs[kept_from:])

        @staticmethod
        def backward(ctx, upstream):
            return gradient(upstream, *ctx.saved_tensors)

    return Pointwise.apply


def times(x, y):
    """`x * y`, in the memory of `x` unless it is differentiated."""
    return x.mul_(y) if _in_place() else x * y


def times_rest(x, y):
    """`x * (1 - y)`, in the memory of `x` unless it is differentiated."""
    return x.addcmul_(x, y, value=-1) if _in_place() else x - x * y


def plus(x, y, factor=None):
    """`x + factor * y`, in the memory of `x` unless it is differentiated."""
    if _in_place():
        return x.add_(y, alpha=1 if factor is None else factor)
    return x + y if factor is None else x + factor * y


def plus_product(x, factor, y, z):
    """`factor * x + y @ z`, in the memory of `x` unless differentiated."""
    if _in_place():
        return x.addmm_(y, z, beta=factor)
    return factor * x + y @ z


def _in_place():
    return BACKEND == "torch" and not torch.is_grad_enabled()


def at_least(x, limit):
    """`maximum(x, limit)`."""
    # Keras makes a tensor of a number first, which takes longer than the rest.
    return x.clamp(min=limit) if BACKEND == "torch" else ops.maximum(x, limit)


def at_most(x, limit):
    """`minimum(x, limit)`."""
    return x.clamp(max=limit) if BACKEND == "torch" else ops.minimum(x, limit)


def total(x):
    """The sum of all elements."""
    if BACKEND == "jax" and len(x.shape) > 1:
        # XLA for a CPU (jax 0.10) fuses a sum with what is summed into one
        # operation, and fills arrays with the constants in that. Of a product
        # it does not.
        ones = jax.numpy.ones(x.shape[-1:], x.dtype)
        x = jax.numpy.matmul(x, ones, precision="highest")
    return ops.sum(x)


@with_gradient(lambda upstream, x: (times(upstream * x, 2.0),))
def square(x):
    """`x**2`."""
    return ops.square(x)


def _log_square_gradient(upstream, x):
    slope = times(upstream * x, 2.0)
    return (slope / at_least(ops.square(x), TINY),)


@with_gradient(_log_square_gradient)
def log_square(x):
    """`log(x**2)`, but never less than that of a variance of `TINY`."""
    return ops.log(at_least(ops.square(x), TINY))


def _weight_variance_gradient(upstream, log_alpha, kernel):
    # An exponential again costs no more than to keep the first.
    product = times(times(ops.exp(log_alpha), upstream), kernel)
    return product * kernel, times(product, 2.0)


@with_gradient(_weight_variance_gradient)
def weight_variance(log_alpha, kernel):
    """`exp(log_alpha) * kernel**2`, for an alpha of each weight."""
    return times(times(ops.exp(log_alpha), kernel), kernel)


def _deviation_gradient(upstream, variance, noise):
    # Below the limit there is no mask: what is as small as that are inputs or
    # weights, by which this will be multiplied.
    slope = ops.rsqrt(at_least(variance, TINY))
    slope = times(times(slope, noise), upstream)
    return times(slope, 0.5), None


@with_gradient(_deviation_gradient)
def deviation(variance, noise):
    """`sqrt(variance) * noise`, without a gradient by the noise."""
    return times(ops.sqrt(at_least(variance, TINY)), noise)
