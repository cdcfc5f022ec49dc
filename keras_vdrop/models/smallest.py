"""The smallest file of a model within an allowed loss."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vdrop.coding import grid
from keras_vdrop.core import validation
from keras_vdrop.models import pruning
from keras_vdrop.models.compressed import to_bytes
from keras_vdrop.models.conversion import to_deterministic
from keras_vdrop.models.conversion_arguments import check_model
from keras_vdrop.models.rebuild import copy_weights
from keras_vdrop.models.rebuild import rebuild
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers

PRECISIONS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
# Weights without noise begin with so many digits before they lose some.
FINEST = 2.0**-8


def compress(
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Any = None,
    allowed: float = 0.01,
    prune: Sequence[float] = (0.0, 1.0, 2.0, 3.0),
    precision: Sequence[float] = PRECISIONS,
    batch_size: int = 256,
    verbose: int = 1,
) -> keras.Model:
    """The plain model with the smallest file whose loss is hardly higher.

    The loss is measured on data that the model was not trained on. Of the
    models that `to_deterministic` makes with each threshold of `prune`, the
    coarsest `precision` is taken that raises the loss by no more than
    `allowed`, and of these the model with the smallest file. Then all weights
    and biases, those of layers without noise and the statistics of batch
    normalization too, get a grid of twice the step, array by array, again and
    again, as long as the loss allows it. Units that are left without use are
    removed.

    Args:
        model: A built `keras.Model`, variational or plain. It is left as it
            is. Of a plain one the weights are rounded, and none are pruned
            but those that rounding makes zero.
        x, y: Validation data, whatever `keras.Model.evaluate` takes. Not the
            test data: what is chosen by them fits them.
        loss: A Keras loss or its name, or `None` for the one that the model is
            compiled with.
        allowed: Float above 0, by how much the loss may rise above that of the
            model without rounding and pruning.
        prune: The thresholds of log alpha to try.
        precision: The steps to try, in standard deviations.
        batch_size: Examples in a batch of the evaluation.
        verbose: 0 or 1, whether to show the progress, and the outcome.

    Returns:
        A plain model, not compiled. `keras_vdrop.save_compressed` saves it.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> x = np.random.normal(size=(64, 3))
    >>> y = model.predict(x, verbose=0)
    >>> small = keras_vdrop.compress(model, x, y, "mse", 0.1, verbose=0)
    >>> float(np.mean((small.predict(x, verbose=0) - y) ** 2)) < 0.1
    True
    """
    check_model(model)
    if loss is None:
        loss = getattr(model, "loss", None)
    if loss is None:
        raise validation.invalid(
            "loss", "a Keras loss, or a model compiled with one", loss
        )
    allowed = validation.check_positive("allowed", allowed)
    for name, values in (("prune", prune), ("precision", precision)):
        if not isinstance(values, (list, tuple)) or not values:
            raise validation.invalid(name, "a list of floats to try", values)
    batch_size = validation.check_count("batch_size", batch_size)
    search = _Search(x, y, loss, batch_size, verbose)
    limit = search.loss_of(_plain(model)) + allowed
    found = _plain(model)
    if variational_layers(model):
        found = search.thresholds(model, prune, sorted(precision), limit)
    search.coarsen(found, limit)
    # What the removed units gave is in biases now, with more digits.
    while (small := _without_unused(found)) is not None:
        found = small
        search.coarsen(found, limit)
    search.done(found)
    return _plain(found)


class _Search:
    """Evaluates models, and shows how far it is."""

    def __init__(
        self, x: Any, y: Any, loss: Any, batch_size: int, verbose: int
    ):
        self.data = {"x": x, "y": y, "batch_size": batch_size, "verbose": 0}
        self.loss = loss
        self.verbose = verbose
        self.progress = keras.utils.Progbar(
            None, verbose=verbose, unit_name="model", stateful_metrics=["loss"]
        )

    def loss_of(self, model: Any) -> float:
        if not model.compiled:
            model.compile(loss=self.loss)
        found = float(model.evaluate(**self.data, return_dict=True)["loss"])
        self.progress.add(1, [("loss", found)])
        return found

    def thresholds(
        self,
        model: keras.Model,
        thresholds: Sequence[float],
        precisions: Sequence[float],
        limit: float,
    ) -> keras.Model:
        """The smallest of the models of each threshold that are allowed."""
        best, smallest = None, np.inf
        for threshold in thresholds:
            # The coarsest that is allowed, by halves.
            low, high = 0, len(precisions)
            while low < high:
                middle = (low + high) // 2
                found = to_deterministic(
                    model, threshold, 0, precision=precisions[middle]
                )
                if self.loss_of(found) > limit:
                    high = middle
                    continue
                low = middle + 1
                size = len(to_bytes(found))
                if size < smallest:
                    best, smallest = found, size
        return _plain(model) if best is None else best

    def coarsen(self, model: keras.Model, limit: float) -> None:
        """Doubles the steps of a model, array by array, while it may."""
        steps = [
            [variable, _first_step(variable)] for variable in _arrays(model)
        ]
        while steps:
            steps = [
                [variable, 2 * step]
                for variable, step in steps
                if self._rounds(model, variable, step, limit)
            ]

    def _rounds(
        self, model: keras.Model, variable: Any, step: float, limit: float
    ) -> bool:
        """Rounds a variable if the loss allows it, and it is not zero yet."""
        before = keras.ops.convert_to_numpy(variable)
        after = grid.rounded(before, step).astype(before.dtype)
        if not before.any():
            return False
        if np.array_equal(before, after):
            return True
        variable.assign(after)
        if self.loss_of(model) <= limit:
            return True
        variable.assign(before)
        return False

    def done(self, model: keras.Model) -> None:
        if self.verbose:
            size, count = len(to_bytes(model)), model.count_params()
            kept = sum(np.count_nonzero(w) for w in model.get_weights())
            print(
                f"\n{size:,} bytes for {kept:,} of {count:,} weights that are "
                "not zero"
            )


def _plain(model: keras.Model) -> keras.Model:
    """A plain model of its own, not compiled."""
    if variational_layers(model):
        return to_deterministic(model, verbose=0)
    same = rebuild(model, lambda *_: None)
    copy_weights(model, same)
    return same


def _arrays(model: keras.Model) -> list[Any]:
    """All that may be rounded, the largest first."""
    found = list(model.trainable_variables)
    for layer in every_layer(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            found += layer.non_trainable_variables
    found = [x for x in found if keras.backend.is_float_dtype(x.dtype)]
    unique = {id(variable): variable for variable in found}
    return sorted(unique.values(), key=lambda x: -int(np.prod(x.shape)))


def _first_step(variable: Any) -> float:
    """Twice the step of what is on a grid, or a fine one."""
    values = keras.ops.convert_to_numpy(variable)
    exponent = grid.find_exponent(values.astype("float32"))
    largest = float(np.abs(values.astype("float64")).max(initial=0))
    if largest == 0:
        return 1.0
    fine = grid.nearest_step(largest * FINEST)
    return fine if exponent is None else max(fine, 2.0 ** (exponent + 1))


def _without_unused(model: keras.Model) -> keras.Model | None:
    """A model without the units that rounding has left without use, if any."""
    removal = pruning.plan_removal(model)
    if all(kept.all() for kept in removal.kept.values()):
        return None
    small = rebuild(model, removal.smaller)
    copy_weights(model, small, removal.select)
    return small
