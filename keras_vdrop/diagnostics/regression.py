"""How good the intervals of a regression are."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.core import gaussian
from keras_vdrop.core import validation
from keras_vdrop.diagnostics.classification import position_weights
from keras_vdrop.models.mixture import normal_quantile


class IntervalMetric(keras.metrics.Metric):
    """Base: the weighted mean of a value of each target and its interval.

    The mean of the features of an example is one value. Masks and sample
    weights mean what they mean in the metrics of Keras.
    """

    def __init__(
        self,
        level: float = 0.9,
        likelihood: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.level = validation.check_rate("level", level)
        if likelihood is not None:
            validation.check_choice("likelihood", likelihood, ("gaussian",))
        self.likelihood = likelihood
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        outputs = ops.cast(ops.convert_to_tensor(y_pred), self.dtype)
        low, high = self._ends(outputs)
        y_true = ops.cast(ops.convert_to_tensor(y_true), self.dtype)
        y_true, low, high = _alike(y_true, low, high)
        values = ops.mean(self.value(y_true, low, high), axis=-1)
        # The mask belongs to the outputs as they were given.
        masked = y_pred if self.likelihood else None
        weights = position_weights(values, masked, sample_weight, self.dtype)
        # An example without weight may be anything, as padding is.
        values = ops.where(ops.not_equal(weights, 0), values, 0)
        self.total.assign_add(ops.sum(weights * values))
        self.count.assign_add(ops.sum(weights))

    def value(self, y_true: Any, low: Any, high: Any) -> Any:
        raise NotImplementedError

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)

    def _ends(self, outputs: Any) -> tuple[Any, Any]:
        if self.likelihood is None:
            if len(outputs.shape) < 2 or outputs.shape[-1] != 2:
                raise validation.invalid(
                    "y_pred",
                    "the ends of intervals, two on the last axis",
                    f"shape {tuple(outputs.shape)}",
                    "`keras_vdrop.predict(...).interval(level)` has this "
                    "form. For outputs that are means and log variances give "
                    'the metric `likelihood="gaussian"`.',
                )
            return outputs[..., 0], outputs[..., 1]
        features = gaussian.features_of("y_pred", outputs.shape)
        mean = outputs[..., :features]
        log_variance = outputs[..., features:]
        log_variance = ops.clip(log_variance, -gaussian.LIMIT, gaussian.LIMIT)
        half = normal_quantile(0.5 + 0.5 * self.level)
        half = half * ops.exp(0.5 * log_variance)
        return mean - half, mean + half

    def get_config(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "likelihood": self.likelihood,
            "name": self.name,
            "dtype": self.dtype,
        }


@keras.saving.register_keras_serializable(package="keras_vdrop")
class IntervalCoverage(IntervalMetric):
    """The share of the targets that are inside their intervals.

    A calibrated model has the `level` of the intervals.

    Args:
        level: Float in (0, 1), the probability that an interval stands for.
        likelihood: `None` if the outputs are the ends of the intervals, as
            `interval` of `keras_vdrop.predict` gives them, on the last axis;
            `"gaussian"` if they are means and log variances, so that the
            metric can be given to `compile`.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.IntervalCoverage()
    >>> intervals = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> metric.update_state(np.array([0.5, 2.0]), intervals)
    >>> float(metric.result())
    0.5
    """

    def __init__(
        self,
        level: float = 0.9,
        likelihood: str | None = None,
        name: str = "coverage",
        dtype: Any = None,
    ):
        super().__init__(level, likelihood, name=name, dtype=dtype)

    def value(self, y_true: Any, low: Any, high: Any) -> Any:
        return ops.cast((low <= y_true) & (y_true <= high), self.dtype)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class IntervalScore(IntervalMetric):
    """The width of the intervals, and a penalty for targets outside.

    `high - low + 2 / (1 - level) * (low - y)` for a target below, and likewise
    above. Lower is better; the least expectation is that of the true
    quantiles (Gneiting and Raftery 2007).

    Args:
        level: Float in (0, 1), the probability that an interval stands for.
        likelihood: `None` if the outputs are the ends of the intervals, as
            `interval` of `keras_vdrop.predict` gives them, on the last axis;
            `"gaussian"` if they are means and log variances, so that the
            metric can be given to `compile`.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.IntervalScore(level=0.5)
    >>> intervals = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> metric.update_state(np.array([0.5, 2.0]), intervals)
    >>> float(metric.result())
    3.0
    """

    def __init__(
        self,
        level: float = 0.9,
        likelihood: str | None = None,
        name: str = "interval_score",
        dtype: Any = None,
    ):
        super().__init__(level, likelihood, name=name, dtype=dtype)

    def value(self, y_true: Any, low: Any, high: Any) -> Any:
        below = ops.maximum(low - y_true, 0)
        above = ops.maximum(y_true - high, 0)
        return high - low + 2 / (1 - self.level) * (below + above)


def _alike(y_true: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """All with an axis of features. Nothing is broadcast."""
    given, expected = tuple(y_true.shape), tuple(low.shape)
    if len(given) == len(expected) + 1 and given[-1] == 1:
        low, high = (ops.expand_dims(x, axis=-1) for x in (low, high))
    elif len(given) == len(expected) - 1 and expected[-1] == 1:
        y_true = ops.expand_dims(y_true, axis=-1)
    elif len(given) == len(expected) == 1:
        y_true, low, high = (
            ops.expand_dims(x, axis=-1) for x in (y_true, low, high)
        )
    sizes = zip(y_true.shape, low.shape, strict=False)
    if len(y_true.shape) != len(low.shape) or any(
        None not in (size, other) and size != other for size, other in sizes
    ):
        raise validation.invalid(
            "y_true",
            f"targets of shape {expected}, as the intervals have",
            f"shape {given}",
        )
    return y_true, low, high
