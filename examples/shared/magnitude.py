"""The rival: gradual magnitude pruning.

The plain network is trained on. Before each epoch its smallest weights are set
to zero and stay zero. Their share grows as a cubic of the time, and does so
for two thirds of it. Meanwhile the learning rate falls to zero.

Reference:

- [Zhu, Gupta, 2017](https://arxiv.org/abs/1710.01878)
"""

import keras
import numpy as np

from shared.sparse import kernels

# The share of the training in which weights are removed.
UNTIL = 2 / 3


class MaskedAdam(keras.optimizers.Adam):
    """Keeps weights at zero whose mask is zero."""

    def build(self, variables):
        super().build(variables)
        self.masks = {
            x.path: self.add_variable_from_reference(x, "mask", "ones")
            for x in variables
        }

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign(variable, variable * self.masks[variable.path])


class GradualPruning(keras.callbacks.Callback):
    """Sets more and more weights to zero, before each epoch of `fit`.

    Args:
        kept: The number of weights of each kernel that are left in the end, or
            that of all kernels together.
    """

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def on_epoch_begin(self, epoch, logs=None):
        progress = epoch / (UNTIL * self.params["epochs"])
        left = (1 - min(progress, 1)) ** 3
        found = kernels(self.model)
        values = [keras.ops.convert_to_numpy(kernel) for kernel in found]
        masked = self.model.optimizer.masks
        masks = masks_of(values, self.kept, left)
        for kernel, value, mask in zip(found, values, masks, strict=True):
            kernel.assign(value * mask)
            masked[kernel.path].assign(mask)


def masks_of(values, kept, left):
    """Returns which weights are the largest, of each kernel or of all."""
    if isinstance(kept, int):
        sizes = np.concatenate([np.abs(x).ravel() for x in values])
        limit = limit_of(sizes, kept, left)
        return [np.abs(x) >= limit for x in values]
    return [
        np.abs(x) >= limit_of(np.abs(x).ravel(), count, left)
        for x, count in zip(values, kept, strict=True)
    ]


def limit_of(sizes, kept, left):
    """Returns the size from which on weights are kept, not 0."""
    count = kept + round((sizes.size - kept) * left)
    smallest = np.partition(sizes, sizes.size - count)[sizes.size - count]
    return max(smallest, np.finfo("float32").tiny)


def gradual(stages, kept, epochs, name):
    """Returns the plain network with so many weights left."""

    def train():
        model = stages.model("plain")
        callbacks = [GradualPruning(kept)]
        stages.fit(model, name, epochs, callbacks, optimizer=MaskedAdam)
        return model

    return stages.stored(name, train)
