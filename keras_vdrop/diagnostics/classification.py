"""The labels, probabilities and weights that a metric of a classifier gets."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop.core import validation

# How far rounding may take a probability out of [0, 1], in half precision.
ROUNDING = 1e-3


class ClassifierMetric(keras.metrics.Metric):
    """Base: labels as one-hot vectors, outputs as probabilities.

    Masks and sample weights mean what they mean in the metrics of Keras. What
    can be seen to be wrong is refused. In compiled code and in `fit` on jax it
    is not, and the result is not a number. An example without weight may be
    anything, as padding is.
    """

    def __init__(
        self,
        from_logits: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.from_logits = validation.check_bool("from_logits", from_logits)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        probabilities = self._probabilities(y_pred)
        labels = self._labels(y_true, tuple(probabilities.shape))
        weights = position_weights(
            probabilities[..., 0], y_pred, sample_weight, self.dtype
        )
        known = are_shares(labels) & ops.any(labels > 0, axis=-1)
        inside = are_shares(probabilities)
        counts = ops.not_equal(weights, 0)
        refuse(y_true, probabilities, counts & ~known, counts & ~inside)
        good = known & inside
        weights = ops.where(counts & ~good, float("nan"), weights)
        classes = probabilities.shape[-1]
        labels, probabilities = (
            ops.reshape(ops.where(good[..., None], rows, 0), (-1, classes))
            for rows in (labels, probabilities)
        )
        self.add_examples(labels, probabilities, ops.reshape(weights, (-1,)))

    def add_examples(
        self, labels: Any, probabilities: Any, weights: Any
    ) -> None:
        """Labels and probabilities are `(examples, classes)`."""
        raise NotImplementedError

    def _probabilities(self, y_pred: Any) -> Any:
        y_pred = ops.cast(ops.convert_to_tensor(y_pred), self.dtype)
        if len(y_pred.shape) == 0:
            raise validation.invalid("y_pred", "a batch of outputs", y_pred)
        if len(y_pred.shape) == 1:
            y_pred = ops.expand_dims(y_pred, axis=-1)
        if y_pred.shape[-1] == 1:
            if self.from_logits:
                y_pred = ops.sigmoid(y_pred)
            return ops.concatenate([1 - y_pred, y_pred], axis=-1)
        return ops.softmax(y_pred) if self.from_logits else y_pred

    def _labels(self, y_true: Any, shape: tuple[Any, ...]) -> Any:
        """One-hot labels. A number that is no class has a row of zeros."""
        y_true = ops.convert_to_tensor(y_true)
        given, examples, classes = tuple(y_true.shape), shape[:-1], shape[-1]
        if fits(given, shape) and given[-1] == classes:
            return ops.cast(y_true, self.dtype)
        if fits(given, (*examples, 1)):
            y_true = ops.squeeze(y_true, axis=-1)
        elif not fits(given, examples):
            raise validation.invalid(
                "y_true",
                f"labels of shape {examples}, or one-hot of shape {shape}, as "
                "the outputs have",
                given,
            )
        # Floats, because labels may be, and 2**32 is 0 in int32.
        numbers = ops.expand_dims(ops.cast(y_true, "float32"), axis=-1)
        matches = ops.equal(numbers, ops.arange(classes, dtype="float32"))
        return ops.cast(matches, self.dtype)

    def get_config(self) -> dict[str, Any]:
        config = {
            "from_logits": self.from_logits,
            "name": self.name,
            "dtype": self.dtype,
        }
        return config


class Mask(keras.losses.Loss):
    """The mask of `y_pred` as floats, or 1 if it has none.

    Keras has no public function for it: on jax it is not an attribute of the
    tensor. A loss multiplies with it (3.15, losses/loss.py).
    """

    def __init__(self, dtype: Any = None):
        super().__init__(reduction="none", dtype=dtype)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.ones((), dtype=self.dtype)


def position_weights(
    like: Any, y_pred: Any, sample_weight: Any, dtype: Any
) -> Any:
    """The weight of each position, the mask being a part of it.

    Args:
        like: Tensor of the shape of the positions.
        y_pred: The outputs, which may have a mask, or `None`.
        sample_weight: Weights of the examples or positions, or `None`.
        dtype: That of the result.
    """
    weights = ops.ones_like(like)
    shape = tuple(weights.shape)
    if len(shape) > 1:
        # The positions of a sequence share the weight of one example.
        positions = ops.convert_to_tensor(ops.shape(weights)[1:])
        weights = weights / ops.cast(ops.prod(positions), dtype)
    if ops.is_tensor(y_pred):
        mask = Mask(dtype=dtype)(0.0, y_pred)
        weights = weights * spread("y_pred", "a mask", mask, shape)
    if sample_weight is not None:
        sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), dtype)
        weights = weights * spread(
            "sample_weight", "weights", sample_weight, shape
        )
    return weights


def are_shares(rows: Any) -> Any:
    """Whether all of a row is in [0, 1]. What is not a number is not."""
    return ops.all((rows >= -ROUNDING) & (rows <= 1 + ROUNDING), axis=-1)


def fits(shape: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether two shapes may be the same, where they are known."""
    return len(shape) == len(expected) and all(
        size is None or other is None or size == other
        for size, other in zip(shape, expected, strict=True)
    )


def spread(
    argument: str, what: str, factor: Any, shape: tuple[Any, ...]
) -> Any:
    """Weights of the examples as weights of their positions."""
    given = tuple(factor.shape)
    if len(given) == len(shape) + 1 and given[-1] == 1:
        factor = ops.squeeze(factor, axis=-1)
    sizes = tuple(
        other if size == 1 else size
        for size, other in zip(factor.shape, shape, strict=False)
    )
    if len(factor.shape) > len(shape) or not fits(sizes, shape[: len(sizes)]):
        expected = f"{what} of shape {shape}, or of its first axes"
        raise validation.invalid(argument, expected, given)
    while len(factor.shape) < len(shape):
        factor = ops.expand_dims(factor, axis=-1)
    return factor


def refuse(y_true: Any, probabilities: Any, unknown: Any, outside: Any) -> None:
    """Raises an error for what is wrong, if it can be seen here.

    Args:
        y_true: The labels as they were given.
        probabilities: Of the classes, on the last axis.
        unknown: Booleans, for each example whether it has no label.
        outside: Booleans, for each example whether its probabilities are none.
    """
    # On jax the variables are out of the model here (3.15,
    # backend/jax/trainer.py), even in eager mode, and an error loses them.
    with keras.StatelessScope(initialize_variables=False) as scope:
        if scope.original_scope is not None:
            return
    try:
        wrong = ops.convert_to_numpy(ops.any(unknown | outside))
    except (NotImplementedError, TypeError):
        # In compiled code, and on the meta device of torch.
        return
    if not wrong:
        return
    unknown, outside, probabilities = (
        ops.convert_to_numpy(x) for x in (unknown, outside, probabilities)
    )
    if unknown.any():
        label = np.reshape(ops.convert_to_numpy(y_true), (unknown.size, -1))
        label = label[unknown.reshape(-1)][0].tolist()
        raise validation.invalid(
            "y_true",
            f"labels from 0 to {probabilities.shape[-1] - 1}, or one-hot",
            label[0] if len(label) == 1 else label,
        )
    values = probabilities[outside]
    # A model that has diverged gives what is not a number. It is shown.
    values = values[np.abs(values - 0.5) > 0.5 + ROUNDING]
    if values.size:
        raise validation.invalid(
            "y_pred",
            "probabilities in [0, 1]",
            float(values[0]),
            "Give the metric from_logits=True if the outputs are logits.",
        )
