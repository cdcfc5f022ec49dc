"""The number of training examples, taken from what `fit` trains on."""

import warnings
from typing import Any

import keras

from keras_vdrop.core import counting
from keras_vdrop.core.seeds import tell_apart
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.models.traversal import require_variational_layers

# What Keras takes by default, until the first batch has been seen.
BATCH_SIZE = 32
# Stands for a number that is not known before the end of the first epoch.
MANY = 1_000_000


class CountExamples(keras.callbacks.Callback):
    """Gives the variational layers the number of examples of `fit`.

    It counts what `fit` really trains on: without the part that
    `validation_split` takes away, of each fold of a cross-validation anew, and
    examples where a data set has batches. So `set_num_examples` is not needed.

    - Of data with a length, the number is known to within a batch after the
      first step, and exactly after the first epoch. For the first step 32
      examples a batch are assumed.
    - Of data without one, such as a generator, it is known after the first
      epoch. Until then it is taken to be a million, so that the KL hardly
      counts.

    A number that you gave to `set_num_examples` or to a layer stays. A warning
    tells if it is more than a batch away from what an epoch has.

    An epoch counts as the whole training set. Where it is not, because of
    `steps_per_epoch` or of data that are repeated, use `set_num_examples`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras_vdrop.VariationalDense(1)])
    >>> model.compile("adam", "mse")
    >>> x, y = np.ones((50, 2)), np.ones((50, 1))
    >>> count = keras_vdrop.callbacks.CountExamples()
    >>> history = model.fit(
    ...     x, y, validation_split=0.2, callbacks=[count], verbose=0
    ... )
    >>> model.layers[0].num_examples
    40
    """

    def __init__(self) -> None:
        super().__init__()
        counting.announce(self)
        self._counting = False
        self._batch_size: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        layers = require_variational_layers(self.model)
        tell_apart(
            weight for layer in layers for weight in layer.random_weights
        )
        self._steps = (self.params or {}).get("steps")
        self._counting = True
        self._batch_size = None
        steps = self._steps
        self._set(MANY if steps is None else steps * BATCH_SIZE)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._counting or self._batch_size is not None or not batch:
            return
        if hasattr(self.model, "jax_state_sync"):
            # There the metrics are out of the model while it trains.
            self.model.jax_state_sync()
        self._batch_size = round(self._seen() / batch)
        if self._batch_size and self._steps is not None:
            self._set(self._batch_size * self._steps)

    # Comes before the metrics are reset for the validation of an epoch.
    def on_test_begin(self, logs: Any = None) -> None:
        self._end_of_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end_of_epoch()

    def _end_of_epoch(self) -> None:
        if not self._counting:
            return
        self._counting = False
        seen = self._seen()
        if not seen:
            warnings.warn(
                "`CountExamples` found no examples: the `train_step` of the "
                "model does not update its metric of the loss. Call "
                "`keras_vdrop.set_num_examples(model, len(x_train))`.",
                stacklevel=2,
            )
            return
        self._set(seen)
        self._compare(seen)

    def _seen(self) -> int:
        """The number of examples since the beginning of the epoch."""
        # Keras weighs the loss of each batch by its size.
        for metric in self.model.metrics:
            if metric.name == "loss" and hasattr(metric, "count"):
                return round(float(keras.ops.convert_to_numpy(metric.count)))
        return 0

    def _set(self, number: int) -> None:
        for layer in self._layers(counted=True):
            arguments = layer.noise_arguments
            share = arguments.kl_share  # Of a warm-up.
            layer.set_num_examples(number, layer.kl_downscale)
            layer.scale_kl(share)
            arguments.counted = True

    def _compare(self, seen: int) -> None:
        batch_size = self._batch_size or 0
        for layer in self._layers(counted=False):
            given = layer.num_examples or 0
            if abs(given - seen) > batch_size:
                warnings.warn(
                    f"Layer '{layer.name}' was given num_examples={given}, "
                    f"and an epoch has {seen} examples. The KL is divided by "
                    "the number that was given. If an epoch is the whole "
                    "training set, call "
                    f"`keras_vdrop.set_num_examples(model, {seen})`.",
                    stacklevel=2,
                )
                return

    def _layers(self, counted: bool) -> list[VariationalLayer]:
        """Those whose number is counted, or those whose number was given."""
        return [
            layer
            for layer in require_variational_layers(self.model)
            if counted
            == (layer.num_examples is None or layer.noise_arguments.counted)
        ]
