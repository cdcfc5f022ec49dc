"""The loss, targets and weights of each output of a model."""

from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.core.losses import GaussianNegativeLogLikelihood
from keras_vdrop.models.likelihoods import is_binary
from keras_vdrop.models.predictions import Predictions

# Probabilities of which a logarithm is taken are at least this.
SMALLEST = 1e-30


def losses_of(model: Any) -> Any:
    """What was given to `compile`: a loss, or a list or dict of them."""
    found = getattr(model, "loss", None)
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    losses = found if isinstance(found, dict | list | tuple) else [found]
    each = losses.values() if isinstance(losses, dict) else losses
    if not losses or all(loss is None for loss in each):
        raise validation.invalid(
            "model",
            "a model that was compiled with one loss for each output",
            model,
            f"Its loss is {found!r}.",
        )
    if isinstance(found, dict):
        return {name: _loss(loss) for name, loss in found.items()}
    several = [_loss(loss) for loss in losses]
    return several if isinstance(found, list | tuple) else several[0]


def _loss(loss: Any) -> Any:
    return None if loss is None else keras.losses.get(loss)


def weights_of(model: Any) -> Any:
    """`loss_weights` of `compile`, or `None`."""
    # Keras keeps them nowhere else (3.15, trainers/trainer.py).
    return (model.get_compile_config() or {}).get("loss_weights")


def likelihood_of(loss: Any) -> str | None:
    """What the outputs stand for that a loss is for."""
    if isinstance(loss, GaussianNegativeLogLikelihood):
        return "gaussian"
    takes_logits = logits_of(loss)
    if takes_logits is None:
        return None
    return "logits" if takes_logits else "probabilities"


def logits_of(loss: Any) -> bool | None:
    """Whether a cross-entropy takes logits; `None` for any other loss."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if "crossentropy" not in name.lower():
        return None
    config = loss.get_config() if isinstance(loss, keras.losses.Loss) else {}
    return bool(config.get("from_logits", False))


def names_of(model: Any, outputs: Any) -> list[str]:
    """A name of each output, in the order of `keras.tree.flatten`."""
    if isinstance(outputs, dict):
        return sorted(outputs)
    count = len(keras.tree.flatten(outputs))
    names = list(getattr(model, "output_names", None) or [])
    if len(names) != count:
        return [f"output_{number}" for number in range(count)]
    return names


def by_output(values: Any, names: list[str]) -> list[Any]:
    """A value for each output, of one for all, of a list or of a dict."""
    if isinstance(values, dict):
        return [values.get(name) for name in names]
    if isinstance(values, list | tuple) and len(values) == len(names):
        return list(values)
    return [values] * len(names)


def masked(weights: Any, mask: Any, outputs: Any) -> Any:
    """Weights of the positions, those that are masked being zero.

    Weights of the examples get the rank of the positions.
    """
    rank = max(outputs.ndim - 1, 1)
    if weights is not None:
        weights = np.asarray(weights)
        if weights.ndim == rank + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        weights = weights.reshape(
            weights.shape + (1,) * max(rank - weights.ndim, 0)
        )
    if mask is None:
        return weights
    return (1.0 if weights is None else weights) * mask.astype("float32")


def average(values: Any, weights: Any) -> float:
    """The weighted mean over all examples and positions."""
    values = np.asarray(values, "float64")
    weights = np.ones(()) if weights is None else weights
    weights = np.broadcast_to(weights, values.shape)
    counts = weights != 0
    return float(np.average(values[counts], weights=weights[counts]))


def loss_value(loss: Any, y: Any, found: Predictions, weights: Any) -> float:
    """A loss of Keras, of the mean prediction."""
    mean = found.mean
    if found.likelihood == "gaussian":
        log_variance = 2 * np.log(np.maximum(found.std, SMALLEST))
        mean = np.concatenate([mean, log_variance], axis=-1)
    elif found.likelihood is not None and logits_of(loss):
        logs = np.log(np.maximum(mean, SMALLEST))
        if is_binary(mean):
            logs = logs - np.log(np.maximum(1 - mean, SMALLEST))
        mean = logs
    if y.ndim == mean.ndim - 1 and mean.shape[-1] == 1:
        y = y[..., None]
    if found.mask is not None:
        # As Keras does with the mask of its outputs.
        weights = weights * (found.mask.size / found.mask.sum())
    if isinstance(loss, keras.losses.Loss):
        values = keras.ops.convert_to_numpy(
            loss(y, mean, sample_weight=weights)
        )
        return float(np.mean(values))
    values = keras.ops.convert_to_numpy(loss(y, mean))
    return float(np.mean(values if weights is None else values * weights))
