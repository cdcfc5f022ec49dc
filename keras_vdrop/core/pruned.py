"""Weights that were taken out for good while the others go on training."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.core import loading
from keras_vdrop.core.hooks import KeptAtZero
from keras_vdrop.core.hooks import zero_where

# A log alpha, or a log variance, whose exponential is zero in any dtype.
NO_NOISE = -1e4


class PrunableWeight(keras.Layer):
    """What a `RandomWeight` knows of its pruned weights.

    A pruned weight is zero: it has no noise, no KL, and no gradient with
    respect to its mean. So no optimizer brings it back. The variable `pruned`
    has the shape of the variable of the noise. There is none before the first
    weight is pruned, and nothing costs anything then.
    """

    # Of the subclass.
    variable: Any
    mean_variable: Any
    axes: Any
    granularity: str

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.pruned: Any = None

    def prune(self, which: Any) -> None:
        """Takes weights out, beside those that are out already.

        Args:
            which: Boolean array of the shape of the variable of the noise.
        """
        if self.pruned is None:
            self._add_pruned()
        before = ops.convert_to_tensor(self.pruned)
        self.pruned.assign(ops.logical_or(before, which))
        self.mean_variable.assign(self.kept_mean())
        self._constrain()

    def _add_pruned(self) -> None:
        # Keras closes a layer for new variables once it is built.
        self._tracker.unlock()
        self.pruned = self.add_weight(
            name="pruned",
            shape=self.variable.shape,
            initializer="zeros",
            dtype="bool",
            trainable=False,
        )
        self._tracker.lock()

    def _constrain(self) -> None:
        mean = self.mean_variable
        before = mean.constraint
        if isinstance(before, KeptAtZero):
            before = before.before
        # A copy: on jax a training step deletes the values of variables.
        pruned = ops.copy(self._pruned_means())
        mean.constraint = KeptAtZero(pruned, before)

    def _pruned_means(self) -> Any:
        """Which weights were pruned, to broadcast against the kernel."""
        pruned = ops.convert_to_tensor(self.pruned)
        return self.axes.over_kernel(pruned, self.granularity)

    def kept_mean(self) -> Any:
        """The mean that noise is added to, in the dtype of its variable."""
        if self.pruned is None:
            return self.mean_variable
        return zero_where(self._pruned_means(), self.mean_variable)

    def kept_noise(self) -> Any:
        """The variable of the noise, with no noise for pruned weights."""
        return self.unless_pruned(self.variable, NO_NOISE)

    def unless_pruned(self, values: Any, otherwise: float) -> Any:
        """Values in the shape of the variable, others where pruned."""
        if self.pruned is None:
            return values
        values = ops.convert_to_tensor(values)
        pruned = ops.convert_to_tensor(self.pruned)
        return ops.where(pruned, ops.cast(otherwise, values.dtype), values)

    def save_own_variables(self, store: Any) -> None:
        loading.save_noise(self, store)

    def load_own_variables(self, store: Any) -> None:
        if not self.built:
            super().load_own_variables(store)  # Keras tells why it cannot.
            return
        loading.check_noise(self, store)
        is_pruned = "pruned" in store.keys()
        if is_pruned and self.pruned is None:
            self._add_pruned()
        loading.load_noise(self, store)
        if self.pruned is not None:
            if not is_pruned:
                self.pruned.assign(ops.zeros(self.pruned.shape, "bool"))
            self._constrain()
