"""How many errors are left if the least sure predictions are refused."""

import math
from typing import Any

import keras
from keras import ops

from keras_vdrop.core import validation
from keras_vdrop.diagnostics.classification import ClassifierMetric

# A smaller probability of all other classes counts as this.
SUREST = 1e-10


@keras.saving.register_keras_serializable(package="keras_vdrop")
class AreaUnderRiskCoverage(ClassifierMetric):
    """The mean error rate over all shares of predictions that are kept.

    Predictions are kept in the order of their confidence, the probability of
    the predicted class. The result is the error rate of those that are kept,
    averaged over the share from 0 to 1 (Geifman and El-Yaniv 2017). Lower is
    better: 0 is no error at all, and the error rate of all predictions is a
    confidence that says nothing.

    Examples are sorted into bins of the logarithm of the probability of the
    other classes, down to 1e-10. The order inside a bin counts as random.

    Args:
        num_bins: Positive integer.
        from_logits: Boolean, whether the model gives logits or
            probabilities. Labels are integers or one-hot; outputs of shape
            `(batch,)` or `(batch, 1)` are for the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.AreaUnderRiskCoverage()
    >>> metric.update_state([0, 1], [[0.9, 0.1], [0.9, 0.1]])
    >>> float(metric.result())
    0.5
    """

    def __init__(
        self,
        num_bins: int = 1000,
        from_logits: bool = False,
        name: str = "aurc",
        dtype: Any = None,
    ):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)
        self.num_bins = validation.check_count("num_bins", num_bins)
        # Rows: the weight and the errors in each bin.
        self.bins = self.add_weight(
            shape=(2, self.num_bins), name="bins", initializer="zeros"
        )

    def add_examples(
        self, labels: Any, probabilities: Any, weights: Any
    ) -> None:
        predicted = ops.argmax(probabilities, axis=-1)
        wrong = ops.cast(predicted != ops.argmax(labels, axis=-1), self.dtype)
        # Not 1 - confidence, of which rounding leaves nothing.
        others = 1 - ops.one_hot(
            predicted, probabilities.shape[-1], dtype=self.dtype
        )
        doubt = ops.sum(others * probabilities, axis=-1)
        doubt = ops.clip(doubt, SUREST, 1.0)
        number = 1 - ops.log(doubt) / math.log(SUREST)
        number = ops.cast(ops.floor(number * self.num_bins), "int32")
        number = ops.clip(number, 0, self.num_bins - 1)
        member = ops.one_hot(number, self.num_bins, dtype=self.dtype)
        rows = ops.stack([weights, weights * wrong])
        self.bins.assign_add(ops.matmul(rows, member))

    def result(self) -> Any:
        weight, wrong = ops.unstack(self.bins.value, 2)
        total = ops.sum(weight)
        weight, wrong = (ops.divide_no_nan(x, total) for x in (weight, wrong))
        kept, errors = ops.cumsum(weight), ops.cumsum(wrong)
        before = kept - weight
        # In a bin the errors grow evenly: the integral of
        # (errors before + rate * (share - before)) / share.
        rate = ops.divide_no_nan(wrong, weight)
        ratio = ops.where(before > 0, ops.divide_no_nan(kept, before), 1.0)
        ratio = ops.where(weight > 0, ratio, 1.0)
        inside = (errors - wrong - rate * before) * ops.log(ratio)
        return ops.sum(inside + rate * weight)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_bins": self.num_bins}
