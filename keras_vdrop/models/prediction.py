"""Predictions with their uncertainty."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import sampling as sampling_mode
from keras_vdrop.core import validation
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.core.seeds import derived_seed
from keras_vdrop.models import likelihoods
from keras_vdrop.models.masks import Masks
from keras_vdrop.models.monte_carlo_dropout import dropout_layers
from keras_vdrop.models.parts import parts_of
from keras_vdrop.models.predictions import Predictions
from keras_vdrop.models.sampling import Sampler
from keras_vdrop.models.statistics import Statistics
from keras_vdrop.models.statistics import join
from keras_vdrop.models.traversal import variational_layers

__all__ = ["Predictions", "predict"]


def predict(
    model: keras.Model | Sequence[keras.Model],
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
    likelihood: Any = None,
    dropout: bool = False,
) -> Predictions:
    """Predicts with samples of the weights, again and again.

    Each sample draws the weights from the posterior once and runs
    `model.predict` with them: the model's own `call` and `predict_step`, on
    the devices of the model. A sample is a function of `x`, the same weights
    for all examples, positions and batches. All other layers are as in
    `model.predict`: no dropout, unless it is asked for, and batch
    normalization by its moving averages.

    With `dropout=True`, and with a list of models, the baselines of
    uncertainty come from the same call: MC dropout, and deep ensembles.

    The model is the same afterwards, also if the call is interrupted. While
    it runs the weights of the model are samples: another thread must not use
    the model, or one that shares its layers, except the same model in
    `keras_vdrop.predict`, which waits for its turn. `dropout=True` changes
    nothing for other threads but `model.predict`, which finds the compiled
    function with noise.

    Args:
        model: A `keras.Model` with at least one variational layer, or a list
            of models with the same outputs, with or without such layers: an
            ensemble. The samples of all of them are taken together.
        x: Whatever `model.predict` takes.
        num_samples: Positive integer. In a list, of each model; models
            without noise alone have one sample each.
        batch_size: As in `model.predict`.
        from_logits: For a classifier, whether its outputs are logits (`True`)
            or probabilities (`False`). Logits are turned into probabilities
            first, so that `mean` is the predictive distribution. The last
            axis has the classes; a single output is the probability of the
            second of two. By default the outputs are taken as they are. For
            `True` and `False` one can also write `likelihood="logits"` and
            `"probabilities"`.
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
        likelihood: What the outputs stand for: `"logits"`,
            `"probabilities"`, `"gaussian"` or `None`. Several outputs can
            have a list or a dict of these, one for each. With `"gaussian"`
            they are means and then log variances on the last axis, as for
            `keras_vdrop.losses.GaussianNegativeLogLikelihood`.
        dropout: Boolean, whether the layers `Dropout`, `GaussianDropout`,
            `SpatialDropout` and `AlphaDropout` are on, as in training: MC
            dropout. Their masks are drawn anew for each sample and example.
            Dropout that is an argument of a recurrent layer stays off.

    Returns:
        An object with these attributes, numpy arrays, or structures of them
        if the model has several outputs:

        - `mean` and `std`, over the samples.
        - `quantile(q)`, for the `quantiles` asked for, or any if samples are
          kept; `interval(level)`, the ends of a central interval on a new
          last axis, for which two quantiles are needed: 0.05 and 0.95 for 0.9.
        - `samples`, `(num_samples, examples, ...)`, or `None`.
        - for a classifier: `entropy` of the mean prediction,
          `expected_entropy` of the samples, and their difference
          `mutual_information`, in nats: the total uncertainty, the part that
          lies in the data, and the part that more data could remove. A
          sequence or an image has them for each position. `per_example` of
          one of them is the mean over the positions that are not masked.
        - with `likelihood="gaussian"`: `mean` and `std` are those of the
          targets. `weights_std` is the part of the deviation that comes from
          the weights, `data_std` the part that comes from the data; their
          squares add up to that of `std`. Quantiles are those of the mixture
          of the distributions of all samples.
        - `log_likelihood(y)` of targets.
        - `mask`, which positions count, or `None`.

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
    models = _models(model, dropout)
    num_samples = validation.check_count("num_samples", num_samples)
    validation.check_bool("keep_samples", keep_samples)
    validation.check_choice("sampling", sampling, sampling_mode.MODES)
    quantiles = tuple(
        validation.check_share("quantiles", q) for q in _as_list(quantiles)
    )
    likelihood = likelihoods.check(likelihood, from_logits)
    keep = keep_samples or bool(quantiles)
    seed = check_seed(seed)
    noisy = [_has_noise(model, dropout) for model in models]
    samplers = [
        Sampler(
            model,
            sampling,
            num_samples if has_noise else 1,
            # The first is as it would be alone.
            derived_seed(seed, number) if number else seed,
            dropout=dropout,
        )
        for number, (model, has_noise) in enumerate(
            zip(models, noisy, strict=True)
        )
    ]
    total = len(models) * (num_samples if any(noisy) else 1)
    masks = Masks(models[0])
    found = []
    for part in parts_of(x, batch_size, steps):
        names = list(getattr(models[0], "output_names", None) or [])
        statistics = Statistics(likelihood, keep, names)
        add = _progress(statistics.add, total, verbose)
        for sampler in samplers:
            # All models have the same share.
            times = total // len(models) // sampler.num_samples
            sampler.run(part, _repeated(add, times))
        found.append(statistics.result(quantiles, keep_samples))
        masks.add(part, [output["mean"] for output in found[-1]])
    return Predictions(
        join(found), statistics.structure, total, quantiles, masks.joined()
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


def _models(model: Any, dropout: Any) -> list[keras.Model]:
    """The models of an ensemble, or the one."""
    validation.check_bool("dropout", dropout)
    several = isinstance(model, list | tuple)
    models = list(model) if several else [model]
    are_models = all(isinstance(x, keras.Model) for x in models)
    if (
        models
        and are_models
        and (several or any(_has_noise(x, dropout) for x in models))
    ):
        return models
    fix = (
        "A model that makes its layers when it is built has to be built first."
    )
    if are_models and any(dropout_layers(x) for x in models):
        fix = "`dropout=True` predicts with its dropout layers (MC dropout)."
    elif dropout:
        fix = f"It has no dropout layer either. {fix}"
    raise validation.invalid(
        "model",
        "a keras.Model with a variational layer, or a list of models",
        model,
        fix,
    )


def _has_noise(model: keras.Model, dropout: bool) -> bool:
    return bool(
        variational_layers(model) or (dropout and dropout_layers(model))
    )


def _repeated(add: Callable[..., Any], times: int) -> Callable[..., Any]:
    def add_times(outputs: Any) -> None:
        for _ in range(times):
            add(outputs)

    return add_times
