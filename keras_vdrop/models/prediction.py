"""Predictions with their uncertainty."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import sampling as sampling_mode
from keras_vdrop.core import validation
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.models.parts import parts_of
from keras_vdrop.models.prediction_table import prediction_table
from keras_vdrop.models.sampling import Sampler
from keras_vdrop.models.statistics import Statistics
from keras_vdrop.models.statistics import entropy
from keras_vdrop.models.statistics import join
from keras_vdrop.models.traversal import require_variational_layers

_map = keras.tree.map_structure


def predict(
    model: keras.Model,
    x: Any,
    num_samples: int = 32,
    batch_size: int | None = None,
    from_logits: bool | None = None,
    quantiles: float | Sequence[float] = (),
    keep_samples: bool = False,
    seed: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    sampling: str = "weights",
) -> "Predictions":
    """Predicts with samples of the weights, again and again.

    Each sample draws the weights from the posterior once and runs
    `model.predict` with them: the model's own `call` and `predict_step`, on
    the devices of the model. A sample is a function of `x`, the same weights
    for all examples, positions and batches. All other layers are as in
    `model.predict`: no dropout, and batch normalization by its moving
    averages.

    The model is the same afterwards, also if the call is interrupted. While
    it runs the weights of the model are samples: another thread must not use
    the model, except in `keras_vdrop.predict`, which waits for its turn.

    Args:
        model: A `keras.Model` with at least one variational layer.
        x: Whatever `model.predict` takes.
        num_samples: Positive integer.
        batch_size: As in `model.predict`.
        from_logits: For a classifier, whether its outputs are logits (`True`)
            or probabilities (`False`). Logits are turned into probabilities
            first, so that `mean` is the predictive distribution. The last
            axis has the classes; a single output is the probability of the
            second of two. By default the outputs are taken as they are.
        quantiles: List of floats in [0, 1] that will be asked of
            `quantile`.
        keep_samples: Boolean, whether to keep all samples. By default memory
            is needed for those of one batch only.
        seed: Integer, for the same samples again, or `None`.
        verbose: 0 for silence, otherwise a progress bar over the samples.
        steps: As in `model.predict`.
        sampling: `"weights"`, as above, or `"local"`: noise is drawn anew for
            each example, and by the estimator of each layer, as in training.
            Each example has the same distribution as with `"weights"` where
            a layer with noise is `Dense` and applied once to an example.
            Where weights are shared over positions (convolutions, recurrent
            layers, transformers), the noise of the positions averages out,
            and the spread of the predictions is too small.

    Returns:
        An object with these attributes, numpy arrays, or structures of them
        if the model has several outputs:

        - `mean` and `std`, over the samples.
        - `quantile(q)`, for the `quantiles` asked for, or any if samples are
          kept.
        - `samples`, `(num_samples, examples, ...)`, or `None`.
        - with `from_logits`: `entropy` of the mean prediction,
          `expected_entropy` of the samples, and their difference
          `mutual_information`, in nats: the total uncertainty, the part that
          lies in the data, and the part that more data could remove.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential(
    ...     [keras.Input((4,)), keras_vdrop.VariationalDense(3)]
    ... )
    >>> x = np.random.normal(size=(5, 4))
    >>> found = keras_vdrop.predict(model, x, from_logits=True, verbose=0)
    >>> found.mean.shape, found.entropy.shape
    ((5, 3), (5,))
    """
    require_variational_layers(model, keras.Model)
    num_samples = validation.check_count("num_samples", num_samples)
    validation.check_bool("keep_samples", keep_samples)
    validation.check_choice("sampling", sampling, sampling_mode.MODES)
    quantiles = tuple(
        validation.check_share("quantiles", q) for q in _as_list(quantiles)
    )
    from_logits = _check_from_logits(from_logits)
    keep = keep_samples or bool(quantiles)
    sampler = Sampler(model, sampling, num_samples, check_seed(seed))
    found = []
    for part in parts_of(x, batch_size, steps):
        statistics = Statistics(from_logits, keep)
        sampler.run(part, _progress(statistics.add, num_samples, verbose))
        found.append(statistics.result(quantiles, keep_samples))
    joined = join(found)
    return Predictions(joined, num_samples, quantiles, from_logits)


class Predictions:
    """What `predict` returns; see there.

    A notebook shows a table of the first examples.
    """

    def __init__(
        self,
        found: dict[str, Any],
        num_samples: int,
        quantiles: tuple[float, ...],
        from_logits: bool | None,
    ):
        self.num_samples = num_samples
        self.mean = found["mean"]
        self.std = found["std"]
        self.samples = found.get("samples")
        self._quantiles = dict(zip(quantiles, found["quantiles"], strict=True))
        self._from_logits = from_logits
        self._expected_entropy = found.get("expected_entropy")

    def quantile(self, q: float) -> Any:
        """The `q`-quantile of the samples, of the shape of `mean`."""
        if self.samples is not None:
            return _map(
                lambda samples: np.quantile(samples, q, axis=0), self.samples
            )
        if q not in self._quantiles:
            raise validation.invalid(
                "q",
                f"one of the quantiles asked for, {tuple(self._quantiles)}",
                q,
                f"Call `predict` with `quantiles=[{q}]`, or with "
                "`keep_samples=True`.",
            )
        return self._quantiles[q]

    @property
    def entropy(self) -> Any:
        """Entropy of the mean prediction, in nats."""
        self._require_classifier()
        return _map(entropy, self.mean)

    @property
    def expected_entropy(self) -> Any:
        """Mean entropy of the samples, in nats."""
        self._require_classifier()
        return self._expected_entropy

    @property
    def mutual_information(self) -> Any:
        """Of the label and the weights, in nats."""
        return _map(
            lambda total, expected: np.maximum(total - expected, 0.0),
            self.entropy,
            self.expected_entropy,
        )

    def __repr__(self) -> str:
        shapes = _map(np.shape, self.mean)
        return f"<Predictions: mean {shapes}, {self.num_samples} samples>"

    def _repr_html_(self) -> str:
        return prediction_table(self, self._from_logits is not None)

    def _require_classifier(self) -> None:
        if self._from_logits is None:
            raise ValueError(
                "The entropy is that of a classifier. Call `predict` with "
                "`from_logits=True` if the outputs of the model are logits, "
                "or `from_logits=False` if they are probabilities."
            )


def _progress(
    add: Callable[..., Any], num_samples: int, verbose: int | str
) -> Callable[..., Any]:
    """`add` with a progress bar over the samples."""
    if verbose == 0:
        return add
    bar = keras.utils.Progbar(num_samples, unit_name="sample")

    def add_and_tell(outputs: Any) -> None:
        add(outputs)
        bar.add(1)

    return add_and_tell


def _as_list(value: Any) -> list[Any]:
    return list(value) if np.iterable(value) else [value]


def _check_from_logits(from_logits: Any) -> bool | None:
    if from_logits is None:
        return None
    return validation.check_bool("from_logits", from_logits)
