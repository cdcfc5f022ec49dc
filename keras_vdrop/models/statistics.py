"""Statistics of samples of the outputs of a model, one sample at a time."""

from typing import Any

import keras
import numpy as np

from keras_vdrop.core.pointwise import TINY
from keras_vdrop.models.parts import concatenate

_map = keras.tree.map_structure


class Statistics:
    """Mean and deviation of samples, which need not be kept.

    Args:
        from_logits: As in `keras_vdrop.predict`.
        keep: Boolean, whether to keep all samples, for quantiles.
    """

    def __init__(self, from_logits: bool | None, keep: bool):
        self.from_logits = from_logits
        self.count = 0
        self.kept: list | None = [] if keep else None
        self.mean: Any = None
        # The sum of the squared differences from the mean (Welford 1962).
        self.squares: Any = None
        self.entropy: Any = None

    def add(self, outputs: Any) -> None:
        """Adds a sample: an array, or a structure of arrays."""
        outputs = _map(self._as_probabilities, outputs)
        self.count += 1
        if self.kept is not None:
            self.kept.append(outputs)
        if self.mean is None:
            self.mean = _map(np.array, outputs)
            self.squares = _map(np.zeros_like, outputs)
            self.entropy = _map(self._entropy, outputs)
            return
        before = _map(np.subtract, outputs, self.mean)
        self.mean = _map(lambda m, d: m + d / self.count, self.mean, before)
        self.squares = _map(
            lambda s, d, x, m: s + d * (x - m),
            self.squares,
            before,
            outputs,
            self.mean,
        )
        self.entropy = _map(
            lambda e, x: e + (self._entropy(x) - e) / self.count,
            self.entropy,
            outputs,
        )

    def result(self, quantiles: tuple, keep_samples: bool) -> dict[str, Any]:
        """The statistics by name, of the structure of a sample."""
        found = {
            "mean": self.mean,
            "std": _map(lambda s: np.sqrt(s / self.count), self.squares),
            "quantiles": [],
        }
        if self.from_logits is not None:
            found["expected_entropy"] = self.entropy
        if self.kept is not None:
            samples = _map(lambda *parts: np.stack(parts), *self.kept)
            found["quantiles"] = [
                _map(lambda x, q=q: np.quantile(x, q, axis=0), samples)
                for q in quantiles
            ]
            if keep_samples:
                found["samples"] = samples
        return found

    def _as_probabilities(self, outputs: Any) -> Any:
        outputs = np.asarray(outputs)
        if outputs.dtype != "float64":
            outputs = outputs.astype("float32")
        if not self.from_logits:
            return outputs
        if is_binary(outputs):
            half = 0.5 * np.tanh(0.5 * outputs)
            return 0.5 + half
        outputs = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        return outputs / outputs.sum(axis=-1, keepdims=True)

    def _entropy(self, probabilities: Any) -> Any:
        # Not asked for otherwise: regressions have negative outputs.
        if self.from_logits is None:
            return np.zeros(())
        return entropy(probabilities)


def join(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of all examples, of those of their parts."""
    if len(parts) == 1:
        return parts[0]
    # The first axis of the samples counts them.
    return {
        name: concatenate(
            [part[name] for part in parts], int(name == "samples")
        )
        for name in parts[0]
    }


def is_binary(outputs: Any) -> bool:
    """Whether there is one output for each example: the second of two."""
    return outputs.ndim < 2 or outputs.shape[-1] == 1


def entropy(probabilities: Any) -> Any:
    """Of the distribution along the last axis, in nats, zeros included."""
    p = probabilities
    if is_binary(p):
        p = p if p.ndim > 1 else p[:, None]
        p = np.concatenate([p, 1 - p], axis=-1)
    return -np.sum(p * np.log(np.maximum(p, TINY)), axis=-1)
