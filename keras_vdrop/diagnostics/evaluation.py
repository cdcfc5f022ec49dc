"""How good predictions with samples of the weights are."""

import itertools
import math
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.diagnostics import metrics
from keras_vdrop.diagnostics import outputs
from keras_vdrop.models import likelihoods
from keras_vdrop.models.parts import batches_of
from keras_vdrop.models.parts import concatenate
from keras_vdrop.models.prediction import predict
from keras_vdrop.models.predictions import Predictions

# Of the intervals of a regression.
LEVEL = 0.9


def evaluate(
    model: keras.Model | Sequence[keras.Model],
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
    dropout: bool = False,
) -> dict[str, float]:
    """Metrics of predictions with samples of the weights.

    `model.evaluate` uses the mean of the weights, and its loss contains the
    KL. This averages the predictions of many samples of the weights, as
    `keras_vdrop.predict` does, and has no KL in it.

    Args:
        model: A compiled `keras.Model` with at least one variational layer,
            or a list of models, as in `keras_vdrop.predict`. Of a list the
            first has to be compiled.
        x: Whatever `keras_vdrop.predict` takes. A data set gives the labels
            too, and the weights of the examples if it has some.
        y: The labels, unless `x` is a data set.
        sample_weight: Array `(examples,)`, or with the positions of a
            sequence or an image on more axes, or `None`. Several outputs can
            have a list or a dict of them.
        num_samples, batch_size: As in `keras_vdrop.predict`.
        from_logits: Whether the outputs are logits (`True`) or probabilities
            (`False`) of classes. By default the loss given to `compile` says
            so, and a loss that is no cross-entropy has no classes.
        seed, verbose, steps, sampling, dropout: As in `keras_vdrop.predict`.

    Returns:
        A dict of floats. For a classifier:

        - `accuracy`, of the mean probabilities;
        - `nll`, `brier` and `ece`: negative log-likelihood, Brier score and
          expected calibration error, as in `keras_vdrop.metrics`;
        - `aurc`, the area under the risk-coverage curve;
        - `loss`, that given to `compile`, of the mean probabilities.

        For `keras_vdrop.losses.GaussianNegativeLogLikelihood`:

        - `nll`, of the mixture of all samples, and `rmse` of its mean;
        - `coverage` and `interval_score` of intervals of probability 0.9;
        - `loss`, of a normal distribution with the same mean and deviation;
        - `std`, the mean deviation, weights and data together.

        For any other model `loss`, that given to `compile`, of the mean
        prediction, and `std`, the mean deviation of the samples.

        Of several outputs each has these with its name before them, such as
        `label_nll`, and `loss` is the sum of the losses with the
        `loss_weights` of `compile`. Positions that the model masks do not
        count.

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
    ['accuracy', 'aurc', 'brier', 'ece', 'loss', 'nll']
    """
    first = model[0] if isinstance(model, list | tuple) and model else model
    losses = outputs.losses_of(first)
    kinds = keras.tree.map_structure(outputs.likelihood_of, losses)
    if from_logits is not None:
        kinds = "logits" if from_logits else "probabilities"
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
        seed=seed,
        verbose=verbose,
        steps=steps,
        sampling=sampling,
        likelihood=kinds,
        keep_samples="gaussian" in keras.tree.flatten(kinds),
        dropout=dropout,
    )
    names = outputs.names_of(first, found.mean)
    if len(names) > 1 and not isinstance(losses, dict | list | tuple):
        raise validation.invalid(
            "model",
            "a model with one output, or with a loss of each output",
            first,
            f"Its loss is {losses!r}.",
        )
    y, sample_weight = _joined(targets)
    if len(names) > 1 and not isinstance(y, dict | list | tuple):
        raise validation.invalid(
            "y", f"a list or dict of the labels of {names}", type(y).__name__
        )
    shares = outputs.weights_of(first) if len(names) > 1 else None
    columns = [
        outputs.by_output(column, names)
        for column in (losses, y, sample_weight, shares)
    ]
    scores: dict[str, float] = {}
    total = 0.0
    parts = found.outputs()
    for name, part, loss, y, weights, share in zip(
        names, parts, *columns, strict=True
    ):
        if loss is None:
            continue
        own = _scores(part, loss, y, weights)
        total += (1.0 if share is None else share) * own["loss"]
        prefix = f"{name}_" if len(names) > 1 else ""
        scores |= {prefix + key: value for key, value in own.items()}
    return {**scores, "loss": total}


def _scores(
    found: Predictions, loss: Any, y: Any, weights: Any
) -> dict[str, float]:
    """Of one output."""
    if y is None or len(y) != len(found.mean):
        size = len(found.mean)
        given = None if y is None else len(y)
        raise validation.invalid("y", f"labels of {size} examples", given)
    weights = outputs.masked(weights, found.mask, found.mean)
    # In the scope of a strategy Keras divides a loss by the replicas (3.15,
    # losses/loss.py).
    value = backend.outside_scope(
        lambda: outputs.loss_value(loss, y, found, weights)
    )
    scores = {"loss": value}
    likelihood = found.likelihood
    if likelihood is None:
        return {**scores, "std": float(np.mean(found.std))}
    scored: list[Any] = [
        Accuracy(name="accuracy"),
        metrics.NegativeLogLikelihood(),
        metrics.BrierScore(),
        metrics.ExpectedCalibrationError(),
        metrics.AreaUnderRiskCoverage(),
    ]
    predictions = found.mean
    if likelihood == "gaussian":
        y = likelihoods.targets_like(y, found.mean)
        squares = np.square(y - found.mean).mean(axis=-1)
        scores["nll"] = outputs.average(-found.log_likelihood(y), weights)
        scores["rmse"] = math.sqrt(outputs.average(squares, weights))
        scored = [metrics.IntervalCoverage(), metrics.IntervalScore()]
        predictions = found.interval(LEVEL)
        scores["std"] = float(np.mean(found.std))
    for metric in scored:
        metric.update_state(y, predictions, weights)
        scores[metric.name] = float(metric.result())
    return scores


class Accuracy(metrics.MeanOfExamples):
    """The share of the examples whose label is the most probable class."""

    def value(self, labels: Any, probabilities: Any) -> Any:
        predicted = ops.argmax(probabilities, axis=-1)
        return ops.cast(predicted == ops.argmax(labels, axis=-1), self.dtype)


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


def _joined(targets: list[Any]) -> tuple[Any, Any]:
    """Labels, and weights or `None`, of all batches."""
    labels, weights = (
        [
            None
            if x is None
            else keras.tree.map_structure(ops.convert_to_numpy, x)
            for x in column
        ]
        for column in zip(*targets, strict=True)
    )
    y = concatenate(labels)
    return y, None if weights[0] is None else concatenate(weights)
