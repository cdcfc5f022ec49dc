"""What a model has learned: its dropout rates and its KL, layer by layer."""

import dataclasses
import math
import textwrap

import keras
import numpy as np

from keras_vdrop import drawing
from keras_vdrop import validation
from keras_vdrop.layers.noise import VariationalNoise
from keras_vdrop.objective import variational_layers

HEADINGS = (
    ("", "", "Alpha", "Rate", "", "", "KL,", "Bits/", "Could"),
    ("Layer", "Noise", "per", "mean", "min", "max", "nats", "weight", "go"),
)
GAPS = (0, 2, 2, 2, 1, 1, 2, 2, 2)
# Those of `model.summary()`, for a model that is a sequence.
LINE_LENGTH = 88
NARROWEST_NAME = 8


@dataclasses.dataclass
class LayerReport:
    """What there is to tell about a variational layer.

    Attributes:
        layer: The layer.
        name: Its name, with a number behind it if another has the same.
        rates: Its dropout rates, a numpy array, or `None` before it is built.
        kl: Its KL in nats, or `None` if its rates are not learned.
        weights: The number of its weights that have noise. A layer of noise
            alone has none.
        removable: The share of its alphas whose logarithm is above the
            threshold, or `None` if they are not learned.
    """

    layer: VariationalNoise
    name: str
    rates: np.ndarray | None = None
    kl: float | None = None
    weights: int = 0
    removable: float | None = None


def report(model, threshold=3.0):
    """A `LayerReport` of each variational layer, in the model's order.

    A layer that is used several times is reported once; layers of nested
    models and inside wrappers are included.
    """
    if not isinstance(model, keras.Layer):
        raise validation.invalid("model", "a keras.Model or a layer", model)
    layers = variational_layers(model)
    if not layers:
        raise validation.invalid(
            "model", "a model with a variational layer", model
        )
    names = _distinct([layer.name for layer in layers])
    return [
        _report_layer(layer, name, threshold)
        for layer, name in zip(layers, names, strict=True)
    ]


def _distinct(names):
    distinct = []
    for name in names:
        candidate, number = name, 0
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


def _report_layer(layer, name, threshold):
    if not layer.built:
        return LayerReport(layer, name)
    kernel = getattr(layer, "kernel", None)
    found = LayerReport(
        layer,
        name,
        rates=layer.dropout_rates(),
        weights=0 if kernel is None else math.prod(kernel.shape),
    )
    if layer.adaptive:
        log_alpha = keras.ops.convert_to_numpy(layer.log_alpha)
        found.kl = layer.kl()
        found.removable = float(np.mean(log_alpha > threshold))
    return found


def summary(model, line_length=None, print_fn=None, threshold=3.0):
    """Prints what the variational layers of a model have learned.

    A line for each variational layer, and a total. Layers without noise are
    left to `model.summary()`. The columns:

    - noise, and what has an alpha of its own, as the layer was given them;
    - the dropout rates `alpha / (1 + alpha)`: mean, least and greatest;
    - the KL in nats, `layer.kl()`, not yet divided by the number of examples;
    - bits per weight, `KL / (log(2) * number of weights)`, where the weights
      are those of the kernel. They are bits of precision: with relative
      standard deviation `sqrt(alpha)`, a weight has `-log2(sqrt(alpha))`
      significant bits more than one with alpha = 1, and for small alpha the KL
      is that up to a constant, which depends on the layer's `kl`;
    - the share of the weights that could go, because they are mostly noise:
      those with `log(alpha) > threshold`. The default keeps no weight whose
      noise is 4.5 times as large as itself. It is 0 for a layer with
      `max_alpha=1.0`: only without that limit can there be such weights.

    The total of the bits and of what could go is over the layers that have
    weights. A layer with `adaptive=False` has a rate and nothing else.

    Args:
        model: A `keras.Model`, or a layer.
        line_length: Positive integer, the greatest length of a line; 88 by
            default. Long names are broken to fit.
        print_fn: Function that gets each line, `print` by default.
        threshold: Float, the log alpha above which a weight could go.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDense(2, rate=0.2, kl="lower_bound")
    >>> model = keras.Sequential([keras.Input((3,)), layer], name="small")
    >>> lines = []
    >>> keras_vdrop.summary(model, print_fn=lines.append)
    >>> lines[0]
    'Variational layers of "small"'
    >>> lines[5].split()[1:]
    ['independent', 'layer', '0.200', '0.200', '0.200', '4.2', '1.000', '0.0%']

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557),
      appendix "Floating-point numbers and compression"
    - [Molchanov, Ashukha, Vetrov, 2017](https://arxiv.org/abs/1701.05369)
    """
    threshold = validation.check_limit("threshold", threshold)
    if line_length is not None:
        line_length = validation.check_count("line_length", line_length)
    reports = report(model, threshold)
    rows = [_row(found) for found in reports]
    lines = _table(rows, _total(reports), line_length or LINE_LENGTH)
    lines.insert(0, f'Variational layers of "{model.name}"')
    if any(found.rates is None for found in reports):
        lines.append(
            "A layer that is not built has no rates: call the model on some "
            "data first."
        )
    weights = sum(found.weights for found in reports)
    lines.append(f"Weights with noise: {weights:,}")
    lines.append(f"Could go: those with log alpha above {threshold:g}")
    for line in lines:
        (print_fn or print)(line)


def _row(found):
    noise = getattr(found.layer, "noise", "correlated")
    start = [found.name, noise, found.layer.granularity]
    if found.rates is None:
        return [*start, "not built"]
    rates = found.rates
    bits = None
    if found.weights and found.kl is not None:
        bits = _bits(found.kl, found.weights)
    return [
        *start,
        *[f"{rate:.3f}" for rate in (rates.mean(), rates.min(), rates.max())],
        *_measures(found.kl, bits, found.removable),
    ]


def _total(reports):
    learned = [found for found in reports if found.kl is not None]
    kernels = [found for found in learned if found.weights]
    weights = sum(found.weights for found in kernels)
    bits = removable = None
    if kernels:
        bits = _bits(sum(found.kl for found in kernels), weights)
        removable = sum(f.weights * f.removable for f in kernels) / weights
    kl = sum(found.kl for found in learned) if learned else None
    return ["Total", "", "", "", "", "", *_measures(kl, bits, removable)]


def _bits(kl, weights):
    return kl / (math.log(2) * weights)


def _measures(kl, bits, removable):
    digits = 1 if kl is not None and abs(kl) < 1000 else 0
    return [
        "-" if kl is None else f"{kl:,.{digits}f}",
        "-" if bits is None else f"{bits:.3f}",
        "-" if removable is None else f"{removable:.1%}",
    ]


def _table(rows, total, line_length):
    widths = [
        # "not built" runs on over the columns that it stands for.
        max(len(row[i]) for row in (*HEADINGS, *rows, total) if len(row) > i)
        if i != 3
        else len("0.000")
        for i in range(len(GAPS))
    ]
    others = sum(widths[1:]) + sum(GAPS)
    widths[0] = min(widths[0], max(line_length - others, NARROWEST_NAME))
    length = sum(widths) + sum(GAPS)

    def lines_of(row):
        names = textwrap.wrap(row[0], widths[0]) or [""]
        cells = [
            # Words to the left, numbers to the right.
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(
                zip([names[0], *row[1:]], widths, strict=False)
            )
        ]
        line = "".join(
            " " * gap + cell for gap, cell in zip(GAPS, cells, strict=False)
        )
        return [line.rstrip(), *names[1:]]

    lines = ["━" * length]
    for row in HEADINGS:
        lines += lines_of(row)
    lines.append("─" * length)
    for row in rows:
        lines += lines_of(row)
    lines.append("─" * length)
    return [*lines, *lines_of(total), "━" * length]


def plot_rates(model, image_shape=None, bins=50):
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
    reports = report(model)
    for found in reports:
        found.rates = found.layer.dropout_rates()
    shape = _image_shape(model, reports[0], image_shape)
    # All panels have one scale: half of it is enough under the paper's bound.
    top = 0.5 if max(found.rates.max() for found in reports) <= 0.5 else 1.0
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
        _draw_histogram(panel, found, bins, top)
    return figure


def _image_shape(model, first, image_shape):
    inputs = first.rates.size
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


def _input_shape(model):
    """Of one example, or `None` where it is not known or not an image's."""
    # A model of several inputs has no shape of them, a subclassed model none.
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or not all(
        isinstance(size, int) for size in shape[1:]
    ):
        return None
    channels_first = keras.config.image_data_format() == "channels_first"
    return None if len(shape) == 4 and channels_first else shape[1:]


def _draw_histogram(axes, found, bins, top):
    mean = found.rates.mean()
    axes.set_title(_broken(found.name), size="medium")
    axes.set(xlabel=f"dropout rate, mean {mean:.3f}", xlim=(0, top))
    axes.spines[["top", "right"]].set_visible(False)
    if found.rates.ndim:
        axes.hist(found.rates.ravel(), bins=bins, range=(0, top))
        axes.axvline(mean, color="tab:orange", linestyle="--")
        axes.set_ylabel(f"{found.layer.granularity}s")
        axes.yaxis.get_major_locator().set_params(integer=True)
    else:
        # Unclipped, a rate of 0 or of the greatest is a whole line too.
        axes.axvline(mean, linewidth=4, clip_on=False)
        axes.set(ylabel="one alpha", yticks=[])


def _draw_image(axes, found, shape, top):
    image = found.rates.reshape(shape)
    if len(shape) == 3:
        image = image.mean(axis=-1)
    drawn = axes.imshow(image, vmin=0, vmax=top, cmap="viridis")
    axes.set_title(_broken(found.name), size="medium")
    axes.set(xlabel="over the input", xticks=[], yticks=[])
    axes.figure.colorbar(drawn, ax=axes, label="dropout rate")


def _broken(name):
    return "\n".join(textwrap.wrap(name, 36))
