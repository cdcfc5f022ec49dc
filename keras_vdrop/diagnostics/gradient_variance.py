"""How much the gradient of a minibatch varies, with each estimator."""

import contextlib
import functools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.diagnostics.gradient_variance_arguments import check_estimators
from keras_vdrop.diagnostics.gradient_variance_arguments import check_model
from keras_vdrop.diagnostics.gradient_variance_arguments import chosen_layers
from keras_vdrop.diagnostics.gradient_variance_arguments import (
    number_of_examples,
)
from keras_vdrop.models.traversal import variational_layers


class GradientVariance(NamedTuple):
    """What `gradient_variance` finds for one layer and one estimator."""

    variance: float
    standard_error: float


def gradient_variance(
    model: keras.Model,
    x: Any,
    y: Any,
    batch_size: int = 1000,
    num_batches: int | None = None,
    estimators: Sequence[str] = ("local", "batch", "none"),
    layers: Any = None,
    num_examples: int | None = None,
    seed: int = 0,
    verbose: int = 1,
) -> dict[str, dict[str, GradientVariance]]:
    """The variance of the minibatch gradient, with each estimator.

    The quantity of the paper's Tables 1 and 2. For a minibatch of M examples
    the gradient of the variational bound of the whole data set by a kernel is
    estimated by `g = N * gradient of the loss`, because the loss of Keras is
    the mean over the minibatch: the paper's `N / M` times a sum. The data is
    shuffled and cut into K minibatches, `g` is found for each, with noise of
    its own, and compared with their mean, which is the gradient on the full
    set when the minibatches are all of it. The figure is

        sum over the K minibatches of (g - mean of g)**2 / (K - 1)

    averaged over the weights of the kernel: an unbiased estimate of the
    variance of `g`, with minibatches drawn independently. It holds the choice
    of examples and the noise together; the estimator `"none"`, without noise,
    has the choice of examples alone. All estimators get the same minibatches.

    The standard error is that of the mean of K - 1 terms: term `k` is the
    square of `g_k` minus the mean of the `k - 1` before it, times
    `(k - 1) / k`. Each has the variance as its expectation, and their mean is
    the figure above.

    The KL does not depend on the minibatch, so it does not matter here. The
    model is as before when the function returns: weights, seeds and
    statistics of normalization layers too. Variables that are spread over
    several processes are refused.

    Args:
        model: A compiled `keras.Model`, with the weights to look at.
        x, y: Arrays, or structures of arrays, with N examples.
        batch_size: Positive integer M.
        num_batches: Integer K, at least 2. By default as many as the data
            fills; with more, the data is shuffled and cut again.
        estimators: List of `"local"`, `"flipout"`, `"batch"`, `"example"`, as
            the argument `estimator` of the layers, and `"none"` for the whole
            model as at inference. `"example"` takes about a hundred times as
            long.
        layers: List of layers with a trainable kernel, or their names. By
            default all variational layers with a kernel.
        num_examples: Positive integer, the N that scales the gradient, if
            `x` is a part of the data. By default the length of `x`.
        seed: Integer, for the order of the data and for the noise.
        verbose: 1 shows a progress bar, 0 nothing.

    Returns:
        A dictionary by estimator of dictionaries by layer name of tuples
        `(variance, standard_error)`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential(
    ...     [keras.Input((3,)), keras_vdrop.VariationalDense(1, name="dense")]
    ... )
    >>> keras_vdrop.set_num_examples(model, 400)
    >>> model.compile("adam", "mse")
    >>> x, y = np.random.normal(size=(400, 3)), np.ones((400, 1))
    >>> found = keras_vdrop.gradient_variance(
    ...     model, x, y, batch_size=20, verbose=0
    ... )
    >>> found["batch"]["dense"].variance > found["none"]["dense"].variance
    True
    """
    check_model(model)
    layers = chosen_layers(model, layers)
    estimators = check_estimators(estimators)
    size = number_of_examples(x, y)
    batch_size = validation.check_count("batch_size", batch_size)
    if batch_size > size:
        raise validation.invalid(
            "batch_size", f"at most the {size} examples", batch_size
        )
    if num_batches is None:
        num_batches = size // batch_size
    if validation.check_count("num_batches", num_batches) < 2:
        raise validation.invalid(
            "num_batches",
            "at least 2, by default the minibatches the data fills",
            num_batches,
            "Give more, to cut the same examples again, or a smaller "
            "`batch_size`.",
        )
    scale = size if num_examples is None else num_examples
    scale = validation.check_count("num_examples", scale)
    plan = _Plan(batch_size, num_batches, seed, scale)
    return backend.outside_scope(
        lambda: _measured(model, (x, y), layers, estimators, plan, verbose)
    )


class _Plan(NamedTuple):
    """Which minibatches to take, and how to scale their gradients."""

    batch_size: int
    num_batches: int
    seed: int
    scale: int


def _measured(
    model: keras.Model,
    data: tuple[Any, Any],
    layers: list[Any],
    estimators: list[str],
    plan: _Plan,
    verbose: int,
) -> dict[str, dict[str, GradientVariance]]:
    batch_size, num_batches, seed, scale = plan
    size = number_of_examples(*data)
    with _as_it_was(model):
        # Keras makes the state of the loss on its first use, which must not
        # be inside a compiled function.
        example = _batch(data, [0])
        _loss(model, example[0], example[1], training=False)
    progress = keras.utils.Progbar(
        num_batches * len(estimators), verbose=verbose, unit_name="minibatch"
    )
    found = {}
    for estimator in estimators:
        spreads = [_Spread() for _ in layers]
        with _as_it_was(model), _estimator(model, estimator):
            _seed_noise(model, seed)
            gradients = backend.gradient_function(
                functools.partial(_loss, model, training=estimator != "none"),
                model,
                [layer.kernel for layer in layers],
            )
            for rows in _minibatches(size, batch_size, num_batches, seed):
                minibatch = gradients(*_batch(data, rows))
                for spread, gradient in zip(spreads, minibatch, strict=True):
                    spread.add(gradient)
                progress.add(1)
        found[estimator] = {
            layer.name: spread.result(scale)
            for layer, spread in zip(layers, spreads, strict=True)
        }
    return found


class _Spread:
    """Variance of tensors that come one by one, and its standard error."""

    def __init__(self) -> None:
        self.mean: Any = 0.0
        self.count = 0
        self.terms: list[Any] = []

    def add(self, value: Any) -> None:
        self.count += 1
        difference = ops.subtract(ops.cast(value, "float32"), self.mean)
        self.mean = self.mean + difference / self.count
        if self.count > 1:
            share = (self.count - 1) / self.count
            self.terms.append(share * ops.mean(ops.square(difference)))

    def result(self, scale: int) -> GradientVariance:
        terms = ops.convert_to_numpy(ops.stack(self.terms)).astype("float64")
        terms *= float(scale) ** 2
        error = float("nan")
        if len(terms) > 1:
            error = terms.std(ddof=1) / np.sqrt(len(terms))
        return GradientVariance(float(terms.mean()), float(error))


def _minibatches(
    size: int, batch_size: int, count: int, seed: int
) -> Iterator[np.ndarray]:
    """Indices of `count` minibatches, cut from shuffled data."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        start = number % (size // batch_size) * batch_size
        if start == 0:
            order = generator.permutation(size)
        yield np.sort(order[start : start + batch_size])


def _batch(data: Any, rows: Any) -> Any:
    def tensor(array: Any) -> Any:
        array = np.asarray(array)[rows]
        floating = np.issubdtype(array.dtype, np.floating)
        dtype = keras.config.floatx() if floating else None
        return ops.convert_to_tensor(array, dtype)

    return keras.tree.map_structure(tensor, data)


def _loss(model: keras.Model, x: Any, y: Any, training: bool) -> Any:
    outputs = model(x, training=training)
    return model.compute_loss(x=x, y=y, y_pred=outputs, training=training)


@contextlib.contextmanager
def _estimator(model: keras.Model, name: str) -> Iterator[None]:
    """Every variational layer that takes it has this estimator in here."""
    layers = variational_layers(model)
    before = [layer.estimator for layer in layers]
    try:
        for layer in layers:
            with contextlib.suppress(ValueError):
                layer.estimator = name
        yield
    finally:
        for layer, estimator in zip(layers, before, strict=True):
            layer.estimator = estimator


def _seed_noise(model: keras.Model, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for layer in variational_layers(model):
        for weight in layer.random_weights:
            state = InitialState(int(generator.integers(2**62)))
            weight.seed_state.assign(state())


@contextlib.contextmanager
def _as_it_was(model: keras.Model) -> Iterator[None]:
    """Gives seeds, statistics and metrics their values back."""
    variables = _state(model)
    values = [ops.convert_to_numpy(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _state(model: keras.Model) -> list[Any]:
    return [*model.non_trainable_variables, *model.metrics_variables]
