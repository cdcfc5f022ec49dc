"""A picture of how far the confidence of a classifier can be trusted."""

import math
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.diagnostics import drawing
from keras_vdrop.diagnostics.metrics import ExpectedCalibrationError


def plot_reliability(
    y_true: Any, y_pred: Any, from_logits: bool = False, num_bins: int = 15
) -> Any:
    """Draws a reliability diagram: accuracy against confidence.

    Examples are sorted into bins by the probability of the predicted class.
    For each bin that has any, the upper panel shows the share of examples that
    are right over the mean probability, with a bar of one standard error (as
    if there were one more that is right and one that is wrong, so that a few
    examples do not look certain); a calibrated classifier is on the diagonal,
    an overconfident one below it.
    The lower panel shows the share of the examples in each bin. The legend
    gives the expected calibration error, the mean distance from the diagonal.

    Args:
        y_true: Array of the labels, integers or one-hot.
        y_pred: Array of the predictions, `(examples, classes)`, or a
            dictionary of such arrays by the name to show in the legend.
            `(examples,)` or a single column is the probability of the second
            of two classes.
        from_logits: Boolean, whether the predictions are logits or
            probabilities.
        num_bins: Positive integer, the number of bins, of equal width.

    Returns:
        A `matplotlib.figure.Figure`; `figure.savefig("reliability.png")`
        writes it.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> labels = np.array([0, 1, 1, 0])
    >>> sure = np.array([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    >>> figure = keras_vdrop.plot_reliability(labels, {"sure": sure})
    >>> figure.legends[0].get_texts()[1].get_text()
    'sure, error 0.150'

    Reference:

    - [Guo et al., 2017](https://arxiv.org/abs/1706.04599)
    """
    several = y_pred if isinstance(y_pred, dict) else {"": y_pred}
    if not several:
        raise validation.invalid("y_pred", "at least one prediction", y_pred)
    measured = {
        name: _measure(y_true, predictions, from_logits, num_bins)
        for name, predictions in several.items()
    }
    figure = drawing.new_figure("plot_reliability", figsize=(5, 7))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], "k--", linewidth=1, label="calibrated")
    edges = np.linspace(0, 1, num_bins + 1)
    for name, (bins, calibration_error) in measured.items():
        count, correct, confidence = bins
        some = count > 0
        count, correct, confidence = (
            row[some] for row in (count, correct, confidence)
        )
        smoothed = (correct + 1) / (count + 2)
        error = f"error {calibration_error:.3f}"
        upper.errorbar(
            confidence / count,
            correct / count,
            np.sqrt(smoothed * (1 - smoothed) / (count + 2)),
            marker="o",
            capsize=2,
            label=f"{name}, {error}" if name else error,
        )
        shares = np.zeros(num_bins)
        shares[some] = count / count.sum()
        lower.stairs(shares, edges)
    upper.set(ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.02))
    figure.legend(loc="outside upper left")
    lower.set(xlabel="probability of the predicted class", yscale="log")
    lower.set_ylabel("share of examples")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _measure(
    y_true: Any, y_pred: Any, from_logits: bool, num_bins: int
) -> tuple[Any, float]:
    """What is in each bin, in examples, and the calibration error."""
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if not y_pred.size or y_true.shape[:1] != y_pred.shape[:1]:
        raise validation.invalid(
            "y_pred",
            "one or more predictions of shape (examples, classes), as many as "
            f"labels (they have the shape {y_true.shape})",
            y_pred.shape,
        )
    metric = ExpectedCalibrationError(num_bins, from_logits=from_logits)
    metric.update_state(y_true, y_pred)
    # The positions of a sequence share the weight of one example.
    positions = math.prod(y_pred.shape[1:-1])
    bins = positions * keras.ops.convert_to_numpy(metric.bins)
    return bins, float(metric.result())
