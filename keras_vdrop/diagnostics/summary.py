"""A table of what the variational layers of a model have learned."""

import math
import textwrap
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from keras_vdrop.core import notebook
from keras_vdrop.core import validation
from keras_vdrop.diagnostics.report import NoiseReport
from keras_vdrop.diagnostics.report import report
from keras_vdrop.diagnostics.summary_notes import notes_of

HEADINGS: tuple[Sequence[str], ...] = (
    ("", "", "Alpha", "Rate", "", "", "KL,", "Bits/", ""),
    (
        "Layer",
        "Noise",
        "per",
        "mean",
        "min",
        "max",
        "nats",
        "weight",
        "Prunable",
    ),
)
GAPS = (0, 2, 2, 2, 1, 1, 2, 2, 2)
# Those of `model.summary()`, for a model that is a sequence.
LINE_LENGTH = 88
NARROWEST_NAME = 8


def summary(
    model: keras.Layer,
    line_length: int | None = None,
    print_fn: Callable[..., Any] | None = None,
    threshold: float = 3.0,
    precision: float | None = None,
) -> "Summary":
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
    - the share of prunable weights, which are mostly noise: those with
      `log(alpha) > threshold`. With the default, the noise of such a weight is
      more than 4.5 times as large as the weight. The share is 0 for a layer
      with `max_alpha=1.0`: only without that limit can weights be prunable.

    The code length below the table is the sum of the bits of all weights, in
    bytes. With `precision`, the size of a real file stands beside it: the one
    that `keras_vdrop.save_compressed` writes of
    `to_deterministic(model, prune=threshold, precision=precision)`.

    The totals of the bits and of the prunable weights are over the layers
    that have weights. A layer with `adaptive=False` has a rate and nothing
    else. A layer with several random variables has a line for each.

    Below the table are the layers whose rates are still where they began, and
    those more than half of whose rates are at the limit of `max_alpha`.

    Args:
        model: A `keras.Model`, or a layer.
        line_length: Positive integer, the greatest length of a line; 88 by
            default. Long names are broken to fit.
        print_fn: Function that gets each line, `print` by default.
        threshold: Float, the log alpha above which a weight is prunable.
        precision: Float, the step of the rounded weights in standard
            deviations, or `None` for no file. It is made in memory.

    Returns:
        The table, as an object: `str` of it is what was printed. In a notebook
        the table is shown in HTML instead of printed, unless there is a
        `print_fn`.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDense(2, rate=0.2, kl="lower_bound")
    >>> model = keras.Sequential([keras.Input((3,)), layer], name="small")
    >>> lines = []
    >>> keras_vdrop.summary(model, print_fn=lines.append)
    <Summary of "small": 1 row>
    >>> lines[0]
    'Variational layers of "small"'
    >>> lines[5].split()[1:]
    ['correlated', 'layer', '0.200', '0.200', '0.200', '2.1', '0.500', '0.0%']

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
    notes = notes_of(model, reports, threshold, precision)
    total = _total(reports)
    lines = _table(rows, total, line_length or LINE_LENGTH)
    lines.insert(0, f'Variational layers of "{model.name}"')
    for note in notes:
        lines += textwrap.wrap(note, line_length or LINE_LENGTH)
    found = Summary(model.name, lines, rows, total, notes)
    found.show(print_fn)
    return found


class Summary:
    """What `summary` returns; see there.

    Args:
        name: String, the name of the model.
        lines: The lines of the table in text.
        rows: The cells of each row.
        total: The cells of the last row.
        notes: What stands below the table.
    """

    def __init__(
        self,
        name: str,
        lines: list[str],
        rows: list[list[str]],
        total: list[str],
        notes: list[str],
    ):
        self.name = name
        self.lines = lines
        self.rows = rows
        self.total = total
        self.notes = notes
        self._shown_in: int | None = None

    def show(self, print_fn: Callable[..., Any] | None = None) -> None:
        """Prints the table, or shows it in the running notebook."""
        kernel = notebook.kernel()
        if print_fn is None and kernel is not None:
            notebook.show(str(self), self._repr_html_())
            self._shown_in = kernel.execution_count
            return
        for line in self.lines:
            (print_fn or print)(line)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        count = len(self.rows)
        rows = "row" if count == 1 else "rows"
        return f'<Summary of "{self.name}": {count} {rows}>'

    def _repr_html_(self) -> str:
        headings = [" ".join(x).strip() for x in zip(*HEADINGS, strict=True)]
        # Those of the rates have no second line above them.
        headings[4:6] = ["Rate min", "Rate max"]
        notes = "".join(f"<p>{note}</p>" for note in self.notes)
        rows = [*self.rows, self.total]
        return notebook.table(self.lines[0], headings, rows, words=3) + notes

    def _ipython_display_(self) -> None:
        # A cell that ends with the call would show the table a second time.
        kernel = notebook.kernel()
        if kernel is None:
            print(repr(self))
        elif self._shown_in != kernel.execution_count:
            notebook.show(str(self), self._repr_html_())


def _row(found: NoiseReport) -> list[str]:
    noise = found.layer.noise
    start = [found.name, noise, found.layer.granularity]
    if found.shape is None:
        return [*start, "not built"]
    rates = found.mean, found.least, found.greatest
    bits = None
    if found.weights and found.kl is not None:
        bits = _bits(found.kl, found.weights)
    return [
        *start,
        *[f"{rate:.3f}" for rate in rates],
        *_measures(found.kl, bits, found.prunable),
    ]


def _total(reports: list[NoiseReport]) -> list[str]:
    learned = [found for found in reports if found.kl is not None]
    kernels = [found for found in learned if found.weights]
    weights = sum(found.weights for found in kernels)
    kl = bits = prunable = None
    if learned:
        kl = sum(found.kl or 0.0 for found in learned)
    if kernels:
        bits = _bits(sum(found.kl or 0.0 for found in kernels), weights)
        pruned = sum(f.weights * (f.prunable or 0.0) for f in kernels)
        prunable = pruned / weights
    return ["Total", "", "", "", "", "", *_measures(kl, bits, prunable)]


def _bits(kl: float, weights: int) -> float:
    return kl / (math.log(2) * weights)


def _measures(
    kl: float | None, bits: float | None, prunable: float | None
) -> list[str]:
    digits = 1 if kl is not None and abs(kl) < 1000 else 0
    return [
        "-" if kl is None else f"{kl:,.{digits}f}",
        "-" if bits is None else f"{bits:.3f}",
        "-" if prunable is None else f"{prunable:.1%}",
    ]


def _table(
    rows: list[list[str]], total: list[str], line_length: int
) -> list[str]:
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

    def lines_of(row: Sequence[str]) -> list[str]:
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
    for cells in rows:
        lines += lines_of(cells)
    lines.append("─" * length)
    return [*lines, *lines_of(total), "━" * length]
