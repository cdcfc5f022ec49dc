"""Batch normalization for the weights that `predict` uses."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop.core import validation
from keras_vdrop.models.parts import parts_of
from keras_vdrop.models.traversal import every_layer


def update_batch_normalization(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    steps: int | None = None,
) -> None:
    """Estimates the moving averages of batch normalization anew.

    While a model trains, its batch normalization sees outputs with noise,
    whose variance is larger. `predict` has no noise, so that the moving
    averages of the training do not fit, and the accuracy can fall by much.
    This function runs the model over some data as `predict` does, and gives
    each batch normalization the mean and the variance of its inputs. Each
    normalizes by its own batch meanwhile, as in training, so that one pass is
    enough. Layers that are frozen (`trainable=False`) are left as they are.

    If the call is interrupted, the moving averages are as before.

    Args:
        model: A built `keras.Model`.
        x: Training data, whatever `model.predict` takes. Some thousand
            examples are enough.
        batch_size: Examples in a batch, 32 by default. The larger, the better.
            That of the training is a good choice.
        steps: Integer, the number of batches, or `None` for all of `x`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras_vdrop.VariationalDense(4),
    ...     keras.layers.BatchNormalization(),
    ... ])
    >>> x = np.random.normal(size=(64, 3))
    >>> keras_vdrop.update_batch_normalization(model, x, batch_size=64)
    >>> y = model.predict(x, verbose=0)
    >>> bool(np.allclose(y.mean(axis=0), 0, atol=1e-4))
    True

    Reference:

    - [Izmailov et al., 2018](https://arxiv.org/abs/1803.05407), who do the
      same for averaged weights.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise validation.invalid("model", "a built keras.Model", model)
    layers = batch_normalizations(model)
    if not layers:
        raise validation.invalid(
            "model", "a model with a trainable BatchNormalization", model
        )
    for name, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None:
            validation.check_count(name, value)
    moments = {id(layer): _Moments(layer) for layer in layers}
    with contextlib.ExitStack() as measured:
        for layer in layers:
            measured.enter_context(_measured(layer, moments[id(layer)]))
        for part in parts_of(x, batch_size, steps):
            for batch in part.batches:
                model(batch, training=False)
    # Not before the end, since each scope puts the old averages back.
    for found in moments.values():
        found.assign()


def batch_normalizations(model: keras.Layer) -> list[Any]:
    """The batch normalizations of a model that training changes."""
    return [
        layer
        for layer in every_layer(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and layer.built
    ]


class _Moments:
    """Mean and variance of all inputs of a layer so far, in float64."""

    def __init__(self, layer: Any):
        self.layer = layer
        self.count = 0.0
        self.mean = np.zeros(layer.moving_mean.shape)
        self.square = np.zeros(layer.moving_mean.shape)

    def add(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Returns mean and variance of these inputs alone."""
        inputs = ops.cast(inputs, "float32")
        axis = self.layer.axis % len(inputs.shape)
        axes = [n for n in range(len(inputs.shape)) if n != axis]
        weights = ops.ones_like(ops.take(inputs, [0], axis=axis))
        if mask is not None:
            mask = ops.expand_dims(ops.cast(mask, "float32"), axis=-1)
            weights = weights * mask
        count = ops.sum(weights)
        share = weights / ops.maximum(count, 1e-7)
        mean = ops.sum(share * inputs, axes, keepdims=True)
        variance = ops.sum(share * ops.square(inputs - mean), axes)
        mean = ops.reshape(mean, variance.shape)
        self._join(*map(_to_numpy, (count, mean, variance)))
        return mean, variance

    def _join(self, count: Any, mean: Any, variance: Any) -> None:
        if count == 0:
            return
        # The sum of squares about the mean, joined (Chan et al. 1983).
        total = self.count + count
        gap = mean - self.mean
        self.mean = self.mean + gap * count / total
        self.square = self.square + (
            variance * count + gap**2 * self.count * count / total
        )
        self.count = total

    def assign(self) -> None:
        """Makes these the moving averages, if the layer was called at all."""
        if self.count:
            self.layer.moving_mean.assign(self.mean)
            self.layer.moving_variance.assign(self.square / self.count)


@contextlib.contextmanager
def _measured(layer: Any, moments: _Moments) -> Iterator[None]:
    """A layer that normalizes by its batch, and measures its inputs."""
    before = [ops.copy(v) for v in (layer.moving_mean, layer.moving_variance)]
    call: Callable = layer.call

    def measuring(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        del training
        mean, variance = moments.add(inputs, mask)
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)
        return call(inputs, training=False, mask=mask)

    # Which layers a model calls, and how often, only its own call knows.
    layer.call = measuring
    try:
        yield
    finally:
        del layer.call
        layer.moving_mean.assign(before[0])
        layer.moving_variance.assign(before[1])


def _to_numpy(x: Any) -> Any:
    return keras.ops.convert_to_numpy(x).astype("float64")
