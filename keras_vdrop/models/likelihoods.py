"""What the outputs of a model stand for."""

from typing import Any

import keras
import numpy as np

from keras_vdrop.core import gaussian
from keras_vdrop.core import validation

# Of a classifier and of a regression.
CLASSES = ("logits", "probabilities")
LIKELIHOODS = (*CLASSES, "gaussian")

EXPECTED = (
    f"one of {LIKELIHOODS}, None, or a list or dict of these for the outputs "
    "of the model"
)


def check(likelihood: Any, from_logits: Any) -> Any:
    """The two arguments of `predict` as one."""
    if from_logits is not None:
        validation.check_bool("from_logits", from_logits)
        if likelihood is not None:
            raise validation.invalid(
                "from_logits",
                "None with `likelihood`, which says the same",
                from_logits,
            )
        return "logits" if from_logits else "probabilities"
    for name in keras.tree.flatten(likelihood):
        if name is not None and name not in LIKELIHOODS:
            raise validation.invalid("likelihood", EXPECTED, likelihood)
    return likelihood


def of_outputs(likelihood: Any, outputs: Any, names: list[str]) -> list[Any]:
    """The likelihood of each output, in the order of `keras.tree.flatten`.

    Args:
        likelihood: What `check` gives. Outputs that a dict does not name have
            none.
        outputs: Structure of arrays.
        names: The names of the outputs of a model that gives a list.
    """
    leaves = keras.tree.flatten(outputs)
    if likelihood is None or isinstance(likelihood, str):
        return [likelihood] * len(leaves)
    if isinstance(likelihood, dict):
        known = sorted(outputs) if isinstance(outputs, dict) else names
        # As `keras.tree.flatten`, which takes the names in their order.
        if len(known) == len(leaves) and set(likelihood) <= set(known):
            return [likelihood.get(name) for name in known]
    elif isinstance(likelihood, list | tuple):
        if isinstance(outputs, list | tuple) and len(likelihood) == len(leaves):
            return list(likelihood)
    shown = sorted(outputs) if isinstance(outputs, dict) else names
    raise validation.invalid(
        "likelihood",
        f"{EXPECTED}, which are {shown or len(leaves)}",
        likelihood,
    )


def is_binary(outputs: Any) -> bool:
    """Whether there is one output for each example: the second of two."""
    return outputs.ndim < 2 or outputs.shape[-1] == 1


def probabilities(outputs: Any, from_logits: bool) -> Any:
    """Outputs of a classifier as probabilities, in float32 at least."""
    rounded = outputs.dtype.itemsize < 4
    outputs = wide(outputs)
    if not from_logits:
        if rounded and not is_binary(outputs):
            # Half precision: they do not quite add up to 1.
            total = outputs.sum(axis=-1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                scaled = outputs / total
            outputs = np.where(np.abs(total - 1) < 0.1, scaled, outputs)
        return outputs
    if is_binary(outputs):
        half = 0.5 * np.tanh(0.5 * outputs)
        return 0.5 + half
    with np.errstate(over="ignore"):  # The exponential of -inf is 0.
        outputs = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return outputs / outputs.sum(axis=-1, keepdims=True)


def wide(outputs: Any) -> Any:
    """An array in float32, or float64 as it is."""
    if outputs.dtype == "float64":
        return outputs
    return outputs.astype("float32")


def check_gaussian(outputs: Any) -> None:
    gaussian.features_of("outputs of the model", outputs.shape)


def targets_like(y: Any, mean: Any) -> Any:
    """Targets in the shape of the means. Nothing is broadcast."""
    y = np.asarray(y)
    if y.ndim == mean.ndim - 1 and mean.shape[-1] == 1:
        y = y[..., None]
    if y.shape != mean.shape:
        raise validation.invalid(
            "y", f"targets of shape {mean.shape}", f"shape {y.shape}"
        )
    return y


def classes_of(probabilities: Any) -> Any:
    """Probabilities of all classes on the last axis, also of two."""
    if not is_binary(probabilities):
        return probabilities
    second = probabilities
    if second.ndim < 2:
        second = second[..., None]
    return np.concatenate([1 - second, second], axis=-1)


def one_hot(y: Any, classes: Any) -> Any:
    """Labels in the shape of `classes`, integers or one-hot already."""
    y = np.asarray(y)
    if y.shape == classes.shape:
        return y
    if y.shape == (*classes.shape[:-1], 1):
        y = y[..., 0]
    labels = y.astype("int64")
    if y.shape != classes.shape[:-1] or np.any(labels != y):
        raise validation.invalid(
            "y",
            f"labels of shape {classes.shape[:-1]}, or one-hot of shape "
            f"{classes.shape}",
            f"shape {y.shape}",
        )
    number = classes.shape[-1]
    if np.any((labels < 0) | (labels >= number)):
        raise validation.invalid(
            "y", f"labels from 0 to {number - 1}", int(labels.max())
        )
    return np.eye(number)[labels]
