"""Tables 1 and 2 of the paper: the variance of each gradient estimator.

    python examples/gradient_variance.py --data-dir FOLDER

Trains 3 hidden layers of 1024 ReLU units on MNIST with variational dropout, for
independent (Table 1) and correlated (Table 2) noise, and measures the variance
of the minibatch gradient of the first and the last kernel after 10 and after
100 epochs, with each estimator and without noise.

Training goes on where it was stopped; the trained weights are kept in the
folder of checkpoints, and each measured figure is appended to a CSV file.
"""

import argparse
import itertools
import os
import time

import experiments
import keras

import keras_vdrop

METHODS = {"independent": "variational_b", "correlated": "variational_a"}
TITLES = {
    "local": "local reparameterization",
    "example": "weight sample per data point",
    "batch": "weight sample per minibatch",
    "none": "no dropout noise",
}
# Tables 1 and 2: by noise, estimator, and (layer, epochs).
COLUMNS = (("top", 10), ("top", 100), ("bottom", 10), ("bottom", 100))
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


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    experiments.add_data_arguments(parser)
    option("--noise", nargs="+", choices=METHODS, default=list(METHODS))
    option("--estimators", nargs="+", choices=TITLES, default=list(TITLES))
    option("--epochs", nargs="+", type=int, default=[10, 100])
    option("--widths", nargs="+", type=int, default=[1024, 1024, 1024])
    option("--train-batch", type=int, default=1000, help="of training")
    option("--batch-size", type=int, default=1000, help="M of the variance")
    option(
        "--example-batches",
        type=int,
        default=6,
        help="minibatches for the estimator 'example', which is slow; the "
        "others get all of the data once",
    )
    option(
        "--schedule",
        choices=("constant", "decay"),
        default="constant",
        help="of the learning rate: as it is, or falling to 0 at the last "
        "epoch",
    )
    option("--learning-rate", type=float, default=1e-3)
    option(
        "--weights",
        nargs="+",
        choices=("last", "averaged"),
        default=["last", "averaged"],
        help="those of the last step, or their moving average",
    )
    option("--seed", type=int, default=0)
    option("--checkpoints", default="gradient_variance_checkpoints")
    option("--out", default="gradient_variance.csv", help="picture beside it")
    options = parser.parse_args()
    options.epochs = sorted(options.epochs)
    return options


def network(noise, shape, num_examples, options):
    model = experiments.dense_network(METHODS[noise], shape, options.widths)
    steps = options.epochs[-1] * -(-num_examples // options.train_batch)
    rate = options.learning_rate
    if options.schedule == "decay":
        rate = keras.optimizers.schedules.PolynomialDecay(rate, steps, 0.0)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.999)
    experiments.compile_classifier(model, num_examples, optimizer)
    return model


class SaveAt(keras.callbacks.Callback):
    """Saves the weights after some epochs."""

    def __init__(self, paths):
        super().__init__()
        self.paths = paths

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in self.paths:
            self.model.save_weights(self.paths[epoch + 1])


def checkpoints(noise, weights, options):
    """Path by epoch; `weights` are "last" or "averaged"."""
    widths = "-".join(map(str, options.widths))
    stem = (
        f"{options.data}_{widths}_{noise}"
        f"_{options.schedule}_{options.learning_rate}_batch{options.train_batch}_seed{options.seed}_{weights}"
    )
    return {
        epoch: os.path.join(options.checkpoints, f"{stem}_{epoch}.weights.h5")
        for epoch in options.epochs
    }


def train(noise, data, options):
    """Keeps the last and the averaged weights of the epochs asked for."""
    last, averaged = (
        checkpoints(noise, weights, options) for weights in ("last", "averaged")
    )
    if all(map(os.path.exists, [*last.values(), *averaged.values()])):
        return
    os.makedirs(options.checkpoints, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    model = network(noise, data[0].shape[1:], len(data[0]), options)
    unfinished = last[options.epochs[-1]].removesuffix(".weights.h5")
    model.fit(
        *data,
        batch_size=options.train_batch,
        epochs=options.epochs[-1],
        callbacks=[
            keras.callbacks.BackupAndRestore(
                f"{unfinished}_unfinished", double_checkpoint=True
            ),
            SaveAt(last),
            # From here on the averaged weights are in the model, until the
            # next epoch begins.
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            SaveAt(averaged),
            experiments.EpochLine(f"training, {noise} noise"),
        ],
        verbose=0,
    )


def measure(noise, weights, epoch, train_data, test_data, options):
    """One row of the CSV for each estimator and layer."""
    results = experiments.Results(options.out)
    settings = {
        "data": options.data,
        "widths": " ".join(map(str, options.widths)),
        "noise": noise,
        "schedule": options.schedule,
        "learning_rate": options.learning_rate,
        "train_batch": options.train_batch,
        "seed": options.seed,
        "weights": weights,
        "epochs": epoch,
        "batch_size": options.batch_size,
    }
    missing = [
        estimator
        for estimator in options.estimators
        if not results.select(estimator=estimator, **settings)
    ]
    if not missing:
        return
    model = network(noise, train_data[0].shape[1:], len(train_data[0]), options)
    model.load_weights(checkpoints(noise, weights, options)[epoch])
    test_error = experiments.error_percent(model, test_data)
    rates = " ".join(f"{rate:.4f}" for rate in experiments.mean_rates(model))
    layers = {"bottom": model.layers[0].name, "top": model.layers[-1].name}
    for estimator in missing:
        print(f"{noise} noise, epoch {epoch}, {weights} weights: {estimator}")
        start = time.time()
        batches = options.example_batches if estimator == "example" else None
        found = keras_vdrop.gradient_variance(
            model,
            *train_data,
            batch_size=options.batch_size,
            num_batches=batches,
            estimators=[estimator],
            layers=list(layers.values()),
        )[estimator]
        seconds = time.time() - start
        for layer, name in layers.items():
            results.append(
                {
                    **settings,
                    "estimator": estimator,
                    "layer": layer,
                    "variance": f"{found[name].variance:.6g}",
                    "standard_error": f"{found[name].standard_error:.3g}",
                    "num_batches": batches
                    or len(train_data[0]) // options.batch_size,
                    "test_error": f"{test_error:.2f}",
                    "rates": rates,
                    "seconds": f"{seconds:.1f}",
                    **experiments.versions(),
                }
            )


def report(options):
    """Prints our figures beside the paper's, and draws them."""
    results = experiments.Results(options.out)
    columns = list(itertools.product(("top", "bottom"), options.epochs))
    for noise, weights in itertools.product(options.noise, options.weights):
        rows = results.select(
            data=options.data,
            widths=" ".join(map(str, options.widths)),
            noise=noise,
            weights=weights,
            schedule=options.schedule,
            learning_rate=options.learning_rate,
            train_batch=options.train_batch,
            seed=options.seed,
            batch_size=options.batch_size,
        )
        found = {
            (row["estimator"], row["layer"], int(row["epochs"])): row
            for row in rows
        }
        print(
            f"\n{noise} noise, {weights} weights, {options.schedule} learning "
            f"rate {options.learning_rate}: variance ± standard error "
            "[the paper's]"
        )
        for epoch in options.epochs:
            errors = {
                r["test_error"] for r in rows if r["epochs"] == str(epoch)
            }
            print(f"epoch {epoch}: test error {', '.join(errors)}%")
        heads = [f"{layer}, {epoch} epochs" for layer, epoch in columns]
        print(f"{'':30s}" + "".join(f"{head:28s}" for head in heads))
        for estimator in options.estimators:
            line = f"{TITLES[estimator]:30s}"
            for layer, epoch in columns:
                row = found.get((estimator, layer, epoch))
                line += f"{cell(row, noise, estimator, layer, epoch):28s}"
            print(line)
        draw(found, noise, weights, options)


def cell(row, noise, estimator, layer, epoch):
    if row is None:
        return "-"
    paper = paper_figure(noise, estimator, layer, epoch)
    return (
        f"{float(row['variance']):.2g} ± {float(row['standard_error']):.1g}"
        + (f" [{paper:.2g}]" if paper else "")
    )


def paper_figure(noise, estimator, layer, epoch):
    if (layer, epoch) not in COLUMNS:
        return None
    return PAPER[noise, estimator][COLUMNS.index((layer, epoch))]


def draw(found, noise, weights, options):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture without matplotlib: pip install matplotlib")
        return
    if not found:
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, layer in zip(
        figure.subplots(1, 2, sharey=True), ("bottom", "top"), strict=True
    ):
        for index, estimator in enumerate(options.estimators):
            epochs = [
                e for e in options.epochs if (estimator, layer, e) in found
            ]
            rows = [found[estimator, layer, epoch] for epoch in epochs]
            axes.errorbar(
                epochs,
                [float(row["variance"]) for row in rows],
                [float(row["standard_error"]) for row in rows],
                fmt="o-",
                capsize=3,
                color=f"C{index}",
                label=TITLES[estimator],
            )
            papers = [
                (epoch, paper_figure(noise, estimator, layer, epoch))
                for epoch in epochs
                if paper_figure(noise, estimator, layer, epoch)
            ]
            axes.plot(
                [epoch for epoch, _ in papers],
                [figure for _, figure in papers],
                "x:",
                color=f"C{index}",
                alpha=0.6,
                label="the paper" if index == 0 else None,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(options.epochs, options.epochs)
        axes.minorticks_off()
        axes.set_xlabel("epochs of training")
        axes.set_title(f"{layer} layer, {noise} noise")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("variance of the gradient")
    figure.axes[0].legend(fontsize="small")
    stem = os.path.splitext(options.out)[0]
    settings = f"{options.schedule}_{options.learning_rate}_{weights}"
    path = f"{stem}_{noise}_{settings}.png"
    figure.savefig(path, dpi=150)
    print(f"Drew {path}")


def main():
    options = parse_arguments()
    train_data, test_data = experiments.load(options.data, options.data_dir)
    for noise in options.noise:
        train(noise, train_data, options)
    for epoch, noise, weights in itertools.product(
        options.epochs, options.noise, options.weights
    ):
        measure(noise, weights, epoch, train_data, test_data, options)
    report(options)


if __name__ == "__main__":
    main()
