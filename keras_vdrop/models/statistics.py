"""Statistics of samples of the outputs of a model, one sample at a time."""

from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.core.pointwise import TINY
from keras_vdrop.models import likelihoods
from keras_vdrop.models import mixture
from keras_vdrop.models.likelihoods import is_binary
from keras_vdrop.models.parts import concatenate


class Statistics:
    """Of all outputs of a model.

    Args:
        likelihood: What `likelihoods.check` gives.
        keep: Boolean, whether to keep all samples, for quantiles.
        names: The names of the outputs of a model that gives a list.
    """

    def __init__(self, likelihood: Any, keep: bool, names: list[str]):
        self.likelihood = likelihood
        self.keep = keep
        self.names = names
        self.structure: Any = None
        self.shapes: list[tuple] = []
        self.leaves: list[OutputStatistics] = []

    def add(self, outputs: Any) -> None:
        """Adds a sample: an array, or a structure of arrays."""
        if not self.leaves:
            self.structure = keras.tree.map_structure(lambda _: 0, outputs)
            kinds = likelihoods.of_outputs(self.likelihood, outputs, self.names)
            self.leaves = [OutputStatistics(k, self.keep) for k in kinds]
            self.shapes = _shapes(outputs)
        if _shapes(outputs) != self.shapes:
            raise validation.invalid(
                "model",
                "models with outputs of the same shapes",
                (self.shapes, _shapes(outputs)),
            )
        for leaf, array in zip(
            self.leaves, keras.tree.flatten(outputs), strict=True
        ):
            leaf.add(np.asarray(array))

    def result(self, quantiles: tuple, keep_samples: bool) -> list[dict]:
        """Of each output its statistics by name."""
        return [leaf.result(quantiles, keep_samples) for leaf in self.leaves]


class OutputStatistics:
    """Mean and deviation of samples of one output, which need not be kept.

    Args:
        likelihood: One of `likelihoods.LIKELIHOODS`, or `None`.
        keep: Boolean, whether to keep all samples, for quantiles.
    """

    def __init__(self, likelihood: str | None, keep: bool):
        self.likelihood = likelihood
        self.count = 0
        self.kept: list | None = [] if keep else None
        self.mean: Any = None
        # The sum of the squared differences from the mean (Welford 1962).
        self.squares: Any = None
        # The mean of what the data add: entropies or variances.
        self.data: Any = None

    def add(self, outputs: Any) -> None:
        self.count += 1
        outputs, kept, data = self._parts(outputs)
        if self.kept is not None:
            self.kept.append(kept)
        if self.mean is None:
            self.mean = np.array(outputs)
            self.squares = np.zeros_like(outputs)
            self.data = data
            return
        before = outputs - self.mean
        self.mean = self.mean + before / self.count
        self.squares = self.squares + before * (outputs - self.mean)
        self.data = self.data + (data - self.data) / self.count

    def result(self, quantiles: tuple, keep_samples: bool) -> dict[str, Any]:
        variance = self.squares / self.count
        found = {
            "likelihood": self.likelihood,
            "mean": self.mean,
            "std": np.sqrt(variance),
            "quantiles": [],
        }
        if self.likelihood == "gaussian":
            found["weights_std"] = np.sqrt(variance)
            found["data_std"] = np.sqrt(self.data)
            found["std"] = np.sqrt(variance + self.data)
        elif self.likelihood is not None:
            found["expected_entropy"] = self.data
        if self.kept is not None:
            samples = np.stack(self.kept)
            found["quantiles"] = [
                quantile(self.likelihood, samples, q) for q in quantiles
            ]
            if keep_samples:
                found["samples"] = samples
        return found

    def _parts(self, outputs: Any) -> tuple[Any, Any, Any]:
        """What to average, what to keep, and what the data add."""
        if self.likelihood == "gaussian":
            likelihoods.check_gaussian(outputs)
            mean, variance = mixture.split(outputs)
            kept = likelihoods.wide(outputs)
            return mean.astype(kept.dtype), kept, variance.astype(kept.dtype)
        if self.likelihood is None:
            outputs = likelihoods.wide(outputs)
            return outputs, outputs, np.zeros(())
        outputs = likelihoods.probabilities(
            outputs, self.likelihood == "logits"
        )
        return outputs, outputs, entropy(outputs)


def _shapes(outputs: Any) -> list[tuple]:
    return [np.shape(array) for array in keras.tree.flatten(outputs)]


def quantile(likelihood: str | None, samples: Any, q: float) -> Any:
    """Of samples as they are kept: for a Gaussian of the mixture of them."""
    if likelihood == "gaussian":
        return mixture.quantile(samples, q).astype(samples.dtype)
    return np.quantile(samples, q, axis=0)


def join(parts: list[list[dict]]) -> list[dict]:
    """The statistics of all examples, of those of their parts."""
    return [_joined(leaves) for leaves in zip(*parts, strict=True)]


def _joined(parts: tuple[dict, ...]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    # The first axis of the samples counts them.
    return {
        name: parts[0][name]
        if name == "likelihood"
        else concatenate([part[name] for part in parts], int(name == "samples"))
        for name in parts[0]
    }


def entropy(probabilities: Any) -> Any:
    """Of the distribution along the last axis, in nats, zeros included."""
    p = probabilities
    if is_binary(p):
        p = p if p.ndim > 1 else p[:, None]
        p = np.concatenate([p, 1 - p], axis=-1)
    return -np.sum(p * np.log(np.maximum(p, TINY)), axis=-1)
