"""Tables and pictures of the CSV file that gradient_variance.py writes."""

import itertools

from shared import plotting

ESTIMATORS = {
    "local": "local reparameterization",
    "flipout": "flipout",
    "example": "weight sample per data point",
    "batch": "weight sample per minibatch",
    "none": "no dropout noise",
}
PAPER_ESTIMATORS = ("local", "example", "batch", "none")
# Tables 1 and 2: by noise, estimator, and (layer, epochs).
PAPER_COLUMNS = (("top", 10), ("top", 100), ("bottom", 10), ("bottom", 100))
PAPER = {
    ("independent", "local"): (7.8e3, 1.2e3, 1.9e2, 1.1e2),
    ("independent", "example"): (1.4e4, 2.6e3, 4.3e2, 2.5e2),
    ("independent", "batch"): (4.9e4, 4.3e3, 8.5e2, 3.3e2),
    ("independent", "none"): (2.8e3, 5.9e1, 1.3e2, 9.0e0),
    ("correlated", "local"): (2.9e4, 5.8e3, 8.8e2, 5.3e2),
    # For Dense layers it is local reparameterization (the paper's appendix).
    ("correlated", "example"): (2.9e4, 5.8e3, 8.8e2, 5.3e2),
    ("correlated", "batch"): (3.1e5, 2.0e4, 5.0e3, 1.1e3),
    ("correlated", "none"): (7.1e3, 9.8e2, 4.3e2, 1.2e2),
}


def paper_figure(noise, estimator, layer, epoch):
    """Returns the variance in the paper, or `None` if it has none."""
    key, column = (noise, estimator), (layer, epoch)
    if key not in PAPER or column not in PAPER_COLUMNS:
        return None
    return PAPER[key][PAPER_COLUMNS.index(column)]


def report(rows, noise, weights, options):
    """Prints the variances beside the paper's, and draws them.

    Args:
        rows: Rows of the CSV, of one kind of noise and one kind of weights.
        noise, weights: These kinds.
        options: Those of gradient_variance.py.
    """
    print(
        f"\n{noise} noise, {weights} weights, {options.schedule} learning "
        f"rate {options.learning_rate}: variance ± standard error "
        "[the paper's]"
    )
    for epoch in options.epochs:
        errors = {x["test_error"] for x in rows if x["epochs"] == str(epoch)}
        print(f"epoch {epoch}: test error {', '.join(errors)}%")
    found = {
        (row["estimator"], row["layer"], int(row["epochs"])): row
        for row in rows
    }
    show_table(found, noise, options)
    if found:
        settings = f"{options.schedule}_{options.learning_rate}_{weights}"
        plotting.draw(
            plotting.beside(options.out, f"_{noise}_{settings}.png"),
            (10, 4),
            lambda figure: paint(figure, found, noise, options),
        )


def show_table(found, noise, options):
    columns = list(itertools.product(("top", "bottom"), options.epochs))
    heads = [f"{layer}, {epoch} epochs" for layer, epoch in columns]
    print(f"{'':30s}" + "".join(f"{head:28s}" for head in heads))
    for estimator in options.estimators:
        line = f"{ESTIMATORS[estimator]:30s}"
        for layer, epoch in columns:
            row = found.get((estimator, layer, epoch))
            paper = paper_figure(noise, estimator, layer, epoch)
            line += f"{cell(row, paper):28s}"
        print(line)


def cell(row, paper):
    if row is None:
        return "-"
    variance, error = float(row["variance"]), float(row["standard_error"])
    text = f"{variance:.2g} ± {error:.1g}"
    return f"{text} [{paper:.2g}]" if paper else text


def paint(figure, found, noise, options):
    panels = figure.subplots(1, 2, sharey=True)
    for axes, layer in zip(panels, ("bottom", "top"), strict=True):
        for estimator in options.estimators:
            paint_estimator(axes, estimator, layer, found, noise, options)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(options.epochs, options.epochs)
        axes.minorticks_off()
        axes.set_xlabel("epochs of training")
        axes.set_title(f"{layer} layer, {noise} noise")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("variance of the gradient")
    panels[0].legend(fontsize="small")


def paint_estimator(axes, estimator, layer, found, noise, options):
    """Draws our variances as a line and the paper's as crosses."""
    index = options.estimators.index(estimator)
    epochs = [e for e in options.epochs if (estimator, layer, e) in found]
    rows = [found[estimator, layer, epoch] for epoch in epochs]
    axes.errorbar(
        epochs,
        [float(row["variance"]) for row in rows],
        [float(row["standard_error"]) for row in rows],
        fmt="o-",
        capsize=3,
        color=f"C{index}",
        label=ESTIMATORS[estimator],
    )
    papers = [paper_figure(noise, estimator, layer, e) for e in epochs]
    points = [
        (epoch, paper)
        for epoch, paper in zip(epochs, papers, strict=True)
        if paper
    ]
    axes.plot(
        [epoch for epoch, _ in points],
        [paper for _, paper in points],
        "x:",
        color=f"C{index}",
        alpha=0.6,
        label="the paper" if index == 0 else None,
    )
