"""The learned rates, and the two terms of the loss, in the logs of `fit`."""

import os
from typing import Any

import keras
import numpy as np

from keras_vdrop import backend
from keras_vdrop.callbacks import tensorboard
from keras_vdrop.core import validation
from keras_vdrop.diagnostics import readings
from keras_vdrop.diagnostics.report import report
from keras_vdrop.models.traversal import variational_layers


class DropoutRateLogger(keras.callbacks.Callback):
    """Puts the learned rates, and the two terms of the loss, into `logs`.

    At the end of each epoch, for a layer called `dense`:

    - `dense/rate`: its mean dropout rate;
    - `dense/kl`: its KL in nats, without the weight it has in the loss;
    - `dense/above`: the share of its weights with `log(alpha) > threshold`;

    the last two if its rates are learned. A layer with several random
    variables has these for each, as `lstm/kernel/rate`. For the model:

    - `kl_term`: what the KL of all layers contributes to `loss`;
    - `nll`: what the loss given to `compile` contributes to `loss`, the
      expected negative log-likelihood;
    - `val_nll`: the same for `val_loss`, where there is no noise.

    So `loss = nll + kl_term`, plus the regularizers of weights if there are
    any. The values of a layer are those at the end of the epoch, before another
    callback swaps weights. `kl_term` and `nll` are means over the batches, as
    `loss` is: the regularization is computed before about 16 of them and
    interpolated for the others. `val_nll` is not interpolated. What layers add
    to the loss for their outputs (`add_loss`, `activity_regularizer`) remains
    in `nll`. A metric of yours that is called `nll` or `kl_term` is left as it
    is. A training loop of your own gets `kl_term` and `nll` if it calls
    `on_train_batch_begin` and `on_train_batch_end`, or the first alone.

    Put it first in the list given to `fit`: each callback sees only the keys
    of those before it, so that a `CSVLogger`, an `EarlyStopping` or a
    `ModelCheckpoint` behind it sees these. The history and the progress bar
    always see them. A callback that monitors one needs its `mode`.

    Args:
        threshold: Float, a limit of log alpha. Weights above 3, the default,
            are mostly noise and could go.
        log_dir: Folder for TensorBoard, or `None`. A histogram of the rates of
            each layer goes to its subfolder `dropout_rates` with the number of
            the epoch as the step. Keras's `TensorBoard` callback may have the
            same folder. This needs the package tensorboard, not tensorflow.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> from keras_vdrop.callbacks import DropoutRateLogger
    >>> layer = keras_vdrop.VariationalDense(1, rate=0.2, name="dense")
    >>> model = keras.Sequential([layer])
    >>> keras_vdrop.set_num_examples(model, 8)
    >>> model.compile(keras.optimizers.SGD(0.0), "mse")
    >>> x, y = np.ones((8, 2)), np.ones((8, 1))
    >>> history = model.fit(x, y, callbacks=[DropoutRateLogger()], verbose=0)
    >>> sorted(history.history)
    ['dense/above', 'dense/kl', 'dense/rate', 'kl_term', 'loss', 'nll']
    >>> round(history.history["dense/rate"][0], 3)
    0.2
    """

    # On jax a reading takes the variables out of the compiled steps, so there
    # is not one for each batch.
    readings_per_epoch = 16
    # Keras does not wait for the results of a batch before it calls the hook
    # at its end (3.15, callbacks/callback_list.py).
    async_safe = True

    def __init__(self, threshold: float = 3.0, log_dir: str | None = None):
        super().__init__()
        self.threshold = validation.check_limit("threshold", threshold)
        self.log_dir = log_dir
        self._writer: tensorboard.HistogramWriter | None = None
        if log_dir is not None:
            tensorboard.require()

    def on_train_begin(self, logs: Any = None) -> None:
        report(self.model)  # Refuses a model that has no rates.
        # `None` for a data set of unknown length, and in a loop of one's own.
        self._steps = (self.params or {}).get("steps")
        self._steps_per_execution = self.model.steps_per_execution
        if self.log_dir is not None:
            folder = os.path.join(self.log_dir, "dropout_rates")
            self._writer = tensorboard.HistogramWriter(folder)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._readings: dict[int, tuple[float, float]] = {}
        self._next_reading = 0
        self._begun = 0
        self._ended: list[int] = []
        self._evaluated: tuple[float, float] | None = None

    # This comes after whatever other callbacks do at the beginning of an epoch.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = batch + self._steps_per_execution
        # Of unknown length, an epoch is taken to last as long again.
        length = 2 * batch if self._steps is None else self._steps
        last = self._steps is not None and self._begun >= length
        if last or batch >= self._next_reading:
            self._readings[batch] = self._regularization()
            self._next_reading = batch + length // self.readings_per_epoch

    # It may come from several threads, so it only appends.
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ended.append(batch + 1)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._evaluated = self._regularization()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs
        self._split_loss(logs)
        histogram = None if self._writer is None else tensorboard.HISTOGRAM
        for found in report(self.model, self.threshold, histogram):
            if found.shape is None:
                continue
            logs[f"{found.name}/rate"] = found.mean
            if found.kl is not None:
                logs[f"{found.name}/kl"] = found.kl
                logs[f"{found.name}/above"] = found.prunable
            if self._writer is not None:
                self._writer.add(
                    f"{found.name}/rate",
                    found.counts,
                    (found.least, found.greatest),
                    epoch,
                )

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _regularization(self) -> tuple[float, float]:
        """The KL term of the loss, and all regularization of weights."""
        # Not `model.losses`: what it has of `add_loss` belongs to the compiled
        # step, and cannot be read here.
        model = self.model
        weights = [
            weight
            for layer in variational_layers(model)
            for weight in layer.random_weights
            if weight.built
        ]
        noise = {id(weight.variable): weight for weight in weights}
        learned, losses = [], []
        for variable in model.trainable_variables:
            if id(variable) in noise:
                learned.append(noise[id(variable)])
            elif variable.regularizer is not None:
                losses.append(variable.regularizer(variable))
        scales = [weight.kl_weight for weight in learned]
        numbers = backend.to_numpy([*scales, *losses])
        kls = readings.read_kl(model, learned)
        kl = sum(
            float(scale) * kl for scale, kl in zip(numbers, kls, strict=False)
        )
        return kl, kl + sum(map(float, numbers[len(learned) :]))

    def _split_loss(self, logs: dict[str, Any]) -> None:
        if self._begun:
            kl, total = self._mean_over_batches()
            logs.setdefault("kl_term", kl)
            if "loss" in logs:
                logs.setdefault("nll", logs["loss"] - total)
        if "val_loss" in logs and self._evaluated is not None:
            logs.setdefault("val_nll", logs["val_loss"] - self._evaluated[1])

    def _mean_over_batches(self) -> tuple[float, float]:
        # On tensorflow and jax Keras begins a batch more than a data set of
        # unknown length has. The last execution may have had fewer steps than
        # the others.
        batches = max(self._ended, default=self._begun)
        batches = min(batches, self._steps or batches)
        if max(self._readings) < batches - 1:
            self._readings[batches] = self._regularization()
        kl, total = (
            float(
                np.mean(np.interp(range(batches), list(self._readings), term))
            )
            for term in zip(*self._readings.values(), strict=True)
        )
        return kl, total
