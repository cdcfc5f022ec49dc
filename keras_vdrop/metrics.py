"""How well the probabilities of a classifier are calibrated."""

import keras
from keras import ops

from keras_vdrop import validation

TINY = 1e-30


class ClassifierMetric(keras.metrics.Metric):
    """Base: labels as one-hot vectors, outputs as probabilities."""

    def __init__(self, from_logits=False, name=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.from_logits = validation.check_bool("from_logits", from_logits)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.convert_to_tensor(y_pred)
        probabilities = self._probabilities(y_pred)
        classes = probabilities.shape[-1]
        probabilities = ops.reshape(probabilities, (-1, classes))
        labels = self._labels(y_true, y_pred, classes)
        weights = ops.ones_like(probabilities[:, 0])
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            weights = ops.reshape(sample_weight, (-1,)) * weights
        self.add_examples(labels, probabilities, weights)

    def add_examples(self, labels, probabilities, weights):
        """Labels and probabilities are `(examples, classes)`."""
        raise NotImplementedError

    def _probabilities(self, y_pred):
        y_pred = ops.cast(y_pred, self.dtype)
        if y_pred.shape[-1] == 1:
            if self.from_logits:
                y_pred = ops.sigmoid(y_pred)
            return ops.concatenate([1 - y_pred, y_pred], axis=-1)
        return ops.softmax(y_pred) if self.from_logits else y_pred

    def _labels(self, y_true, y_pred, classes):
        y_true = ops.convert_to_tensor(y_true)
        one_hot = (
            len(y_true.shape) == len(y_pred.shape)
            and y_true.shape[-1] == classes
            and y_pred.shape[-1] == classes
        )
        if one_hot:
            return ops.reshape(ops.cast(y_true, self.dtype), (-1, classes))
        y_true = ops.reshape(ops.cast(y_true, "int32"), (-1,))
        return ops.one_hot(y_true, classes, dtype=self.dtype)

    def get_config(self):
        config = {
            "from_logits": self.from_logits,
            "name": self.name,
            "dtype": self.dtype,
        }
        return config


class MeanOfExamples(ClassifierMetric):
    """Base: the weighted mean of a value of each example."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def add_examples(self, labels, probabilities, weights):
        values = self.value(labels, probabilities)
        self.total.assign_add(ops.sum(weights * values))
        self.count.assign_add(ops.sum(weights))

    def value(self, labels, probabilities):
        raise NotImplementedError

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class NegativeLogLikelihood(MeanOfExamples):
    """Mean of `-log p(label)`, in nats.

    Args:
        from_logits: Boolean, whether the model gives logits or
            probabilities. Labels are integers or one-hot; a model with a
            single output gives the probability of the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.NegativeLogLikelihood()
    >>> metric.update_state([0, 1], [[0.5, 0.5], [0.5, 0.5]])
    >>> round(float(metric.result()), 4)
    0.6931
    """

    def __init__(self, from_logits=False, name="nll", dtype=None):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)

    def value(self, labels, probabilities):
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
            probabilities. Labels are integers or one-hot; a model with a
            single output gives the probability of the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.BrierScore()
    >>> metric.update_state([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    >>> float(metric.result())
    0.25
    """

    def __init__(self, from_logits=False, name="brier", dtype=None):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)

    def value(self, labels, probabilities):
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
            probabilities. Labels are integers or one-hot; a model with a
            single output gives the probability of the second of two classes.
        name: String, the name of the metric.
        dtype: The dtype of its state.

    Example:

    >>> import keras_vdrop
    >>> metric = keras_vdrop.metrics.ExpectedCalibrationError()
    >>> metric.update_state([0, 1], [[0.75, 0.25], [0.75, 0.25]])
    >>> float(metric.result())
    0.25
    """

    def __init__(self, num_bins=15, from_logits=False, name="ece", dtype=None):
        super().__init__(from_logits=from_logits, name=name, dtype=dtype)
        self.num_bins = validation.check_count("num_bins", num_bins)
        # Rows: the weight, the accuracy and the confidence in each bin.
        self.bins = self.add_weight(
            shape=(3, self.num_bins), name="bins", initializer="zeros"
        )

    def add_examples(self, labels, probabilities, weights):
        confidence = ops.max(probabilities, axis=-1)
        predicted = ops.argmax(probabilities, axis=-1)
        correct = ops.cast(predicted == ops.argmax(labels, axis=-1), self.dtype)
        number = ops.floor(confidence * self.num_bins)
        number = ops.cast(ops.clip(number, 0, self.num_bins - 1), "int32")
        member = ops.one_hot(number, self.num_bins, dtype=self.dtype)
        rows = ops.stack([weights, weights * correct, weights * confidence])
        self.bins.assign_add(ops.matmul(rows, member))

    def result(self):
        weight, correct, confidence = ops.unstack(self.bins.value, 3)
        return ops.divide_no_nan(
            ops.sum(ops.abs(correct - confidence)), ops.sum(weight)
        )

    def get_config(self):
        return {**super().get_config(), "num_bins": self.num_bins}
