"""Data that can be read several times, a part that fits in memory at a time."""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vdrop import backend
from keras_vdrop.core import validation

# The size of a part in bytes.
LARGEST = 2**28


class Part:
    """Some batches, which can be predicted again and again.

    Args:
        batches: List of batches.
        is_all: Boolean, whether there are no other parts.
    """

    def __init__(self, batches: Sequence, is_all: bool):
        self.batches = batches
        self.is_all = is_all

    def predict(self, model: Any) -> Any:
        """As `model.predict`, without its reading of data."""
        if self.is_spread(model):
            return self._predict_everywhere(model)
        outputs = [model.predict_on_batch(batch) for batch in self.batches]
        return concatenate(outputs)

    def is_spread(self, model: Any) -> bool:
        """Whether several devices have a share of each batch."""
        # There `predict_on_batch` gives every replica the whole batch.
        strategy = getattr(model, "distribute_strategy", None)
        replicas = getattr(strategy, "num_replicas_in_sync", 1)
        return replicas > 1 or keras.distribution.distribution() is not None

    def _predict_everywhere(self, model: Any) -> Any:
        """By all devices, each with as many examples of a batch.

        Keras fails on jax where they do not divide (3.15).
        """
        shards = backend.data_shards()
        sizes = [len(keras.tree.flatten(batch)[0]) for batch in self.batches]
        if not any(size % shards for size in sizes):
            return model.predict(_Dataset(self.batches), verbose=0)
        batches = [
            keras.tree.map_structure(lambda x: _padded(x, shards), batch)
            for batch in self.batches
        ]
        is_real = np.concatenate(
            [np.arange(size + -size % shards) < size for size in sizes]
        )
        outputs = model.predict(_Dataset(batches), verbose=0)
        return keras.tree.map_structure(lambda x: x[is_real], outputs)


def _padded(array: Any, shards: int) -> Any:
    """The last example again, until they divide by the shards."""
    missing = -len(array) % shards
    return np.concatenate([array, *missing * [array[-1:]]])


class _Dataset(keras.utils.PyDataset):
    def __init__(self, batches: Sequence):
        super().__init__()
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple:
        return (self.batches[index],)


def parts_of(
    x: Any, batch_size: int | None, steps: int | None
) -> Iterator[Part]:
    """The data in parts.

    Arrays are one part. A data set is read once, because it may be shuffled
    anew, augmented, or gone when it is read again.
    """
    batches = batches_of(x)
    if batches is None:
        slices = itertools.islice(_slices(x, batch_size or 32), steps)
        yield Part(list(slices), is_all=True)
        return
    if batch_size is not None:
        raise validation.invalid(
            "batch_size", "None with a data set, which has batches", batch_size
        )
    part: list = []
    size = 0
    for batch in itertools.islice(batches, steps):
        inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
        inputs = keras.tree.map_structure(_as_array, inputs)
        part.append(inputs)
        size += sum(getattr(a, "nbytes", 0) for a in keras.tree.flatten(inputs))
        if size > LARGEST:
            yield Part(part, is_all=False)
            part, size = [], 0
    if part:
        yield Part(part, is_all=False)


def concatenate(parts: list, axis: int = 0) -> Any:
    """Joins structures of arrays."""
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays, axis), *parts
    )


def _slices(x: Any, batch_size: int) -> Iterator[Any]:
    x = keras.tree.map_structure(_as_array, x)
    for start in range(0, len(keras.tree.flatten(x)[0]), batch_size):
        yield keras.tree.map_structure(
            lambda array, at=start: array[at : at + batch_size], x
        )


def batches_of(x: Any) -> Iterable | None:
    """The batches of a data set, or `None` for arrays."""
    if isinstance(x, keras.utils.PyDataset):
        numbers = itertools.count() if x.num_batches is None else None
        return (x[n] for n in numbers or range(len(x)))
    is_iterator = hasattr(x, "__next__")
    is_tensorflow = hasattr(x, "element_spec")
    is_torch = hasattr(x, "batch_sampler")
    return x if is_iterator or is_tensorflow or is_torch else None


def _as_array(x: Any) -> Any:
    # Not sparse and ragged tensors, which are no arrays.
    return np.asarray(x) if hasattr(x, "__array__") else x
