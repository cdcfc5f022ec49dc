"""The operations of `keras.ops`, for backends without anything better.

The other backends take from here what they have no better form of.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vdrop.backend.default_random import assign_state as assign_state
from keras_vdrop.backend.default_random import draw_key as draw_key
from keras_vdrop.backend.default_random import fold_key as fold_key
from keras_vdrop.backend.default_random import for_each_state as for_each_state
from keras_vdrop.backend.default_random import is_recomputed as is_recomputed
from keras_vdrop.backend.default_random import normal as normal
from keras_vdrop.backend.default_random import random_state as random_state
from keras_vdrop.backend.default_random import shared_key as shared_key
from keras_vdrop.backend.default_random import split_key as split_key
from keras_vdrop.backend.default_random import state_after as state_after
from keras_vdrop.backend.default_random import states_of as states_of

# Arrays of fewer elements take no time, and a look at them does.
FEW = 2**14
# The dtype of the state of a generator.
SEED_DTYPE = "int64"
# Whether operations on whole arrays are compiled into one.
FUSES = False
# Whether `at_once` takes functions that draw noise.
VECTORIZES_NOISE = False


def with_gradient(gradient: Callable, kept_from: int = 0) -> Callable:
    """Decorator: gives a pointwise function a derivative of its own.

    `gradient(upstream, *kept)` returns the derivative with respect to each
    argument, or `None` where it is zero. `kept` are the arguments from number
    `kept_from` on: only these are kept for the backward pass. Arguments by
    keyword are numbers, which both functions take.
    """
    del gradient, kept_from
    return lambda function: function


def with_backward(gradient: Callable, kept_from: int = 0) -> Callable:
    """As `with_gradient`, for one that depends on the sign of `upstream`.

    Such a function has no forward mode.
    """
    return with_gradient(gradient, kept_from)


def on_values(function: Callable, tensor: Any) -> Any:
    """A function of a tensor, or of the values of one with ragged rows."""
    return function(tensor)


def value_of(variable: Any) -> Any:
    """The value of a variable, or the tensor itself."""
    return ops.convert_to_tensor(variable)


def times(x: Any, y: Any) -> Any:
    """`x * y`, in the memory of `x` where the backend allows it."""
    return x * y


def times_rest(x: Any, y: Any) -> Any:
    """`x * (1 - y)`, in the memory of `x` where the backend allows it."""
    return x - x * y


def plus(x: Any, y: Any, factor: float | None = None) -> Any:
    """`x + factor * y`, in the memory of `x` where the backend allows it."""
    return x + y if factor is None else x + factor * y


def horner(powers: Sequence[float], z: Any) -> Any:
    """`powers[0] + powers[1] * z + ...`"""
    value = plus(z * powers[-1], powers[-2])
    for power in reversed(powers[:-2]):
        value = plus(times(value, z), power)
    return value


def at_least(x: Any, limit: float) -> Any:
    """`maximum(x, limit)` for a limit that is a number."""
    return ops.maximum(x, limit)


def at_most(x: Any, limit: Any) -> Any:
    """`minimum(x, limit)`."""
    return ops.minimum(x, limit)


def total(x: Any) -> Any:
    """The sum of all elements."""
    return ops.sum(x)


def hard_limit(x: Any, limit: float) -> Any:
    """`minimum(x, limit)`, with a derivative of 1 at the limit, 0 beyond."""
    limit = ops.cast(limit, x.dtype)
    return ops.where(x > limit, limit, x)


def unless_above(
    largest: Callable,
    limit: float,
    limited: Callable,
    plain: Callable,
    made_of: Sequence,
    exponential: Callable | None = None,
) -> Any:
    """`limited()`, or the same by `plain()` where nothing is above a limit.

    A limit costs several passes over memory and is hardly ever exceeded. One
    look for the largest value costs less, where operations are not fused.

    Args:
        largest: Function without arguments, the largest value.
        limit: Float.
        limited: Function without arguments, with the limit.
        plain: Function without arguments, without the limit.
        made_of: The tensors that the largest value follows from.
        exponential: If the result is an exponential of the first of them:
            function that takes out of its gradient, the result times the
            upstream gradient, what leads beyond the limit.
    """
    del largest, limit, plain, made_of, exponential
    return limited()


def remember_limit(made_of: Sequence, limit: float, looks: int) -> None:
    """Spares `unless_above` some looks at what was just limited.

    It holds while the tensors are as they are, but for one assignment to the
    first.
    """
    del made_of, limit, looks


def without_outward(gradient: Any, x: Any, limit: Any) -> Any:
    """A gradient that is zero where a step would leave the limit further.

    That is where `x` is above the limit and the gradient is negative.
    """
    return zero_where(ops.logical_and(x > limit, gradient < 0), gradient)


def zero_where(condition: Any, x: Any) -> Any:
    """Zero where a condition holds, in the memory of `x` if allowed."""
    return ops.where(condition, ops.zeros_like(x), x)


def fused_moments(
    linear: Callable,
    inputs: Any,
    squares: Any,
    kernel: Any,
    log_alpha: Any,
    limit: float | None,
) -> tuple[Any, Any] | None:
    """Mean and variance of `linear(inputs, w)` as one operation.

    The weights have the variance `alpha * kernel**2`, and `limit` is the
    largest log alpha, as `pointwise.one_way_limit` has it, or `None`.
    Returns `None` where the backend has no such operation for these arguments.
    """
    del linear, inputs, squares, kernel, log_alpha, limit
    return None


def on_shards(function: Callable, examples: Any, shared: Any) -> Any:
    """`function(examples, shared)`, on each device for its examples.

    Examples are the first axis of its arguments and results. The gradients of
    what they share are added on each device, and then summed over devices.
    """
    return function(examples, shared)


def map_examples(function: Callable, arguments: Any) -> Any:
    """`ops.map` over examples and their keys."""
    return ops.map(function, arguments)


def layout_like(variable: Any, path: str, select: Callable) -> Any | None:
    """A layout over devices for a new variable that belongs to another.

    Args:
        variable: The variable that has a layout, or `None`.
        path: The path of the new variable, by which the layouts of a user may
            name it.
        select: Function of the mesh axes of the first variable that returns
            those of the new one.

    Returns:
        A `keras.distribution.TensorLayout`, or `None` for that of Keras.
    """
    del variable, path, select
    return None


def data_shards() -> int:
    """Over how many parts of the mesh of `keras.distribution` a batch is."""
    return 1


def spans_processes() -> bool:
    """Whether new variables are spread over several processes."""
    return False


def outputs_here(model: Any) -> Any:
    """Scope in which `model.predict` has the outputs of this process.

    Elsewhere Keras fails where they are spread over several.
    """
    del model
    return contextlib.nullcontext()


def outside_scope(function: Callable) -> Any:
    """`function()`, as it would be outside the scope of a strategy."""
    return function()


def whole_where_uneven() -> Any:
    """Scope for new variables whose sizes the mesh need not divide.

    They are whole on each device where it does not.
    """
    return contextlib.nullcontext()


def replica() -> Any:
    """The number of the replica that runs in this thread, or `None`.

    `tf.distribute` gives each replica a thread of its own, in which context
    variables are not those of the caller.
    """
    return None


def to_numpy(tensors: Sequence) -> list:
    """Arrays of tensors or variables, all fetched at once where possible."""
    return [ops.convert_to_numpy(tensor) for tensor in tensors]


def is_accelerator(variable: Any) -> bool:
    """Whether a variable is on a device that runs small operations in parallel.

    There many samples of a model take about as long as one.
    """
    del variable
    return False


def predict_step(model: Any, x: Any) -> Any:
    """The outputs of `model.predict_step`, for variables of the scope."""
    return model.predict_step((x,))


def at_once(function: Callable, jit_compile: bool) -> Callable:
    """`function(own, shared)` for each in the first axes of `own`, compiled.

    Raises an error of any kind where the backend cannot do that.
    """
    del function, jit_compile
    raise NotImplementedError("This backend of Keras has no vectorized map.")


def traced_once(function: Callable) -> Callable:
    """Decorator: a compiler takes what a function returns for a constant.

    It is for what a context variable says, which is meant to be read when a
    call is traced.
    """
    return function


def compiled(function: Callable) -> Callable:
    """A function of structures of tensors, compiled if the backend does."""
    return function


def gradient_function(loss: Callable, model: Any, variables: list) -> Callable:
    """A compiled function of `x, y`: the gradients of `loss(x, y)`."""
    raise NotImplementedError("This backend of Keras has no gradients.")
