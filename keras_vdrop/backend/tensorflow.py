"""What TensorFlow does differently; `default.py` documents the names."""

import concurrent.futures
import contextvars
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_vdrop.backend.default import FEW
from keras_vdrop.backend.default import assign_state
from keras_vdrop.backend.default import at_least
from keras_vdrop.backend.default import at_most
from keras_vdrop.backend.default import data_shards
from keras_vdrop.backend.default import for_each_state
from keras_vdrop.backend.default import fused_moments
from keras_vdrop.backend.default import horner
from keras_vdrop.backend.default import is_recomputed
from keras_vdrop.backend.default import layout_like
from keras_vdrop.backend.default import map_examples
from keras_vdrop.backend.default import on_shards
from keras_vdrop.backend.default import outputs_here
from keras_vdrop.backend.default import plus
from keras_vdrop.backend.default import predict_step
from keras_vdrop.backend.default import random_state
from keras_vdrop.backend.default import remember_limit
from keras_vdrop.backend.default import spans_processes
from keras_vdrop.backend.default import state_after
from keras_vdrop.backend.default import states_of
from keras_vdrop.backend.default import times
from keras_vdrop.backend.default import times_rest
from keras_vdrop.backend.default import to_numpy
from keras_vdrop.backend.default import total
from keras_vdrop.backend.default import traced_once
from keras_vdrop.backend.default import whole_where_uneven
from keras_vdrop.backend.default import without_outward
from keras_vdrop.backend.default import zero_where

__all__ = [
    "FUSES",
    "SEED_DTYPE",
    "VECTORIZES_NOISE",
    "assign_state",
    "at_least",
    "at_most",
    "at_once",
    "compiled",
    "data_shards",
    "draw_key",
    "fold_key",
    "for_each_state",
    "fused_moments",
    "gradient_function",
    "hard_limit",
    "horner",
    "is_accelerator",
    "is_recomputed",
    "layout_like",
    "map_examples",
    "normal",
    "on_shards",
    "on_values",
    "outputs_here",
    "outside_scope",
    "plus",
    "predict_step",
    "random_state",
    "remember_limit",
    "replica",
    "shared_key",
    "spans_processes",
    "split_key",
    "state_after",
    "states_of",
    "times",
    "times_rest",
    "to_numpy",
    "total",
    "traced_once",
    "unless_above",
    "value_of",
    "whole_where_uneven",
    "with_backward",
    "with_gradient",
    "without_outward",
    "zero_where",
]

SEED_DTYPE = "int64"
# The collection of a graph for the answers of `_is_within`.
LOOKS = "keras_vdrop_looks"
FUSES = False
VECTORIZES_NOISE = False


def on_values(function: Callable, tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(function(tensor.flat_values))
    return function(tensor)


def with_gradient(gradient: Callable, kept_from: int = 0) -> Callable:
    def decorate(function: Callable) -> Callable:
        def call(*arguments: Any, **numbers: float) -> Any:
            @tf.custom_gradient
            def wrapped(*arguments: Any) -> tuple[Any, Callable]:
                def backward(upstream: Any) -> tuple:
                    return gradient(upstream, *arguments[kept_from:], **numbers)

                return function(*arguments, **numbers), backward

            # `custom_gradient` would ask for the gradients of variables apart.
            return wrapped(*map(tf.convert_to_tensor, arguments))

        return call

    return decorate


with_backward = with_gradient


# `keras.ops.convert_to_tensor` gives a variable back, which every operation
# reads anew, and which makes a conditional wait for other reads.
value_of = tf.convert_to_tensor


def hard_limit(x: Any, limit: float) -> Any:
    return tf.minimum(x, tf.cast(limit, x.dtype))


def _has_accelerators() -> bool:
    """Whether there are devices whose conditions the host waits for."""
    devices = tf.config.list_physical_devices()
    return any(device.device_type != "CPU" for device in devices)


def _is_within(largest: Callable, limit: float, made_of: Sequence) -> Any:
    """Whether the largest value is at most a limit, looked at once a step.

    The noise and the KL of a step ask for the same. A graph keeps the answer
    while nothing in it has written to the variables since.
    """

    def look() -> Any:
        found = largest()
        # Not `>`, which NaN fails.
        return found <= tf.cast(limit, found.dtype)

    if tf.executing_eagerly():
        return look()
    reads = [tensor.op for tensor in made_of]
    if any(read.type != "ReadVariableOp" for read in reads):
        return look()
    variables = [read.inputs[0] for read in reads]
    state = [
        (variable.name, op.name)
        for variable in variables
        for op in variable.consumers()
        if op.type != "ReadVariableOp"
    ]
    key = [[variable.name for variable in variables], limit, state]
    answers = reads[0].graph.get_collection_ref(LOOKS)
    for known, within in answers:
        if known == key:
            return within
    within = look()
    answers.append((key, within))
    return within


def unless_above(
    largest: Callable,
    limit: float,
    limited: Callable,
    plain: Callable,
    made_of: Sequence,
    exponential: Callable | None = None,
) -> Any:
    few = (made_of[0].shape.num_elements() or 0) < FEW
    if few or _has_accelerators():
        return limited()
    within = _is_within(largest, limit, made_of)
    chosen = tf.cond(within, plain, limited)
    if exponential is None:
        return chosen

    # The gradient of a conditional is zeros for what one branch alone reads.
    @tf.custom_gradient
    def direct(logarithm: Any, chosen: Any, within: Any) -> tuple:
        def backward(upstream: Any) -> tuple:
            gradient = upstream * chosen
            gradient = tf.cond(
                within, lambda: gradient, lambda: exponential(gradient)
            )
            return gradient, None, None

        return tf.identity(chosen), backward

    return direct(made_of[0], chosen, within)


def replica() -> Any:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context.replica_id_in_sync_group


def draw_key(state: Any) -> Any:
    key, number = shared_key(state), replica()
    return key if number is None else fold_key(key, number)


def shared_key(state: Any) -> Any:
    # Keras keeps seeds in int64; XLA takes int32 alone.
    state = tf.cast(state, "int32")
    return fold_key(state[:2], state[2])


def fold_key(key: Any, number: Any) -> Any:
    return tf.random.experimental.stateless_fold_in(key, number)


def split_key(key: Any, count: Any) -> Any:
    return tf.random.experimental.stateless_split(key, count)


def normal(key: Any, shape: Any, dtype: str) -> Any:
    # The automatic choice draws the same numbers, and XLA for a CPU compiles
    # it to a program that takes 20 times as long (TensorFlow 2.21).
    return tf.random.stateless_normal(shape, key, dtype=dtype, alg="philox")


def compiled(function: Callable) -> Callable:
    # AutoGraph would rewrite Keras first, for seconds.
    traced = tf.function(function, autograph=False)
    concrete: dict = {}

    def call(*arguments: Any) -> Any:
        # TensorFlow would warn of a function that is traced for each layer.
        kinds = tuple(
            None if x is None else (x.dtype, tuple(x.shape))
            for x in tf.nest.flatten(arguments)
        )
        if kinds not in concrete:
            concrete[kinds] = traced.get_concrete_function(*arguments)
        return concrete[kinds](*arguments)

    return call


def is_accelerator(variable: Any) -> bool:
    return "CPU" not in variable.value.device


def at_once(function: Callable, jit_compile: bool) -> Callable:
    return tf.function(
        lambda own, shared: tf.vectorized_map(
            lambda one: function(one, shared), own, fallback_to_while_loop=False
        ),
        autograph=False,
        jit_compile=jit_compile,
    )


def outside_scope(function: Callable) -> Any:
    if not tf.distribute.has_strategy():
        return function()
    # A scope is one of a thread, and there is no way out of it.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        context = contextvars.copy_context()
        return pool.submit(context.run, function).result()


def gradient_function(loss: Callable, model: Any, variables: list) -> Callable:
    del model
    values = [variable.value for variable in variables]

    @tf.function
    def gradients(x: Any, y: Any) -> list:
        with tf.GradientTape() as tape:
            value = loss(x, y)
        return tape.gradient(value, values)

    return gradients
