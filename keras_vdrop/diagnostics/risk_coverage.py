"""Pictures of what a model is not sure of."""

import math
from typing import Any

import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.diagnostics import drawing
from keras_vdrop.models import likelihoods


def plot_risk_coverage(
    y_true: Any,
    y_pred: Any,
    uncertainty: Any = None,
    from_logits: bool = False,
) -> Any:
    """Draws the error rate over the share of predictions that are kept.

    The least sure predictions are refused first. The more the curve falls
    from the right to the left, the better the model knows what it does not
    know. The legend gives the area under the curve, which
    `keras_vdrop.metrics.AreaUnderRiskCoverage` computes too. Equally sure
    predictions are kept together.

    Args:
        y_true: Array of the labels, integers or one-hot.
        y_pred: Array of the predictions, `(examples, classes)`, or a
            dictionary of such arrays by the name to show in the legend.
            `(examples,)` or a single column is the probability of the second
            of two classes.
        uncertainty: Array by which to sort the examples, such as
            `mutual_information` of `keras_vdrop.predict`, or a dictionary of
            such arrays by the names of `y_pred`. By default it is one minus
            the probability of the predicted class.
        from_logits: Boolean, whether the predictions are logits or
            probabilities.

    Returns:
        A `matplotlib.figure.Figure`; `figure.savefig("risk.png")` writes it.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> labels = np.array([0, 1, 1, 0])
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    >>> figure = keras_vdrop.plot_risk_coverage(labels, {"model": p})
    >>> figure.axes[0].get_legend().get_texts()[0].get_text()
    'model, area 0.119'

    Reference:

    - [Geifman, El-Yaniv, 2017](https://arxiv.org/abs/1705.08500)
    """
    validation.check_bool("from_logits", from_logits)
    several = y_pred if isinstance(y_pred, dict) else {"": y_pred}
    if not several:
        raise validation.invalid("y_pred", "at least one prediction", y_pred)
    if not isinstance(uncertainty, dict):
        uncertainty = dict.fromkeys(several, uncertainty)
    if not set(uncertainty) <= set(several):
        raise validation.invalid(
            "uncertainty",
            f"a dictionary with names of `y_pred`, {tuple(several)}",
            tuple(uncertainty),
        )
    curves = {
        name: _curve(y_true, array, uncertainty.get(name), from_logits)
        for name, array in several.items()
    }
    figure = drawing.new_figure("plot_risk_coverage", figsize=(6, 4))
    axes = figure.subplots()
    for name, (coverage, risk) in curves.items():
        area = f"area {_area(coverage, risk):.3g}"
        axes.plot(coverage, risk, label=f"{name}, {area}" if name else area)
    axes.set(
        xlabel="share of predictions that are kept",
        ylabel="share of these that is wrong",
        xlim=(0, 1),
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_least_sure(
    x: Any,
    uncertainty: Any,
    number: int = 16,
    titles: Any = None,
) -> Any:
    """Draws the examples that a model is least sure of, the worst first.

    Args:
        x: Array of the examples: images, `(examples, height, width)` or with
            1, 3 or 4 channels on a last axis; or rows, `(examples, features)`,
            of which a picture of the standardized features is drawn.
        uncertainty: Array `(examples,)`, such as `mutual_information` of
            `keras_vdrop.predict`.
        number: Positive integer, how many to draw at most.
        titles: A title of each example, such as its label, or `None`.

    Returns:
        A `matplotlib.figure.Figure`; `figure.savefig("unsure.png")` writes it.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> images = np.random.default_rng(0).random((20, 8, 8))
    >>> figure = keras_vdrop.plot_least_sure(images, np.arange(20), number=6)
    >>> figure.axes[0].get_title()
    '19: 19'
    """
    number = validation.check_count("number", number)
    x, uncertainty = np.asarray(x), np.asarray(uncertainty)
    if uncertainty.shape != x.shape[:1] or not len(x):
        raise validation.invalid(
            "uncertainty",
            f"one value for each of {len(x)} examples",
            f"shape {uncertainty.shape}",
            "`per_example` of the predictions averages over positions.",
        )
    if titles is not None and len(titles) != len(x):
        raise validation.invalid(
            "titles", f"one for each of {len(x)} examples", len(titles)
        )
    are_images = x.ndim == 3 or x.ndim == 4 and x.shape[-1] in (1, 3, 4)
    if x.ndim != 2 and not are_images:
        raise validation.invalid(
            "x",
            "images, with 1, 3 or 4 channels on the last axis, or rows",
            f"shape {x.shape}",
        )
    chosen = np.argsort(-uncertainty, kind="stable")[:number]
    names = [
        f"{index}: {uncertainty[index]:.3g}"
        + ("" if titles is None else f"\n{titles[index]}")
        for index in chosen
    ]
    if are_images:
        return _draw_images(x[chosen], names)
    return _draw_rows(x, chosen, names)


def _draw_images(images: Any, names: list[str]) -> Any:
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    figure = drawing.new_figure(
        "plot_least_sure", figsize=(1.4 * columns, 1.6 * rows)
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, image, name in zip(panels, images, names, strict=False):
        if image.ndim == 3 and image.shape[-1] == 1:
            image = image[..., 0]
        axes.imshow(image, cmap="gray")
        axes.set_title(name, fontsize=8)
    return figure


def _draw_rows(x: Any, chosen: Any, names: list[str]) -> Any:
    deviation = x.std(axis=0)
    scaled = (x[chosen] - x.mean(axis=0)) / np.where(deviation, deviation, 1)
    figure = drawing.new_figure(
        "plot_least_sure", figsize=(6, 1 + 0.3 * len(names))
    )
    axes = figure.subplots()
    shown = axes.imshow(scaled, aspect="auto", cmap="RdBu_r", vmin=-3, vmax=3)
    axes.set_yticks(range(len(names)), [x.replace("\n", ", ") for x in names])
    axes.set_xlabel("feature")
    figure.colorbar(shown, label="standard deviations from the mean")
    return figure


def _curve(
    y_true: Any, y_pred: Any, uncertainty: Any, from_logits: bool
) -> tuple[Any, Any]:
    """Shares that are kept, and the error rate of each."""
    p = likelihoods.probabilities(np.asarray(y_pred, "float64"), from_logits)
    p = likelihoods.classes_of(p)
    labels = likelihoods.one_hot(np.asarray(y_true), p)
    wrong = (p.argmax(-1) != labels.argmax(-1)).ravel()
    if uncertainty is None:
        uncertainty = 1 - p.max(-1)
    uncertainty = np.asarray(uncertainty).ravel()
    if uncertainty.shape != wrong.shape or not len(wrong):
        raise validation.invalid(
            "uncertainty",
            f"one value for each of {len(wrong)} predictions",
            f"shape {uncertainty.shape}",
        )
    order = np.argsort(uncertainty, kind="stable")
    count = np.arange(1, len(order) + 1)
    errors = np.cumsum(wrong[order])
    # Those that are equally sure are kept together.
    ends = np.append(np.diff(uncertainty[order]) != 0, True)
    return count[ends] / len(order), errors[ends] / count[ends]


def _area(coverage: Any, risk: Any) -> float:
    """As if the order of equally sure predictions were random."""
    kept, errors = np.append(0.0, coverage), np.append(0.0, coverage * risk)
    rate = np.diff(errors) / np.diff(kept)
    start = errors[:-1] - rate * kept[:-1]
    # The first is zero: all that is kept is equally sure.
    logs = np.log(kept[2:] / kept[1:-1])
    first = np.append(0.0, start[1:] * logs)
    return float(np.sum(first + rate * np.diff(kept)))
