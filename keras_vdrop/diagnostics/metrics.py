"""How well the probabilities of a classifier are calibrated."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.core import validation
from keras_vdrop.diagnostics.classification import ClassifierMetric
from keras_vdrop.diagnostics.regression import IntervalCoverage
from keras_vdrop.diagnostics.regression import IntervalScore
from keras_vdrop.diagnostics.risk import AreaUnderRiskCoverage

__all__ = [
    "AreaUnderRiskCoverage",
    "BrierScore",
    "ExpectedCalibrationError",
    "IntervalCoverage",
    "IntervalScore",
    "NegativeLogLikelihood",
]

TINY = 1e-30


class MeanOfExamples(ClassifierMetric):
    """Base: the weighted mean of a value of each example."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def add_examples(
        self, labels: Any, probabilities: Any, weights: Any
    ) -> None:
        values = self.value(labels, probabilities)
        self.total.assign_add(ops.sum(weights * values))
        self.count.assign_add(ops.sum(weights))

    def value(self, labels: Any, probabilities: Any) -> Any:
        raise NotImplementedError

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class NegativeLogLikelihood(MeanOfExamples):
    """Mean of `-log p(label)`, in nats.

    Args:
        from_logits: Boolean, whether the model gives logits or
            probabilities. Labels are integers or one-hot; outputs of shape
            `(batch,)` or `(batch, 1)` are for the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.NegativeLogLikelihood()
    >>> metric.update_state([0, 1], [[0.5, 0.5], [0.5, 0.5]])
    >>> round(float(metric.result()), 4)
    0.6931
    """

    def __init__(
        self, from_logits: bool = False, name: str = "nll", dtype: Any = None
    ):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)

    def value(self, labels: Any, probabilities: Any) -> Any:
        # Zero times the log of a zero is zero, and a label that was held to
        # be impossible costs a finite 69 nats.
        logs = ops.log(ops.maximum(probabilities, TINY))
        return -ops.sum(labels * logs, axis=-1)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class BrierScore(MeanOfExamples):
    """Mean of the squared distance of the probabilities from the label.

    Summed over the classes, so that it lies in [0, 2] (Brier 1950).

    Args:
        from_logits: Boolean, whether the model gives logits or
            probabilities. Labels are integers or one-hot; outputs of shape
            `(batch,)` or `(batch, 1)` are for the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.BrierScore()
    >>> metric.update_state([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    >>> float(metric.result())
    0.25
    """

    def __init__(
        self, from_logits: bool = False, name: str = "brier", dtype: Any = None
    ):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)

    def value(self, labels: Any, probabilities: Any) -> Any:
        return ops.sum(ops.square(probabilities - labels), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class ExpectedCalibrationError(ClassifierMetric):
    """How far confidence is from accuracy, on average.

    Examples are sorted into bins of equal width by the probability of the
    predicted class. The result is `|accuracy - mean confidence|` of each bin,
    averaged with the number of its examples (Guo et al. 2017).

    Args:
        num_bins: Positive integer.
        from_logits: Boolean, whether the model gives logits or
            probabilities. Labels are integers or one-hot; outputs of shape
            `(batch,)` or `(batch, 1)` are for the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.ExpectedCalibrationError()
    >>> metric.update_state([0, 1], [[0.75, 0.25], [0.75, 0.25]])
    >>> float(metric.result())
    0.25
    """

    def __init__(
        self,
        num_bins: int = 15,
        from_logits: bool = False,
        name: str = "ece",
        dtype: Any = None,
    ):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)
        self.num_bins = validation.check_count("num_bins", num_bins)
        # Rows: the weight, the accuracy and the confidence in each bin.
        self.bins = self.add_weight(
            shape=(3, self.num_bins), name="bins", initializer="zeros"
        )

    def add_examples(
        self, labels: Any, probabilities: Any, weights: Any
    ) -> None:
        confidence = ops.max(probabilities, axis=-1)
        predicted = ops.argmax(probabilities, axis=-1)
        correct = ops.cast(predicted == ops.argmax(labels, axis=-1), self.dtype)
        number = ops.floor(confidence * self.num_bins)
        number = ops.cast(ops.clip(number, 0, self.num_bins - 1), "int32")
        member = ops.one_hot(number, self.num_bins, dtype=self.dtype)
        rows = ops.stack([weights, weights * correct, weights * confidence])
        self.bins.assign_add(ops.matmul(rows, member))

    def result(self) -> Any:
        weight, correct, confidence = ops.unstack(self.bins.value, 3)
        return ops.divide_no_nan(
            ops.sum(ops.abs(correct - confidence)), ops.sum(weight)
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_bins": self.num_bins}
