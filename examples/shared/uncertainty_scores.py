"""How good predictions of classes are, and how well they know it."""

import time

import numpy as np

import keras_vdrop
from shared.results import joined
from shared.results import versions

# Those of the table.
SCORES = ("error", "nll", "brier", "ece", "auroc_mi", "auroc")


def scores(labels, probabilities):
    """Returns metrics of predictions as columns of the CSV."""
    judged = {"error": 100 * np.mean(probabilities.argmax(-1) != labels)}
    for metric in (
        keras_vdrop.metrics.NegativeLogLikelihood(),
        keras_vdrop.metrics.BrierScore(),
        keras_vdrop.metrics.ExpectedCalibrationError(),
        keras_vdrop.metrics.AreaUnderRiskCoverage(),
    ):
        metric.update_state(labels, probabilities)
        judged[metric.name] = float(metric.result())
    return judged


def as_text(judged):
    """Returns numbers as they are written in the CSV."""
    return {name: f"{value:.5g}" for name, value in judged.items()}


def area_under_curve(low, high):
    """Returns the probability that a value of `high` exceeds one of `low`."""
    from sklearn.metrics import roc_auc_score

    is_high = np.repeat([0, 1], [len(low), len(high)])
    return roc_auc_score(is_high, np.concatenate([low, high]))


def rotated(images, angle):
    """Returns images, or rows of their pixels, rotated by degrees."""
    from scipy import ndimage

    shape = images.shape
    if images.ndim == 2:
        side = round(shape[1] ** 0.5)
        images = images.reshape(-1, side, side)
    turned = ndimage.rotate(
        images, angle, axes=(1, 2), reshape=False, order=1, mode="constant"
    )
    return turned.reshape(shape)


def judge(predict, test, strange, options):
    """Returns the columns of a run, and the predictions for the test set.

    Args:
        predict: Function of images that returns an object with `mean`,
            `entropy`, `mutual_information` and `num_samples`.
        test: Images and labels.
        strange: Images of another kind.
        options: Has `angles` and `rotated`.
    """
    predict(test[0][:1000])  # compiles
    start = time.process_time()
    known = predict(test[0])
    seconds = time.process_time() - start
    unknown = predict(strange)
    judged = {
        **scores(test[1], known.mean),
        "auroc": area_under_curve(known.entropy, unknown.entropy),
        "auroc_mi": float("nan"),
    }
    if known.num_samples > 1:
        judged["auroc_mi"] = area_under_curve(
            known.mutual_information, unknown.mutual_information
        )
    turns = {}
    some = slice(0, options.rotated)
    for angle in options.angles:
        turned = rotated(test[0][some], angle)
        for key, value in scores(test[1][some], predict(turned).mean).items():
            turns.setdefault(key, []).append(f"{value:.4g}")
    columns = {
        **as_text(judged),
        "predict_seconds": f"{seconds:.1f}",
        "angles": joined(options.angles),
        **{f"rotated_{key}": joined(turns[key]) for key in turns},
        **versions(),
    }
    return columns, known.mean
