"""What JAX does differently; `default.py` documents the names."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_vdrop.backend.default import assign_state
from keras_vdrop.backend.default import at_least
from keras_vdrop.backend.default import at_most
from keras_vdrop.backend.default import fused_moments
from keras_vdrop.backend.default import hard_limit
from keras_vdrop.backend.default import horner
from keras_vdrop.backend.default import map_examples
from keras_vdrop.backend.default import on_values
from keras_vdrop.backend.default import outside_scope
from keras_vdrop.backend.default import plus
from keras_vdrop.backend.default import random_state
from keras_vdrop.backend.default import remember_limit
from keras_vdrop.backend.default import replica
from keras_vdrop.backend.default import state_after
from keras_vdrop.backend.default import states_of
from keras_vdrop.backend.default import times
from keras_vdrop.backend.default import times_rest
from keras_vdrop.backend.default import traced_once
from keras_vdrop.backend.default import unless_above
from keras_vdrop.backend.default import value_of
from keras_vdrop.backend.default import without_outward
from keras_vdrop.backend.default import zero_where
from keras_vdrop.backend.jax_devices import data_shards
from keras_vdrop.backend.jax_devices import layout_like
from keras_vdrop.backend.jax_devices import on_shards
from keras_vdrop.backend.jax_devices import outputs_here
from keras_vdrop.backend.jax_devices import spans_processes
from keras_vdrop.backend.jax_devices import to_numpy
from keras_vdrop.backend.jax_devices import whole_where_uneven

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

SEED_DTYPE = "uint32"
FUSES = True
VECTORIZES_NOISE = True


def with_gradient(gradient: Callable, kept_from: int = 0) -> Callable:
    def decorate(function: Callable) -> Callable:
        def wrap(**numbers: float) -> Callable:
            def jvp(arguments: tuple, tangents: tuple) -> tuple:
                # A pointwise function: its tangent is multiplied by the same
                # derivative as an upstream gradient. Forward mode works too.
                products = [
                    gradient(tangent, *arguments[kept_from:], **numbers)[index]
                    for index, tangent in enumerate(tangents)
                ]
                tangent = sum(x for x in products if x is not None)
                return function(*arguments, **numbers), tangent

            wrapped = jax.custom_jvp(functools.partial(function, **numbers))
            wrapped.defjvp(jvp)
            return wrapped

        return _for_each(wrap)

    return decorate


def with_backward(gradient: Callable, kept_from: int = 0) -> Callable:
    def decorate(function: Callable) -> Callable:
        def wrap(**numbers: float) -> Callable:
            def forward(*arguments: Any) -> tuple[Any, tuple]:
                return function(*arguments, **numbers), arguments[kept_from:]

            def backward(kept: tuple, upstream: Any) -> tuple:
                return gradient(upstream, *kept, **numbers)

            wrapped = jax.custom_vjp(functools.partial(function, **numbers))
            wrapped.defvjp(forward, backward)
            return wrapped

        return _for_each(wrap)

    return decorate


def _for_each(wrap: Callable) -> Callable:
    """Has a function of its own for each choice of the numbers."""
    wrapped = functools.cache(wrap)
    return lambda *arguments, **numbers: wrapped(**numbers)(*arguments)


def total(x: Any) -> Any:
    # A product would be summed over the devices before it is one number.
    if len(x.shape) < 2 or keras.distribution.distribution() is not None:
        return jnp.sum(x)
    # XLA for a CPU (jax 0.10) fuses a sum with the operations before it, and
    # then fills whole arrays with their constants. It does not fuse a product
    # of matrices, so the last axis is summed by one.
    ones = jnp.ones(x.shape[-1:], x.dtype)
    return jnp.sum(jnp.matmul(x, ones, precision="highest"))


def is_recomputed(state: Any, following: Any) -> bool:
    # `jax.checkpoint` traces its function on its own, so what is computed from
    # the state there cannot leave it. Loops are alike.
    tracers = isinstance(state, jax.core.Tracer) and isinstance(
        following, jax.core.Tracer
    )
    return tracers and state._trace is not following._trace


# One program is traced for all devices, and the noise of its shards differs
# without help. `jax.random.fold_in` would be a loop of its own for each layer,
# by which a step on a CPU takes up to 7% longer (jax 0.10). The words of
# another generator are no such sums of these, because seeds are hashed.
def draw_key(state: Any) -> Any:
    return state[:2] + state[2]


shared_key = draw_key


def fold_key(key: Any, number: int) -> Any:
    return jax.random.fold_in(key, number)


def split_key(key: Any, count: Any) -> Any:
    return jax.random.split(key, count)


def normal(key: Any, shape: Any, dtype: str) -> Any:
    return jax.random.normal(key, shape, dtype)


def for_each_state(function: Callable, states: Any) -> Any:
    return jax.vmap(function)(states)


compiled = jax.jit


def is_accelerator(variable: Any) -> bool:
    return any(device.platform != "cpu" for device in variable.value.devices())


def predict_step(model: Any, x: Any) -> Any:
    trainable = [variable.value for variable in model.trainable_variables]
    others = model.non_trainable_variables
    before = [variable.value for variable in others]
    outputs, after = model.predict_step((trainable, before), (x,))
    for variable, old, new in zip(others, before, after, strict=True):
        if new is not old:
            variable.assign(new)
    return outputs


def at_once(function: Callable, jit_compile: bool) -> Callable:
    vectorized = jax.vmap(function, in_axes=(0, None))
    return jax.jit(vectorized) if jit_compile else vectorized


def gradient_function(loss: Callable, model: Any, variables: list) -> Callable:
    chosen = {id(variable) for variable in variables}
    others = [
        variable
        for variable in [*model.variables, *model.metrics_variables]
        if id(variable) not in chosen
    ]
    values = [variable.value for variable in variables]
    other_values = [variable.value for variable in others]

    def stateless_loss(
        values: list, other_values: list, x: Any, y: Any
    ) -> tuple:
        mapping = zip(
            [*variables, *others], [*values, *other_values], strict=True
        )
        with keras.StatelessScope(state_mapping=list(mapping)) as scope:
            value = loss(x, y)
        return value, [scope.get_current_value(other) for other in others]

    step = jax.jit(jax.grad(stateless_loss, has_aux=True))

    def gradients(x: Any, y: Any) -> list:
        nonlocal other_values
        found, other_values = step(values, other_values, x, y)
        return found

    return gradients
