"""Tables and pictures of the CSV file that figure1.py writes."""

import collections
import itertools

import numpy as np

from shared import plotting
from shared.methods import TITLES
from shared.results import deviation
from shared.results import spread

# Read off the figure, to within 0.03: test error in % with 3 hidden layers.
PAPER_WIDTHS = (100, 250, 500, 750, 1000, 1250)
PAPER_MNIST = {
    "none": (1.44, 1.30, 1.21, 1.18, 1.18, 1.18),
    "binary": (2.17, 1.39, 1.22, 1.10, 1.02, 1.06),
    "gaussian_a": (2.40, 1.43, 1.18, 1.10, 1.03, 0.98),
    "variational_a": (1.42, 1.26, 1.12, 1.06, 1.02, 1.00),
    "variational_a2": (1.51, 1.21, 1.07, 0.95, 0.95, 0.93),
    "gaussian_b": (2.00, 1.46, 1.27, 1.26, 1.19, 1.26),
    "variational_b": (1.58, 1.37, 1.29, 1.22, 1.16, 1.21),
}
USUAL = {"initial_rates": "0.2 0.5", "granularity": "layer"}
USUAL |= {"kl": "polynomial", "kl_downscale": "1.0", "rate_speed": "1.0"}
# The claims of the paper: the first method is said to be no worse.
CLAIMS = (
    ("variational A", "Gaussian A"),
    ("variational A", "binary dropout"),
    ("variational A", "no dropout"),
    ("variational A2", "variational A"),
    ("variational B", "Gaussian B"),
)


def variant_of(row):
    """Returns the method in words, with what differs from the paper."""
    name = TITLES[row["method"]]
    rates, granularity = row["initial_rates"], row["granularity"]
    if rates not in ("", USUAL["initial_rates"]):
        first, *others = dict.fromkeys(rates.split())
        name += f", from {' and '.join([first, *others])}"
    if granularity not in ("", "layer"):
        name += f", alpha for each {granularity}"
    if row["kl"] not in ("", USUAL["kl"]):
        name += f", {row['kl']} KL"
    if row["kl_downscale"] not in ("", USUAL["kl_downscale"]):
        name += f", KL / {row['kl_downscale']}"
    if row["rate_speed"] not in ("", USUAL["rate_speed"]):
        name += f", speed {float(row['rate_speed']):g}"
    return name


def report(results, protocols, options):
    """Prints and draws all variants of the runs that followed a protocol.

    Args:
        results: `shared.results.Results`.
        protocols: Settings of the protocol for each of `options.sizes`.
        options: Those of figure1.py.
    """
    table = collections.defaultdict(list)
    for size, protocol in zip(options.sizes, protocols, strict=True):
        wanted = {"data": options.data, "size": size, **protocol}
        for row in results.select(**wanted):
            if row["method"] in options.methods:
                table[variant_of(row), size].append(row)
    if not table:
        print(f"{results.path} has no run with these settings.")
        return
    order = list(TITLES.values())
    variants = sorted(
        {variant for variant, _ in table},
        key=lambda variant: (order.index(variant.split(",")[0]), variant),
    )
    sizes = sorted({size for _, size in table})
    show_errors(table, variants, sizes, options.data)
    show_claims(table, variants, sizes)
    draw(table, variants, sizes, options)


def errors_of(rows):
    return [float(row["test_error"]) for row in rows]


def show_errors(table, variants, sizes, data):
    """Prints a table in Markdown, the epochs and the learned rates."""
    print("\ntest error in %: mean ± standard deviation (runs) [the paper's]\n")
    print("| | " + " | ".join(map(str, sizes)) + " |")
    print("| --- " * (len(sizes) + 1) + "|")
    for variant in variants:
        cells = []
        for size in sizes:
            rows = table.get((variant, size), [])
            cell = ""
            if rows:
                cell = f"{spread(errors_of(rows))} ({len(rows)})"
            if rows and data == "mnist" and size in PAPER_WIDTHS:
                cell += f" [{paper_error(rows[0]['method'], size):.2f}]"
            cells.append(cell)
        print("| " + " | ".join([variant, *cells]) + " |")
    print("\nepochs, and mean learned rate of each layer")
    for variant, size in itertools.product(variants, sizes):
        rows = table.get((variant, size))
        if rows:
            epochs = np.mean([int(row["best_epoch"]) for row in rows])
            rates = " ".join(f"{rate:.3f}" for rate in mean_rates(rows))
            print(f"{variant:48s} {size:5d}  {epochs:3.0f}  {rates}")


def show_claims(table, variants, sizes):
    """Prints differences of means with their standard errors."""
    print("\ndifference in points, ± its standard error; below 0: as claimed")
    for ours, theirs in CLAIMS:
        for variant, size in itertools.product(variants, sizes):
            pair = [table.get((name, size)) for name in (variant, theirs)]
            if variant.split(",")[0] != ours or not all(pair):
                continue
            first, second = map(errors_of, pair)
            uncertainty = np.hypot(
                *(
                    deviation(errors) / np.sqrt(len(errors))
                    for errors in (first, second)
                )
            )
            print(
                f"{variant:48s} - {theirs:15s} {size:5d}  "
                f"{np.mean(first) - np.mean(second):+.3f} ± {uncertainty:.3f}"
            )


def paper_error(method, size):
    return PAPER_MNIST[method][PAPER_WIDTHS.index(size)]


def mean_rates(rows):
    """Returns the mean rate of each layer; nothing for fixed rates."""
    runs = [[float(rate) for rate in row["rates"].split()] for row in rows]
    return [np.mean(layer) for layer in zip(*runs, strict=True)]


def draw(table, variants, sizes, options):
    plotting.draw(
        plotting.beside(options.out, ".png"),
        (11, 5.5),
        lambda figure: paint_errors(
            figure, table, variants, sizes, options.data
        ),
    )
    learned = [name for name in variants if name.startswith("variational")]
    if learned:
        columns = min(4, len(learned))
        rows = -(-len(learned) // columns)
        plotting.draw(
            plotting.beside(options.out, "_rates.png"),
            (11, 0.6 + 2.8 * rows),
            lambda figure: paint_rates(
                figure, table, learned, sizes, rows, columns
            ),
        )


def paint_errors(figure, table, variants, sizes, data):
    """Draws our errors, and for MNIST the paper's beside them."""
    if data == "mnist":
        left, right = figure.subplots(1, 2, sharey=True)
        draw_paper(right, variants, sizes)
    else:
        left = figure.subplots()
    draw_errors(left, table, variants, sizes)
    left.set_title(f"{data}: mean and deviation of the runs")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3
    )


def paint_rates(figure, table, variants, sizes, rows, columns):
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(variants) :]:
        axes.set_axis_off()
    for axes, variant in zip(grid.flat, variants, strict=False):
        draw_rates(axes, variant, table, sizes)
    for axes in grid[:, 0]:
        axes.set_ylabel("learned dropout rate")
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5)


def style_of(variant, variants):
    """Returns a colour for each method, a line for each of its variants."""
    method = variant.split(",")[0]
    same = [name for name in variants if name.split(",")[0] == method]
    return {
        "color": f"C{list(TITLES.values()).index(method)}",
        "linestyle": ("-", "--", ":", "-.")[same.index(variant) % 4],
        "marker": "os^D"[same.index(variant) % 4],
        "label": variant,
    }


def draw_errors(axes, table, variants, sizes):
    """Draws variants side by side at each size, so that no bar is hidden."""
    offsets = np.linspace(-0.3, 0.3, len(variants) + 2)[1:-1]
    for variant, offset in zip(variants, offsets, strict=True):
        own = [size for size in sizes if (variant, size) in table]
        errors = [errors_of(table[variant, size]) for size in own]
        axes.errorbar(
            [sizes.index(size) + offset for size in own],
            [np.mean(values) for values in errors],
            [deviation(values) for values in errors],
            capsize=2,
            markersize=4,
            **style_of(variant, variants),
        )
    axes.set_ylabel("test error in %")
    show_sizes(axes, sizes)


def draw_paper(axes, variants, sizes):
    points = [size for size in sizes if size in PAPER_WIDTHS]
    for method, title in TITLES.items():
        axes.plot(
            [sizes.index(size) for size in points],
            [paper_error(method, size) for size in points],
            markersize=4,
            **style_of(title, [title, *variants]),
        )
    axes.set_title("The paper, Figure 1a")
    show_sizes(axes, sizes)


def draw_rates(axes, variant, table, sizes):
    own = [size for size in sizes if (variant, size) in table]
    rates = [mean_rates(table[variant, size]) for size in own]
    for number, layer in enumerate(zip(*rates, strict=True)):
        places = [sizes.index(size) for size in own]
        axes.plot(places, layer, "o-", label=f"layer {number + 1}")
    axes.set_title(variant.replace(", ", "\n"), fontsize=8)
    axes.set_ylim(0, 0.52)
    show_sizes(axes, sizes)


def show_sizes(axes, sizes):
    axes.set_xlabel("hidden units" if max(sizes) > 10 else "size k")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.grid(alpha=0.3)
