"""Figure 1 of the paper: when does variational dropout beat fixed dropout?

    python examples/figure1.py mnist --data-dir FOLDER
    python examples/figure1.py cifar10 --data-dir FOLDER

Trains every method at every size for every seed: Adam with its defaults and
temporal averaging, dropout rates 0.2 before the first layer and 0.5 before the
others. The number of epochs is chosen by the error on a validation set, and
the test error is that of the weights of that epoch.

Each finished run is appended to a CSV file, and a second start skips what is
there. In the end, and with --report alone, it prints a table and draws the
errors and the learned rates over the size.
"""

import argparse
import itertools
import os
import sys
import time

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
TITLES = {
    "none": "no dropout",
    "binary": "binary dropout",
    "gaussian_a": "Gaussian A",
    "variational_a": "variational A",
    "variational_a2": "variational A2",
    "gaussian_b": "Gaussian B",
    "variational_b": "variational B",
}
SIZES = {"mnist": PAPER_WIDTHS, "digits": (50, 100), "cifar10": (1, 2)}
# Examples held out of the training set to choose the number of epochs.
VALIDATION = {"mnist": 10_000, "digits": 297, "cifar10": 10_000}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("data", choices=SIZES, help="digits need no download")
    option(
        "--widths",
        "--sizes",
        dest="sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="units of a hidden layer, or k of the convolutional network; "
        "those of the figure if not given",
    )
    option("--methods", nargs="+", choices=TITLES, default=list(TITLES))
    option("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    option("--epochs", type=int, default=100, help="at most")
    option(
        "--patience",
        type=int,
        default=15,
        help="stop after so many epochs without a lower validation error",
    )
    option("--batch-size", type=int, default=100)
    option(
        "--granularity",
        default="layer",
        choices=("layer", "input", "output", "weight"),
        help="what a learned rate belongs to",
    )
    option(
        "--rates",
        nargs=2,
        type=float,
        default=[0.2, 0.5],
        metavar="P",
        help="of dropout before the first layer and before the others: fixed, "
        "or where learning begins",
    )
    option("--kl", default="polynomial", help="divergence of learned rates")
    option("--kl-downscale", type=float, default=1.0, help="divides it further")
    option("--average", type=float, default=0.999, help="of the weights")
    option(
        "--backend",
        choices=("jax", "tensorflow", "torch"),
        default=os.environ.get("KERAS_BACKEND", "jax"),
    )
    option(
        "--data-dir",
        default=os.environ.get("TFDS_DATA_DIR"),
        help="folder of tensorflow-datasets (default: TFDS_DATA_DIR)",
    )
    option("--out", help="CSV file; pictures go beside it")
    option("--report", action="store_true", help="of the CSV, run nothing")
    options = parser.parse_args()
    options.sizes = options.sizes or SIZES[options.data]
    options.out = options.out or f"figure1_{options.data}.csv"
    correlated = {"variational_a", "variational_a2"} & set(options.methods)
    if correlated and options.granularity in ("output", "weight"):
        parser.error(
            f"--granularity {options.granularity} is for variational_b: the "
            "noise of type A belongs to the inputs"
        )
    return options


def settings_of(method, size, seed, options):
    """What tells one run from another: the first columns of the CSV."""
    adaptive = method.startswith("variational")
    rates = " ".join(map(str, options.rates))
    return {
        "data": options.data,
        "method": method,
        "size": size,
        "seed": seed,
        "epochs": options.epochs,
        "patience": options.patience,
        "batch_size": options.batch_size,
        "average": options.average,
        "initial_rates": rates if method != "none" else "",
        "granularity": options.granularity if adaptive else "",
        "kl": options.kl if adaptive else "",
        "kl_downscale": options.kl_downscale if adaptive else "",
    }


def build(method, size, shape, options):
    import experiments

    noise = None
    if method.startswith("variational"):
        noise = {"granularity": options.granularity, "kl": options.kl}
    if options.data == "cifar10":
        network = experiments.convolutional_network
    else:
        network, size = experiments.dense_network, 3 * [size]
    return network(method, shape, size, noise, options.rates)


def train(model, train_data, validation_data, options, label):
    """Leaves the averaged weights of the best epoch in the model."""
    import experiments
    import keras

    experiments.compile_classifier(
        model,
        len(train_data[0]),
        keras.optimizers.Adam(use_ema=True, ema_momentum=options.average),
        options.kl_downscale,
    )
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_accuracy",
        mode="max",
        patience=options.patience,
        restore_best_weights=True,
    )
    model.fit(
        *train_data,
        validation_data=validation_data,
        batch_size=options.batch_size,
        validation_batch_size=1000,
        epochs=options.epochs,
        callbacks=[
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            stopping,
            experiments.EpochLine(label),
        ],
        verbose=0,
    )
    return stopping.best_epoch + 1


def run(settings, label, data, options):
    import experiments
    import keras

    (x, y), test = data
    held = VALIDATION[options.data]
    keras.utils.set_random_seed(settings["seed"])
    start = time.time()
    model = build(settings["method"], settings["size"], x.shape[1:], options)
    validation = (x[-held:], y[-held:])
    best_epoch = train(
        model, (x[:-held], y[:-held]), validation, options, label
    )
    errors = {
        f"{name}_error": f"{experiments.error_percent(model, held_out):.2f}"
        for name, held_out in [("validation", validation), ("test", test)]
    }
    rates = experiments.mean_rates(model)
    kl = sum(layer.kl() for layer in experiments.adaptive_layers(model))
    return {
        **settings,
        "best_epoch": best_epoch,
        **errors,
        "rates": " ".join(f"{rate:.4f}" for rate in rates),
        "kl_nats": f"{kl:.1f}",
        "train_examples": len(x) - held,
        "seconds": f"{time.time() - start:.0f}",
        **experiments.versions(),
    }


def run_all(results, options):
    import experiments

    runs = [
        settings_of(method, size, seed, options)
        for seed, size, method in itertools.product(
            options.seeds, options.sizes, options.methods
        )
    ]
    todo = [settings for settings in runs if not results.select(**settings)]
    print(f"{len(runs)} runs, {len(runs) - len(todo)} of them done")
    if not todo:
        return
    data = experiments.load(options.data, options.data_dir)
    spent = done = 0.0
    for number, settings in enumerate(todo):
        if results.select(**settings):
            continue
        left = ""
        if done:
            ahead = sum(cost(other) for other in todo[number:])
            left = f", all in {experiments.duration(spent / done * ahead)}"
        label = (
            f"run {number + 1}/{len(todo)}{left}: {settings['method']}, "
            f"size {settings['size']}, seed {settings['seed']}"
        )
        row = run(settings, label, data, options)
        results.append(row)
        spent += float(row["seconds"])
        done += cost(settings)
        print(
            f"\r{label}: test error {row['test_error']}%, epoch "
            f"{row['best_epoch']}, rates {row['rates'] or 'fixed'}" + 30 * " ",
            flush=True,
        )


def cost(settings):
    """Of a run, in units of no account: for the time left."""
    size = settings["size"]
    if settings["data"] == "cifar10":
        return size**2
    return 784 * size + 2 * size**2 + 100_000


def report(results, options):
    """Prints the table, and draws it, of the runs with these settings."""
    import experiments

    rows = []
    for method, size in itertools.product(options.methods, options.sizes):
        wanted = settings_of(method, size, None, options)
        del wanted["seed"]
        rows += results.select(**wanted)
    if not rows:
        sys.exit(f"{results.path} has no run with these settings.")
    table = {
        (method, size): [
            row
            for row in rows
            if row["method"] == method and row["size"] == str(size)
        ]
        for method in options.methods
        for size in options.sizes
    }
    print("\ntest error in %, mean ± standard deviation (runs) [the paper's]")
    for (method, size), own in table.items():
        if own:
            errors = [float(row["test_error"]) for row in own]
            epochs = sum(int(row["best_epoch"]) for row in own) / len(own)
            print(
                f"{TITLES[method]:15s} {size:5d}  "
                f"{experiments.spread(errors):12s} ({len(own)})  "
                f"{paper_error(method, size, options.data):7s} "
                f"epoch {epochs:3.0f}  "
                + " ".join(f"{rate:.3f}" for rate in mean_rates(own))
            )
    draw(table, options)


def paper_error(method, size, data):
    if data != "mnist" or size not in PAPER_WIDTHS:
        return ""
    return f"[{PAPER_MNIST[method][PAPER_WIDTHS.index(size)]:.2f}]"


def mean_rates(rows):
    """Of each layer, over the runs; nothing for methods without."""
    runs = [[float(rate) for rate in row["rates"].split()] for row in rows]
    return [sum(layer) / len(runs) for layer in zip(*runs, strict=True)]


def draw(table, options):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No pictures without matplotlib: pip install matplotlib")
        return
    stem = os.path.splitext(options.out)[0]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    if options.data == "mnist":
        left, right = figure.subplots(1, 2, sharey=True)
        draw_paper(right, options)
    else:
        left = figure.subplots()
    draw_errors(left, table, options)
    figure.savefig(f"{stem}.png", dpi=150)

    learned = [m for m in options.methods if m.startswith("variational")]
    if not learned:
        return
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, len(learned), sharey=True, squeeze=False)
    for axes, method in zip(panels[0], learned, strict=True):
        draw_rates(axes, method, table, options)
    figure.axes[0].set_ylabel("learned dropout rate")
    figure.savefig(f"{stem}_rates.png", dpi=150)
    print(f"Drew {stem}.png and {stem}_rates.png")


def style_of(method, options):
    color = f"C{options.methods.index(method)}"
    return {"color": color, "marker": "o", "label": TITLES[method]}


def show_sizes(axes, options):
    convolutional = options.data == "cifar10"
    axes.set_xlabel("size k" if convolutional else "hidden units")
    axes.set_xticks(sorted(options.sizes))
    axes.grid(alpha=0.3)


def draw_errors(axes, table, options):
    """Over the size; of a single size, method by method."""
    import experiments
    import numpy as np

    sizes = sorted(options.sizes)
    for number, method in enumerate(options.methods):
        points = [
            (size, [float(row["test_error"]) for row in table[method, size]])
            for size in sizes
            if table[method, size]
        ]
        if points:
            axes.errorbar(
                [size for size, _ in points] if sizes[1:] else [number],
                [np.mean(errors) for _, errors in points],
                [experiments.deviation(errors) for _, errors in points],
                capsize=3,
                **style_of(method, options),
            )
    axes.set_title(f"{options.data}: mean and deviation of the runs")
    axes.set_ylabel("test error in %")
    if sizes[1:]:
        show_sizes(axes, options)
        axes.legend()
    else:
        titles = [TITLES[method] for method in options.methods]
        axes.set_xticks(range(len(titles)), titles)
        axes.grid(alpha=0.3)


def draw_paper(axes, options):
    sizes = [size for size in sorted(options.sizes) if size in PAPER_WIDTHS]
    for method in options.methods:
        errors = [
            PAPER_MNIST[method][PAPER_WIDTHS.index(size)] for size in sizes
        ]
        axes.plot(sizes, errors, **style_of(method, options))
    axes.set_title("The paper, Figure 1a")
    show_sizes(axes, options)


def draw_rates(axes, method, table, options):
    """Over the size; of a single size, layer by layer."""
    points = {
        size: mean_rates(table[method, size])
        for size in sorted(options.sizes)
        if table[method, size]
    }
    if options.sizes[1:]:
        for number, rates in enumerate(zip(*points.values(), strict=True)):
            axes.plot(list(points), rates, "o-", label=f"layer {number + 1}")
        show_sizes(axes, options)
        axes.legend()
    else:
        for rates in points.values():
            axes.plot(range(1, len(rates) + 1), rates, "o")
            axes.set_xticks(range(1, len(rates) + 1))
        axes.set_xlabel("layer")
        axes.grid(alpha=0.3)
    axes.set_title(TITLES[method])
    axes.set_ylim(0, 0.52)


def main():
    options = parse_arguments()
    # Keras reads it when it is imported, so that is only done further on.
    os.environ["KERAS_BACKEND"] = options.backend
    from experiments import Results

    results = Results(options.out)
    if not options.report:
        run_all(results, options)
    report(results, options)


if __name__ == "__main__":
    main()
