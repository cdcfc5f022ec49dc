"""Predictions with their uncertainty."""

import contextlib
import functools

import keras
import numpy as np
from keras import ops

from keras_vdrop import sampling
from keras_vdrop import validation
from keras_vdrop.objective import variational_layers
from keras_vdrop.pointwise import TINY
from keras_vdrop.seeds import NoiseSeedGenerator


def predict(
    model,
    x,
    num_samples=32,
    batch_size=None,
    from_logits=None,
    quantiles=(),
    keep_samples=False,
    seed=None,
    verbose="auto",
    steps=None,
):
    """Predicts with noise in the variational layers, again and again.

    Each example is predicted `num_samples` times, with the weights drawn anew
    from the posterior. All other layers are as in `model.predict`: no dropout,
    and batch normalization by its moving averages. The model is not changed.

    The first call compiles; a later one with the same model, number of
    samples and options does not. What comes before the first variational layer
    is computed once for all samples, if everything behind depends on it alone.

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
        verbose, steps: As in `model.predict`.

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
    _check_model(model)
    num_samples = validation.check_count("num_samples", num_samples)
    validation.check_bool("keep_samples", keep_samples)
    quantiles = tuple(
        validation.check_share("quantiles", q) for q in _as_list(quantiles)
    )
    layers = variational_layers(model)
    sampler = _sampler(
        model,
        num_samples,
        _check_from_logits(from_logits),
        quantiles,
        keep_samples,
        tuple(getattr(layer, "estimator", None) for layer in layers),
    )
    own = NoiseSeedGenerator(seed)
    sampler.seed_generator.state.assign(own.state)
    found = sampler.predict(
        x, batch_size=batch_size, verbose=verbose, steps=steps
    )
    return Predictions(found, num_samples, quantiles, from_logits)


class Predictions:
    """What `predict` returns; see there."""

    def __init__(self, found, num_samples, quantiles, from_logits):
        self.num_samples = num_samples
        self.mean = found["mean"]
        self.std = found["std"]
        self.samples = None
        if "samples" in found:
            self.samples = keras.tree.map_structure(
                lambda samples: np.swapaxes(samples, 0, 1), found["samples"]
            )
        self._quantiles = dict(zip(quantiles, found["quantiles"], strict=True))
        self._from_logits = from_logits
        self._expected_entropy = found.get("expected_entropy")

    def quantile(self, q):
        """The `q`-quantile of the samples, of the shape of `mean`."""
        if self.samples is not None:
            return keras.tree.map_structure(
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
    def entropy(self):
        """Entropy of the mean prediction, in nats."""
        self._require_classifier()
        return keras.tree.map_structure(_entropy_of_array, self.mean)

    @property
    def expected_entropy(self):
        """Mean entropy of the samples, in nats."""
        self._require_classifier()
        return self._expected_entropy

    @property
    def mutual_information(self):
        """Of the label and the weights, in nats."""
        return keras.tree.map_structure(
            lambda total, expected: np.maximum(total - expected, 0.0),
            self.entropy,
            self.expected_entropy,
        )

    def _require_classifier(self):
        if self._from_logits is None:
            raise ValueError(
                "The entropy is that of a classifier. Call `predict` with "
                "`from_logits=True` if the outputs of the model are logits, "
                "or `from_logits=False` if they are probabilities."
            )


class Sampler(keras.Model):
    """Not public: a model whose outputs are statistics of samples of another's.

    It is a model so that Keras reads the data, compiles, and shows progress.
    """

    def __init__(
        self, model, num_samples, from_logits, quantiles, keep_samples
    ):
        super().__init__()
        self.before, self.noisy = _split(model)
        self.num_samples = num_samples
        self.from_logits = from_logits
        self.quantiles = quantiles
        self.keep_samples = keep_samples
        self.seed_generator = NoiseSeedGenerator(0)
        self.built = True

    def call(self, inputs):
        if self.before is not None:
            inputs = self.before(inputs, training=False)
        generators = [
            layer.seed_generator for layer in variational_layers(self.noisy)
        ]
        seeds = [
            self.seed_generator.split(self.num_samples) for _ in generators
        ]
        seeds = ops.stack(seeds, axis=1)

        def sample(seeds):
            with sampling.scope(), _held(generators, seeds):
                outputs = self.noisy(inputs, training=False)
            return keras.tree.map_structure(self._as_probabilities, outputs)

        samples = ops.map(sample, seeds)
        results = {
            "mean": _map(lambda x: ops.mean(x, axis=0), samples),
            "std": _map(lambda x: ops.std(x, axis=0), samples),
            "quantiles": [
                _map(lambda x, q=q: ops.quantile(x, q, axis=0), samples)
                for q in self.quantiles
            ],
        }
        if self.from_logits is not None:
            results["expected_entropy"] = _map(
                lambda x: ops.mean(_entropy(x), axis=0), samples
            )
        if self.keep_samples:
            # Keras joins batches along the first axis.
            results["samples"] = _map(lambda x: ops.swapaxes(x, 0, 1), samples)
        return results

    def _as_probabilities(self, outputs):
        outputs = ops.cast(outputs, "float32")
        if not self.from_logits:
            return outputs
        if outputs.shape[-1] == 1:
            return ops.sigmoid(outputs)
        return ops.softmax(outputs)


@functools.lru_cache(maxsize=4)
def _sampler(
    model, num_samples, from_logits, quantiles, keep_samples, estimators
):
    """Made once, so that it compiles once. Keeps the last models alive."""
    del estimators  # They are part of what is compiled.
    sampler = Sampler(model, num_samples, from_logits, quantiles, keep_samples)
    sampler.compile(jit_compile=getattr(model, "jit_compile", "auto"))
    return sampler


def _split(model):
    """What comes before all noise, or `None`, and the rest of the model."""
    try:
        first = next(x for x in model.layers if variational_layers(x))
        tensor = first.input
        inputs, outputs = model.inputs, model.outputs
        if not isinstance(model, keras.Sequential):
            # Those are flat lists; these have the names.
            inputs, outputs = model.input, model.output
        before = keras.Model(inputs, tensor)
        noisy = keras.Model(tensor, outputs)
    except (AttributeError, ValueError, StopIteration):
        return None, model
    if variational_layers(before) or not before.weights:
        return None, model
    return before, noisy


def _held(generators, seeds):
    stack = contextlib.ExitStack()
    for index, generator in enumerate(generators):
        stack.enter_context(generator.hold(seeds[index]))
    return stack


def _entropy(probabilities):
    """Of the distribution along the last axis, zeros included."""
    p = probabilities
    if p.shape[-1] == 1:
        p = ops.concatenate([p, 1 - p], axis=-1)
    return -ops.sum(p * ops.log(ops.maximum(p, TINY)), axis=-1)


def _entropy_of_array(probabilities):
    return ops.convert_to_numpy(_entropy(ops.convert_to_tensor(probabilities)))


_map = keras.tree.map_structure


def _as_list(value):
    return list(value) if np.iterable(value) else [value]


def _check_model(model):
    if not isinstance(model, keras.Model) or not variational_layers(model):
        raise validation.invalid(
            "model",
            "a keras.Model with a variational layer",
            model,
            "A model that makes its layers when it is built has to be built "
            "first.",
        )


def _check_from_logits(from_logits):
    if from_logits is None:
        return None
    return validation.check_bool("from_logits", from_logits)
