"""A KL that comes in over the first epochs."""

from typing import Any

import keras

from keras_vdrop.core import validation
from keras_vdrop.models.traversal import variational_layers


class KLWarmup(keras.callbacks.Callback):
    """Lets the KL in over the first epochs.

    In epoch `e`, counted from 0, the KL of each layer has a share of its full
    weight, `start + (1 - start) * min(e / epochs, 1)`. Nothing is compiled
    anew. A training that is resumed, with `initial_epoch` or by
    `keras.callbacks.BackupAndRestore`, goes on where it was.

    Args:
        epochs: Positive integer, the epoch from which the KL has its full
            weight.
        start: Float in [0, 1], the share of it in the first epoch.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras_vdrop.VariationalDense(1)])
    >>> keras_vdrop.set_num_examples(model, 8)
    >>> model.compile("adam", "mse")
    >>> warmup = keras_vdrop.callbacks.KLWarmup(4)
    >>> x, y = np.ones((8, 2)), np.ones((8, 1))
    >>> history = model.fit(x, y, epochs=2, callbacks=[warmup], verbose=0)
    >>> float(model.layers[0].kl_weight.numpy()) * 8
    0.25

    Reference:

    - [Bowman et al., 2016](https://arxiv.org/abs/1511.06349)
    """

    def __init__(self, epochs: int, start: float = 0.0):
        super().__init__()
        self.epochs = validation.check_count("epochs", epochs)
        self.start = validation.check_share("start", start)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        share = self.start + (1 - self.start) * min(epoch / self.epochs, 1)
        for layer in variational_layers(self.model):
            layer.scale_kl(share)
