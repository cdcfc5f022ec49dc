"""Callbacks for `fit`."""

import inspect
import os
import time

import keras
import numpy as np

from keras_vdrop import insight
from keras_vdrop import validation
from keras_vdrop.objective import variational_layers


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

    def __init__(self, epochs, start=0.0):
        super().__init__()
        self.epochs = validation.check_count("epochs", epochs)
        self.start = validation.check_share("start", start)

    def on_epoch_begin(self, epoch, logs=None):
        share = self.start + (1 - self.start) * min(epoch / self.epochs, 1)
        for layer in variational_layers(self.model):
            layer.scale_kl(share)


class DropoutRateLogger(keras.callbacks.Callback):
    """Puts the learned rates, and the two terms of the loss, into `logs`.

    At the end of each epoch, for a layer called `dense`:

    - `dense/rate`: its mean dropout rate;
    - `dense/kl`: its KL in nats, without the weight it has in the loss;
    - `dense/above`: the share of its weights with `log(alpha) > threshold`;

    the last two if its rates are learned; and for the model:

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
    is.

    The callback may be anywhere in the list given to `fit`: it moves to the
    front, so that the progress bar, the history, `CSVLogger`, `TensorBoard`,
    `EarlyStopping` and their like all see the keys. A callback that monitors
    one needs its `mode`.

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

    def __init__(self, threshold=3.0, log_dir=None):
        super().__init__()
        self.threshold = validation.check_limit("threshold", threshold)
        self.log_dir = log_dir
        self._writer = None
        if log_dir is not None:
            _import_tensorboard()

    def set_model(self, model):
        super().set_model(model)
        _move_to_front(self)

    def on_train_begin(self, logs=None):
        insight.report(self.model)  # Refuses a model that has no rates.
        # `None` for a data set of unknown length.
        self._steps = self.params.get("steps")
        self._steps_per_execution = self.model.steps_per_execution
        if self.log_dir is not None:
            folder = os.path.join(self.log_dir, "dropout_rates")
            self._writer = _HistogramWriter(folder)

    def on_epoch_begin(self, epoch, logs=None):
        self._readings = {}
        self._next_reading = 0
        self._batches = 0
        self._evaluated = None

    # The hooks at the end of a batch would make Keras wait for the results of
    # each (3.15, callbacks/callback_list.py). These come after whatever other
    # callbacks do at the beginning of an epoch or an evaluation.
    def on_train_batch_begin(self, batch, logs=None):
        self._batches = batch + self._steps_per_execution
        # Of unknown length, an epoch is taken to last as long again.
        length = 2 * batch if self._steps is None else self._steps
        last = self._steps is not None and self._batches >= length
        if last or batch >= self._next_reading:
            self._readings[batch] = self._regularization()
            self._next_reading = batch + length // self.readings_per_epoch

    def on_test_batch_begin(self, batch, logs=None):
        if batch == 0:
            self._evaluated = self._regularization()

    def on_epoch_end(self, epoch, logs=None):
        logs = {} if logs is None else logs
        self._split_loss(logs)
        for found in insight.report(self.model, self.threshold):
            if found.rates is None:
                continue
            logs[f"{found.name}/rate"] = float(np.mean(found.rates))
            if found.kl is not None:
                logs[f"{found.name}/kl"] = found.kl
                logs[f"{found.name}/above"] = found.removable
            if self._writer is not None:
                self._writer.add(f"{found.name}/rate", found.rates, epoch)

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _regularization(self):
        """The KL term of the loss, and all regularization of weights."""
        # Not `model.losses`: what it has of `add_loss` belongs to the compiled
        # step, and cannot be read here.
        model = self.model
        noise = {
            id(layer._noise_variable)
            for layer in variational_layers(model)
            if layer.built
        }
        kl = total = 0.0
        for variable in model.trainable_variables:
            if variable.regularizer is not None:
                loss = variable.regularizer(variable)
                loss = float(keras.ops.convert_to_numpy(loss))
                total += loss
                kl += loss if id(variable) in noise else 0.0
        return kl, total

    def _split_loss(self, logs):
        if self._steps is None:
            self._readings[self._batches] = self._regularization()
        # The last execution may have had fewer steps than the others.
        batches = range(min(self._batches, self._steps or self._batches))
        kl, total = (
            np.mean(np.interp(batches, list(self._readings), term))
            for term in zip(*self._readings.values(), strict=True)
        )
        logs.setdefault("kl_term", float(kl))
        if "loss" in logs:
            logs.setdefault("nll", logs["loss"] - float(total))
        if "val_loss" in logs and self._evaluated is not None:
            logs.setdefault("val_nll", logs["val_loss"] - self._evaluated[1])


def _move_to_front(callback):
    """Puts a callback before all others of the list that is being set up.

    Each callback sees what those before it have put into `logs`. Keras 3.15
    gives none of them the list, but it is the list that calls `set_model`.
    Called by anything else, nothing is moved.
    """
    # From the caller on: a frame that holds itself would not be freed.
    frame = inspect.currentframe().f_back
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            others = [each for each in caller.callbacks if each is not callback]
            if len(others) < len(caller.callbacks):
                caller.callbacks = [callback, *others]
                return
        frame = frame.f_back


class _HistogramWriter:
    """An event file for TensorBoard, written without tensorflow.

    TensorBoard's own `EventFileWriter` imports tensorflow where it is
    installed, whatever the backend.
    """

    def __init__(self, folder):
        self._event, self._histogram, record_writer = _import_tensorboard()
        os.makedirs(folder, exist_ok=True)
        # TensorBoard knows the files by this name and reads them in its order.
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        self._records = record_writer(open(os.path.join(folder, name), "wb"))
        self._write(file_version="brain.Event:2")

    def add(self, tag, values, step):
        self._write(step=step, summary=self._histogram(tag, values))

    def close(self):
        self._records.close()

    def _write(self, **content):
        event = self._event(wall_time=time.time(), **content)
        self._records.write(event.SerializeToString())
        self._records.flush()


def _import_tensorboard():
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ImportError(
            "`DropoutRateLogger` writes to its `log_dir` with tensorboard. "
            "Install it: pip install tensorboard"
        ) from error
    return Event, histogram_pb, RecordWriter
