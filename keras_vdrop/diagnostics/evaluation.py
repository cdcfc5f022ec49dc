"""How good predictions with samples of the weights are."""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.diagnostics import metrics
from keras_vdrop.models.parts import batches_of
from keras_vdrop.models.parts import concatenate
from keras_vdrop.models.prediction import predict
from keras_vdrop.models.statistics import is_binary
from keras_vdrop.models.traversal import require_variational_layers

# Probabilities of which a logarithm is taken are at least this.
SMALLEST = 1e-30


def evaluate(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    num_samples: int = 32,
    batch_size: int | None = None,
    from_logits: bool | None = None,
    seed: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    sampling: str = "weights",
) -> dict[str, float]:
    """Metrics of predictions with samples of the weights.

    `model.evaluate` uses the mean of the weights, and its loss contains the
    KL. This averages the predictions of many samples of the weights, as
    `keras_vdrop.predict` does, and has no KL in it.

    Args:
        model: A compiled `keras.Model` with one output and at least one
            variational layer.
        x: Whatever `keras_vdrop.predict` takes. A data set gives the labels
            too, and the weights of the examples if it has some.
        y: The labels, unless `x` is a data set.
        sample_weight: Array `(examples,)`, or `None`.
        num_samples, batch_size: As in `keras_vdrop.predict`.
        from_logits: Whether the outputs are logits (`True`) or probabilities
            (`False`) of classes. By default the loss given to `compile` says
            so, and a loss that is no cross-entropy has no classes.
        seed, verbose, steps, sampling: As in `keras_vdrop.predict`.

    Returns:
        A dict of floats. For a classifier:

        - `accuracy`, of the mean probabilities;
        - `nll`, `brier` and `ece`: negative log-likelihood, Brier score and
          expected calibration error, as in `keras_vdrop.metrics`;
        - `loss`, that given to `compile`, of the mean probabilities.

        For any other model `loss`, that given to `compile`, of the mean
        prediction, and `std`, the mean deviation of the samples.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential(
    ...     [keras.Input((4,)), keras_vdrop.VariationalDense(3)]
    ... )
    >>> model.compile(
    ...     "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ... )
    >>> x, y = np.ones((6, 4)), np.array([0, 1, 2, 0, 1, 2])
    >>> found = keras_vdrop.evaluate(model, x, y, verbose=0)
    >>> sorted(found)
    ['accuracy', 'brier', 'ece', 'loss', 'nll']
    """
    require_variational_layers(model, keras.Model)
    loss = _loss_of(model)
    if from_logits is None:
        from_logits = _logits_of(loss)
    batches = batches_of(x)
    targets = [(y, sample_weight)]
    if batches is not None:
        if y is not None or sample_weight is not None:
            raise validation.invalid(
                "y", "None with a data set, which has the labels", y
            )
        targets = []
        x, steps = _record(itertools.islice(batches, steps), targets), None
    elif y is None:
        raise validation.invalid(
            "y", "the labels, because `x` is no data set", y
        )
    found = predict(
        model,
        x,
        num_samples=num_samples,
        batch_size=batch_size,
        from_logits=from_logits,
        seed=seed,
        verbose=verbose,
        steps=steps,
        sampling=sampling,
    )
    if not isinstance(found.mean, np.ndarray):
        raise validation.invalid(
            "model",
            "a model with one output",
            model,
            "Call `keras_vdrop.predict`, and the metrics of "
            "`keras_vdrop.metrics` for each output.",
        )
    labels, weights = _joined(targets, len(found.mean))
    # In the scope of a strategy Keras divides a loss by the replicas (3.15,
    # losses/loss.py).
    value = backend.outside_scope(
        lambda: _loss(loss, labels, found.mean, weights, from_logits)
    )
    scores = {"loss": value}
    if from_logits is None:
        return {**scores, "std": float(np.mean(found.std))}
    for metric in (
        Accuracy(name="accuracy"),
        metrics.NegativeLogLikelihood(),
        metrics.BrierScore(),
        metrics.ExpectedCalibrationError(),
    ):
        metric.update_state(labels, found.mean, weights)
        scores[metric.name] = float(metric.result())
    return scores


class Accuracy(metrics.MeanOfExamples):
    """The share of the examples whose label is the most probable class."""

    def value(self, labels: Any, probabilities: Any) -> Any:
        predicted = ops.argmax(probabilities, axis=-1)
        return ops.cast(predicted == ops.argmax(labels, axis=-1), self.dtype)


def _loss_of(model: Any) -> Any:
    """The one loss that was given to `compile`, a function or an object."""
    loss = getattr(model, "loss", None)
    if loss is None or isinstance(loss, dict | list | tuple):
        raise validation.invalid(
            "model",
            "a model that was compiled with one loss, and has one output",
            model,
            f"Its loss is {loss!r}.",
        )
    return keras.losses.get(loss)


def _logits_of(loss: Any) -> bool | None:
    """Whether a cross-entropy takes logits; `None` for any other loss."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if "crossentropy" not in name.lower():
        return None
    config = loss.get_config() if isinstance(loss, keras.losses.Loss) else {}
    return bool(config.get("from_logits", False))


def _record(batches: Iterable[Any], targets: list[Any]) -> Iterator[Any]:
    """The inputs of each batch. Its labels and weights go to a list."""
    for batch in batches:
        inputs, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if y is None:
            raise validation.invalid(
                "x", "a data set with labels", type(batch).__name__
            )
        targets.append((y, weights))
        yield (inputs,)


def _joined(targets: list[Any], size: int) -> tuple[Any, Any]:
    """Labels, and weights or `None`, of all batches."""
    labels, weights = (
        [None if x is None else ops.convert_to_numpy(x) for x in column]
        for column in zip(*targets, strict=True)
    )
    y = concatenate(labels)
    if len(y) != size:
        raise validation.invalid("y", f"labels of {size} examples", len(y))
    return y, None if weights[0] is None else concatenate(weights)


def _loss(
    loss: Any, y: Any, mean: Any, weights: Any, from_logits: bool | None
) -> float:
    """A loss of Keras, of the mean prediction."""
    if from_logits is not None and _logits_of(loss):
        logs = np.log(np.maximum(mean, SMALLEST))
        if is_binary(mean):
            logs = logs - np.log(np.maximum(1 - mean, SMALLEST))
        mean = logs
    if y.ndim == mean.ndim - 1 and mean.shape[-1] == 1:
        y = y[..., None]
    if isinstance(loss, keras.losses.Loss):
        values = ops.convert_to_numpy(loss(y, mean, sample_weight=weights))
        return float(np.mean(values))
    values = ops.convert_to_numpy(loss(y, mean))
    if weights is not None:
        shape = (len(weights), *[1] * (values.ndim - 1))
        values = values * np.reshape(weights, shape)
    return float(np.mean(values))
