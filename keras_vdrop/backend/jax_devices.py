"""Several devices on JAX; `default.py` documents the names."""

import contextlib
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils


def data_shards() -> int:
    """Over how many parts of the mesh a batch is spread."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


class _WholeWhereUneven(keras.distribution.ModelParallel):
    """A distribution, but for variables that its mesh does not divide."""

    def __init__(self, distribution: Any):
        super().__init__(
            layout_map=keras.distribution.LayoutMap(distribution.device_mesh),
            batch_dim_name=distribution.batch_dim_name,
        )
        self.distribution = distribution

    def get_data_layout(self, data_shape: Any) -> Any:
        return self.distribution.get_data_layout(data_shape)

    def get_tensor_layout(self, path: str) -> Any:
        return self.distribution.get_tensor_layout(path)

    def get_variable_layout(self, variable: Any) -> Any:
        layout = self.distribution.get_variable_layout(variable)
        mesh = self.device_mesh
        sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        axes = [
            None if size % sizes.get(axis, 1) else axis
            for axis, size in zip(layout.axes, variable.shape, strict=True)
        ]
        return keras.distribution.TensorLayout(axes, mesh)

    def distribute_dataset(self, dataset: Any) -> Any:
        return self.distribution.distribute_dataset(dataset)


@contextlib.contextmanager
def whole_where_uneven() -> Iterator[None]:
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        yield
        return
    with _WholeWhereUneven(distribution).scope():
        yield


def spans_processes() -> bool:
    distributed = keras.distribution.distribution() is not None
    return distributed and jax.process_count() > 1


@contextlib.contextmanager
def outputs_here(model: Any) -> Iterator[None]:
    if not spans_processes():
        yield
        return
    model.make_predict_function()
    plain = model.predict_function

    def function(*arguments: Any) -> tuple:
        outputs, state = plain(*arguments)
        return keras.tree.map_structure(_rows_here, outputs), state

    model.predict_function = function
    try:
        yield
    finally:
        model.predict_function = plain


def _rows_here(outputs: Any) -> Any:
    """The outputs of the examples that this process has given."""
    distribution = keras.distribution.distribution()
    layout = keras.distribution.TensorLayout(
        [distribution.batch_dim_name, *(outputs.ndim - 1) * [None]],
        distribution.device_mesh,
    ).backend_layout
    outputs = jax.jit(lambda x: x, out_shardings=layout)(outputs)
    parts = {
        shard.index[0].start or 0: shard.data
        for shard in outputs.addressable_shards
    }
    return np.concatenate([parts[start] for start in sorted(parts)])


def layout_like(variable: Any, path: str, select: Callable) -> Any | None:
    distribution = keras.distribution.distribution()
    spread = isinstance(distribution, keras.distribution.ModelParallel)
    if variable is None or not spread:
        return None
    axes = select(distribution.get_variable_layout(variable).axes)
    # A variable that the map does not name gets a layout of its own rank: with
    # one axis too many it is told from one that the map names.
    new = types.SimpleNamespace(path=path, shape=(len(axes) + 1) * (1,))
    if len(distribution.get_variable_layout(new).axes) == len(axes):
        return None
    return keras.distribution.TensorLayout(axes, distribution.device_mesh)


def on_shards(function: Callable, examples: Any, shared: Any) -> Any:
    shards = _shards_of(keras.tree.flatten(examples)[0])
    if shards == 1:
        return function(examples, shared)
    distribution = keras.distribution.distribution()
    mesh = distribution.device_mesh.backend_mesh
    axis = distribution.batch_dim_name
    rows = jax.sharding.PartitionSpec(axis)
    # Without a check nothing is summed within: what flows back to `shared` is
    # summed where it leaves the function.
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(rows, jax.sharding.PartitionSpec()),
        out_specs=rows,
        axis_names={axis},
        check_vma=False,
    )
    # Outside a compiled step, a function of some axes of a mesh has to be.
    return jax.jit(mapped)(examples, shared)


def _shards_of(batch: Any) -> int:
    """In how many equal parts a batch is on the devices, or 1."""
    shards = data_shards()
    return shards if batch.shape and batch.shape[0] % shards == 0 else 1


def to_numpy(tensors: Sequence) -> list:
    arrays = [_whole(keras.ops.convert_to_tensor(x)) for x in tensors]
    return [np.asarray(array) for array in jax.device_get(arrays)]


def _whole(array: Any) -> Any:
    """An array on this process, of one that has parts on others."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    return multihost_utils.process_allgather(array, tiled=True)
