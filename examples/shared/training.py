"""Training of a classifier, its progress, and its error."""

import time

import keras
import numpy as np

from shared.networks import adaptive_layers


def set_num_examples(model, num_examples, kl_downscale=1.0):
    """Weighs the KL of the layers that learn their rates, if there are any.

    A layer keeps its own `kl_downscale`, which is multiplied by the given one.
    """
    for layer in adaptive_layers(model):
        layer.set_num_examples(num_examples, layer.kl_downscale * kl_downscale)


def compile_classifier(model, num_examples, optimizer, kl_downscale=1.0):
    """Compiles for cross-entropy and the KL of the adaptive layers."""
    set_num_examples(model, num_examples, kl_downscale)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def steps_of(epochs, examples, batch_size):
    """Returns the number of training steps, for a learning-rate schedule."""
    return epochs * -(-examples // batch_size)


def steps_per_execution(number):
    """Returns how many steps are one call: 1 on torch, which has no other."""
    return 1 if keras.backend.backend() == "torch" else number


def error_percent(model, data):
    """Returns the error of the model without noise."""
    logits = model.predict(data[0], batch_size=1000, verbose=0)
    return 100 * float(np.mean(np.argmax(logits, axis=-1) != data[1]))


class EpochLine(keras.callbacks.Callback):
    """Shows the run, its epoch and its loss in one line that it overwrites."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def on_train_begin(self, logs=None):
        self.start, self.done = time.time(), 0

    def on_epoch_end(self, epoch, logs):
        epochs = self.params["epochs"]
        self.done += 1  # A resumed training does not begin at epoch 0.
        each = (time.time() - self.start) / self.done
        shown = f"loss {logs['loss']:.4f}"
        if "val_accuracy" in logs:
            shown += f", validation {100 * (1 - logs['val_accuracy']):.2f}%"
        print(
            f"\r{self.label}: epoch {epoch + 1}/{epochs}, {shown}, "
            f"{duration((epochs - epoch - 1) * each)} left" + 8 * " ",
            end="" if epoch + 1 < epochs else "\n",
            flush=True,
        )


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
