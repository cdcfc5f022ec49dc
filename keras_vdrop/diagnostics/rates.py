"""Pictures of the dropout rates that a model has learned."""

import math
import textwrap
from typing import Any

import keras
import numpy as np

from keras_vdrop.core import validation
from keras_vdrop.diagnostics import drawing
from keras_vdrop.diagnostics.measures import Histogram
from keras_vdrop.diagnostics.report import NoiseReport
from keras_vdrop.diagnostics.report import report


def plot_rates(
    model: keras.Layer,
    image_shape: tuple[int, ...] | None = None,
    bins: int = 50,
) -> Any:
    """Draws the dropout rates that a model has learned.

    A histogram for each variational layer, or a line if it has one alpha. If
    the first of them has `granularity="input"` and its inputs are those of the
    model, there is an image over the pixels of the input as well. Its shape is
    `image_shape`; without it, the model's own input shape if that is
    `(height, width)` or `(height, width, channels)`, or a square if the model
    has a single axis whose size is a square number. Rates of several
    channels are averaged.

    Args:
        model: A `keras.Model`, or a layer, built.
        image_shape: Tuple, `(height, width)` or `(height, width, channels)` of
            the input of the first variational layer, which is given flat.
        bins: Positive integer, the number of bins of a histogram.

    Returns:
        A `matplotlib.figure.Figure`; `figure.savefig("rates.png")` writes it.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((8, 8)),
    ...     keras.layers.Flatten(),
    ...     keras_vdrop.VariationalDense(10, granularity="input"),
    ... ])
    >>> figure = keras_vdrop.plot_rates(model)
    >>> [axes.get_xlabel() for axes in figure.axes[:2]]
    ['dropout rate, mean 0.050', 'over the input']
    """
    bins = validation.check_count("bins", bins)
    # Twice as many, for a scale that ends at 0.5.
    reports = report(model, histogram=Histogram(2 * bins, is_whole=True))
    for found in reports:
        if found.shape is None:
            found.layer.dropout_rates()  # Says why it cannot.
    shape = _image_shape(model, reports[0], image_shape)
    # All panels have one scale: half of it is enough under the paper's bound.
    top = 0.5 if max(found.greatest for found in reports) <= 0.5 else 1.0
    panels = len(reports) + (shape is not None)
    columns = min(panels, 3)
    rows = math.ceil(panels / columns)
    size = (4 * columns, 3 * rows)
    figure = drawing.new_figure("plot_rates", figsize=size)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    if shape is not None:
        _draw_image(axes.pop(1), reports[0], shape, top)
    for panel, found in zip(axes, reports, strict=False):
        _draw_histogram(panel, found, top)
    return figure


def _image_shape(
    model: keras.Layer, first: NoiseReport, image_shape: Any
) -> tuple[int, ...] | None:
    inputs = math.prod(first.shape or ())
    over_inputs = first.layer.granularity == "input"
    if image_shape is not None:
        if (
            not isinstance(image_shape, tuple | list)
            or len(image_shape) not in (2, 3)
            or not over_inputs
            or math.prod(image_shape) != inputs
        ):
            raise validation.invalid(
                "image_shape",
                "(height, width) or (height, width, channels) of the inputs "
                f"of '{first.name}', which has {inputs} rates and "
                f"granularity={first.layer.granularity!r}",
                image_shape,
                "An image has a rate for each pixel: the first variational "
                "layer needs `granularity='input'`.",
            )
        return tuple(image_shape)
    shape = _input_shape(model)
    if not over_inputs or shape is None or math.prod(shape) != inputs:
        return None
    if len(shape) in (2, 3):
        return shape
    side = math.isqrt(inputs)
    return (side, side) if len(shape) == 1 and 1 < side**2 == inputs else None


def _input_shape(model: keras.Layer) -> tuple[int, ...] | None:
    """Of one example, or `None` where it is not known or not an image's."""
    # A model of several inputs has no shape of them, a subclassed model none.
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or not all(
        isinstance(size, int) for size in shape[1:]
    ):
        return None
    channels_first = keras.config.image_data_format() == "channels_first"
    return None if len(shape) == 4 and channels_first else shape[1:]


def _draw_histogram(axes: Any, found: NoiseReport, top: float) -> None:
    mean = found.mean
    axes.set_title(_broken(found.name), size="medium")
    axes.set(xlabel=f"dropout rate, mean {mean:.3f}", xlim=(0, top))
    axes.spines[["top", "right"]].set_visible(False)
    if found.shape:
        counts = _counts_to(top, found.counts)
        edges = np.linspace(0, top, len(counts) + 1)
        axes.hist(edges[:-1], bins=edges, weights=counts)
        axes.axvline(mean, color="tab:orange", linestyle="--")
        axes.set_ylabel(f"{found.layer.granularity}s")
        axes.yaxis.get_major_locator().set_params(integer=True)
    else:
        # Unclipped, a rate of 0 or of the greatest is a whole line too.
        axes.axvline(mean, linewidth=4, clip_on=False)
        axes.set(ylabel="one alpha", yticks=[])


def _counts_to(top: float, counts: Any) -> Any:
    """The counts of the bins of `[0, top]`, of those of half the width."""
    if top == 1:
        return counts.reshape(-1, 2).sum(axis=1)
    half = len(counts) // 2
    kept = counts[:half].copy()
    # A rate of 0.5, the greatest, belongs to the last bin.
    kept[-1] += counts[half:].sum()
    return kept


def _draw_image(
    axes: Any, found: NoiseReport, shape: tuple[int, ...], top: float
) -> None:
    image = next(iter(found.layer.rates_by_name().values())).reshape(shape)
    if len(shape) == 3:
        image = image.mean(axis=-1)
    drawn = axes.imshow(image, vmin=0, vmax=top, cmap="viridis")
    axes.set_title(_broken(found.name), size="medium")
    axes.set(xlabel="over the input", xticks=[], yticks=[])
    axes.figure.colorbar(drawn, ax=axes, label="dropout rate")


def _broken(name: str) -> str:
    return "\n".join(textwrap.wrap(name, 36))
