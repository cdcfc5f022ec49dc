"""Batch normalization that fits the mean weights, before each validation."""

from typing import Any

import keras

from keras_vdrop.models.batch_normalization import update_batch_normalization


class BatchNormalizationUpdate(keras.callbacks.Callback):
    """Estimates the moving averages of batch normalization anew.

    It calls `keras_vdrop.update_batch_normalization` before each validation
    of `fit`, so that `val_loss` and other callbacks see the model that
    `predict` has, and at the end of training.

    Args:
        x: Training data, as in `keras_vdrop.update_batch_normalization`.
        batch_size, steps: As in `keras_vdrop.update_batch_normalization`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras_vdrop.VariationalDense(4, num_examples=64),
    ...     keras.layers.BatchNormalization(),
    ...     keras.layers.Dense(1),
    ... ])
    >>> model.compile("adam", "mse")
    >>> x, y = np.random.normal(size=(64, 3)), np.zeros((64, 1))
    >>> update = keras_vdrop.callbacks.BatchNormalizationUpdate(x)
    >>> history = model.fit(
    ...     x, y, validation_split=0.5, callbacks=[update], verbose=0
    ... )
    """

    def __init__(
        self,
        x: Any,
        batch_size: int | None = None,
        steps: int | None = None,
    ):
        super().__init__()
        self.x = x
        self.batch_size = batch_size
        self.steps = steps
        self._training = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._training = True

    def on_test_begin(self, logs: Any = None) -> None:
        if self._training:
            self._update()

    def on_train_end(self, logs: Any = None) -> None:
        self._training = False
        self._update()

    def _update(self) -> None:
        update_batch_normalization(
            self.model, self.x, self.batch_size, self.steps
        )
