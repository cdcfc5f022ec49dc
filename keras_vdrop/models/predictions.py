"""What a model predicts, and how sure it is."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.core.pointwise import TINY
from keras_vdrop.models import likelihoods
from keras_vdrop.models import mixture
from keras_vdrop.models.prediction_table import prediction_table
from keras_vdrop.models.statistics import entropy
from keras_vdrop.models.statistics import quantile

# How far a level and the quantiles asked for may be apart by rounding.
ROUNDING = 1e-9


class Predictions:
    """What `keras_vdrop.predict` returns; see there.

    A notebook shows a table of the first examples.
    """

    def __init__(
        self,
        outputs: list[dict[str, Any]],
        structure: Any,
        num_samples: int,
        quantiles: tuple[float, ...],
        masks: list[Any] | None = None,
    ):
        self.num_samples = num_samples
        self._outputs = outputs
        self._structure = structure
        self._quantiles = quantiles
        self._masks = masks or [None] * len(outputs)
        self.mean = self._each(lambda output: output["mean"])
        self.std = self._each(lambda output: output["std"])
        self.samples = None
        if any("samples" in output for output in outputs):
            self.samples = self._each(lambda output: output["samples"])

    def quantile(self, q: float) -> Any:
        """The `q`-quantile of the samples, of the shape of `mean`.

        With a Gaussian likelihood that of the predictive distribution, the
        mixture of the distributions of all samples.
        """
        if self.samples is not None:
            return self._each(
                lambda x: quantile(x["likelihood"], x["samples"], q)
            )
        for number, known in enumerate(self._quantiles):
            if abs(known - q) < ROUNDING:
                return self._pack(
                    [output["quantiles"][number] for output in self._outputs]
                )
        raise validation.invalid(
            "q",
            f"one of the quantiles asked for, {self._quantiles}",
            q,
            f"Call `predict` with `quantiles=[{q}]`, or with "
            "`keep_samples=True`.",
        )

    def interval(self, level: float) -> Any:
        """The central interval of a probability: its ends on a new last axis.

        It needs the quantiles `(1 - level) / 2` and `(1 + level) / 2`.
        """
        level = validation.check_rate("level", level)
        ends = [self.quantile(_rounded((1 + s * level) / 2)) for s in (-1, 1)]
        return keras.tree.map_structure(
            lambda low, high: np.stack([low, high], axis=-1), *ends
        )

    @property
    def entropy(self) -> Any:
        """Entropy of the mean prediction, in nats."""
        return self._each_classifier(lambda output: entropy(output["mean"]))

    @property
    def expected_entropy(self) -> Any:
        """Mean entropy of the samples, in nats."""
        return self._each_classifier(lambda output: output["expected_entropy"])

    @property
    def mutual_information(self) -> Any:
        """Of the label and the weights, in nats."""
        return self._each_classifier(
            lambda output: np.maximum(
                entropy(output["mean"]) - output["expected_entropy"], 0.0
            )
        )

    @property
    def weights_std(self) -> Any:
        """The part of `std` that comes from the weights."""
        return self._each_regression(lambda output: output["weights_std"])

    @property
    def data_std(self) -> Any:
        """The part of `std` that comes from the noise of the data."""
        return self._each_regression(lambda output: output["data_std"])

    @property
    def mask(self) -> Any:
        """Booleans, which positions count, or `None` if the model masks none.

        Of the shape of `entropy`.
        """
        return self._pack(self._masks)

    @property
    def likelihood(self) -> Any:
        """What the outputs stand for, as given to `predict`."""
        return self._each(lambda output: output["likelihood"])

    def outputs(self) -> list["Predictions"]:
        """The predictions of each output alone."""
        return [
            Predictions([output], 0, self.num_samples, self._quantiles, [mask])
            for output, mask in zip(self._outputs, self._masks, strict=True)
        ]

    def log_likelihood(self, y: Any) -> Any:
        """Log density, or log probability, of targets, in nats.

        Of each example, and of each position of a sequence or an image.

        Args:
            y: The targets as for the loss: those of a regression, which needs
                `keep_samples=True`, or labels as integers or one-hot.
        """
        arrays = [np.asarray(x) for x in keras.tree.flatten(y)]
        if len(arrays) != len(self._outputs):
            raise validation.invalid(
                "y", f"targets of {len(self._outputs)} output(s)", len(arrays)
            )
        found = []
        for output, target in zip(self._outputs, arrays, strict=True):
            found.append(_log_likelihood(output, target))
        return self._pack(found)

    def per_example(self, values: Any) -> Any:
        """The mean over the positions of each example that are not masked.

        Args:
            values: An array such as `entropy`, or a structure of them, with
                the positions of a sequence or an image on the axes after the
                first.
        """
        found = []
        arrays = keras.tree.flatten(values)
        if len(arrays) != len(self._outputs):
            raise validation.invalid(
                "values",
                f"an array for each of {len(self._outputs)} output(s)",
                len(arrays),
            )
        for array, mask in zip(arrays, self._masks, strict=True):
            found.append(None if array is None else _pooled(array, mask))
        return self._pack(found)

    def __repr__(self) -> str:
        shapes = self._each(lambda output: output["mean"].shape)
        return f"<Predictions: mean {shapes}, {self.num_samples} samples>"

    def _repr_html_(self) -> str:
        return prediction_table(self._outputs, self.num_samples)

    def _pack(self, leaves: list[Any]) -> Any:
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def _each(self, function: Callable[[dict[str, Any]], Any]) -> Any:
        return self._pack([function(output) for output in self._outputs])

    def _each_classifier(self, function: Callable[..., Any]) -> Any:
        if not any(self._is_classifier(output) for output in self._outputs):
            raise ValueError(
                "The entropy is that of a classifier. Call `predict` with "
                "`from_logits=True` if the outputs of the model are logits, "
                "or `from_logits=False` if they are probabilities."
            )
        return self._each(
            lambda output: (
                function(output) if self._is_classifier(output) else None
            )
        )

    def _each_regression(self, function: Callable[..., Any]) -> Any:
        if not any("data_std" in output for output in self._outputs):
            raise ValueError(
                "The parts of the deviation are those of a regression that "
                "predicts its noise. Call `predict` with "
                '`likelihood="gaussian"` if the outputs of the model are '
                "means and log variances."
            )
        return self._each(
            lambda output: function(output) if "data_std" in output else None
        )

    @staticmethod
    def _is_classifier(output: dict[str, Any]) -> bool:
        return output["likelihood"] in likelihoods.CLASSES


def _rounded(q: float) -> float:
    """Without the digits of 0.04999999999999999."""
    return round(q, 12)


def _pooled(array: Any, mask: Any) -> Any:
    weights = np.ones_like(array)
    if mask is not None:
        mask = np.reshape(mask, mask.shape + (1,) * (array.ndim - mask.ndim))
        weights = weights * mask
    axes = tuple(range(1, array.ndim))
    total = np.sum(weights, axis=axes)
    with np.errstate(invalid="ignore"):
        # An example that is masked as a whole has no mean.
        return np.sum(np.where(weights > 0, array, 0), axis=axes) / total


def _log_likelihood(output: dict[str, Any], y: Any) -> Any:
    mean, likelihood = output["mean"], output["likelihood"]
    if likelihood is None:
        raise ValueError(
            "Without a likelihood, targets have none. Call `predict` with "
            "`likelihood` or `from_logits`."
        )
    if likelihood == "gaussian":
        if "samples" not in output:
            raise ValueError(
                "The density of a mixture needs all samples. Call `predict` "
                "with `keep_samples=True`."
            )
        return mixture.log_density(
            output["samples"], likelihoods.targets_like(y, mean)
        )
    classes = likelihoods.classes_of(mean)
    labels = likelihoods.one_hot(y, classes)
    return np.log(np.maximum(np.sum(labels * classes, axis=-1), TINY))
