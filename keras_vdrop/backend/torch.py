"""What torch does differently; `default.py` documents the names.

On torch every result has to be allocated, which can take longer than the
operation. So functions with a gradient of their own work in place, and both
products of a dense layer are one operation: its backward pass adds the second
gradient of the kernel to the memory of the first.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import torch
from keras import ops

from keras_vdrop.backend.default import compiled
from keras_vdrop.backend.default import data_shards
from keras_vdrop.backend.default import layout_like
from keras_vdrop.backend.default import on_shards
from keras_vdrop.backend.default import on_values
from keras_vdrop.backend.default import outputs_here
from keras_vdrop.backend.default import outside_scope
from keras_vdrop.backend.default import predict_step
from keras_vdrop.backend.default import replica
from keras_vdrop.backend.default import spans_processes
from keras_vdrop.backend.default import total
from keras_vdrop.backend.default import value_of
from keras_vdrop.backend.default import whole_where_uneven
from keras_vdrop.backend.torch_limit import remember_limit
from keras_vdrop.backend.torch_limit import unless_above
from keras_vdrop.backend.torch_moments import fused_moments
from keras_vdrop.backend.torch_pointwise import at_least
from keras_vdrop.backend.torch_pointwise import at_most
from keras_vdrop.backend.torch_pointwise import hard_limit
from keras_vdrop.backend.torch_pointwise import horner
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
from keras_vdrop.backend.torch_random import for_each_state
from keras_vdrop.backend.torch_random import is_recomputed
from keras_vdrop.backend.torch_random import map_examples
from keras_vdrop.backend.torch_random import normal
from keras_vdrop.backend.torch_random import random_state
from keras_vdrop.backend.torch_random import shared_key
from keras_vdrop.backend.torch_random import split_key
from keras_vdrop.backend.torch_random import state_after
from keras_vdrop.backend.torch_random import states_of

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
FUSES = False
VECTORIZES_NOISE = False

traced_once = torch.compiler.assume_constant_result


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


def is_accelerator(variable: Any) -> bool:
    return variable.value.device.type not in ("cpu", "meta")


def at_once(function: Callable, jit_compile: bool) -> Callable:
    del jit_compile  # `torch.compile` would be one of the whole model.
    vectorized = torch.vmap(function, in_dims=(0, None))
    return torch.no_grad()(vectorized)


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
