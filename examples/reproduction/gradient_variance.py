"""Tables 1 and 2 of the paper: the variance of each gradient estimator.

    python examples/reproduction/gradient_variance.py --data-dir FOLDER

This program trains 3 hidden layers of 1024 ReLU units on MNIST with variational
dropout, for independent (Table 1) and correlated (Table 2) noise. It measures
the variance of the minibatch gradient with respect to the first and the last
kernel after 10 and after 100 epochs, with each estimator and without noise.

Interrupted training is resumed. The trained weights are kept in the folder of
checkpoints, and each measured variance is appended to a CSV file.
"""

import itertools
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import keras

import gradient_variance_report
import keras_vdrop
from gradient_variance_report import ESTIMATORS
from shared.data import load
from shared.networks import dense_network
from shared.networks import mean_rates
from shared.options import add_data
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import versions
from shared.training import EpochLine
from shared.training import compile_classifier
from shared.training import error_percent
from shared.training import steps_of

METHODS = {"independent": "variational_b", "correlated": "variational_a"}


def parse_arguments():
    parser = new_parser(__doc__)
    add_data(parser)
    add_widths(parser, default=[1024, 1024, 1024])
    option = parser.add_argument
    option("--noise", nargs="+", choices=METHODS, default=list(METHODS))
    option(
        "--estimators",
        nargs="+",
        choices=ESTIMATORS,
        default=list(gradient_variance_report.PAPER_ESTIMATORS),
    )
    option("--epochs", nargs="+", type=int, default=[10, 100])
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
        help="of the learning rate: constant, or decaying to 0 at the last "
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


def settings_of(noise, weights, options):
    """Returns the columns of the CSV that are equal for all epochs."""
    return {
        "data": options.data,
        "widths": joined(options.widths),
        "noise": noise,
        "schedule": options.schedule,
        "learning_rate": options.learning_rate,
        "train_batch": options.train_batch,
        "seed": options.seed,
        "weights": weights,
        "batch_size": options.batch_size,
    }


def network(noise, data, options):
    number, *shape = data[0].shape
    model = dense_network(METHODS[noise], shape, options.widths)
    rate = options.learning_rate
    if options.schedule == "decay":
        steps = steps_of(options.epochs[-1], number, options.train_batch)
        rate = keras.optimizers.schedules.PolynomialDecay(rate, steps, 0.0)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.999)
    compile_classifier(model, number, optimizer)
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
    """Returns a path by epoch. `weights` is `"last"` or `"averaged"`."""
    widths = "-".join(map(str, options.widths))
    training = (
        f"{options.schedule}_{options.learning_rate}"
        f"_batch{options.train_batch}_seed{options.seed}"
    )
    stem = f"{options.data}_{widths}_{noise}_{training}_{weights}"
    return {
        epoch: os.path.join(options.checkpoints, f"{stem}_{epoch}.weights.h5")
        for epoch in options.epochs
    }


def train(noise, data, options):
    """Saves the last and the averaged weights after each chosen epoch."""
    last, averaged = (
        checkpoints(noise, weights, options) for weights in ("last", "averaged")
    )
    if all(map(os.path.exists, [*last.values(), *averaged.values()])):
        return
    os.makedirs(options.checkpoints, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    model = network(noise, data, options)
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
            # From here on the model has the averaged weights, until the next
            # epoch begins.
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            SaveAt(averaged),
            EpochLine(f"training, {noise} noise"),
        ],
        verbose=0,
    )


def measure(noise, weights, epoch, train_data, test_data, options):
    """Appends a row to the CSV for each estimator and layer."""
    results = Results(options.out)
    settings = {**settings_of(noise, weights, options), "epochs": epoch}
    missing = [
        estimator
        for estimator in options.estimators
        if not results.select(estimator=estimator, **settings)
    ]
    if not missing:
        return
    model = network(noise, train_data, options)
    model.load_weights(checkpoints(noise, weights, options)[epoch])
    test_error = error_percent(model, test_data)
    layers = {"bottom": model.layers[0].name, "top": model.layers[-1].name}
    for estimator in missing:
        print(f"{noise} noise, epoch {epoch}, {weights} weights: {estimator}")
        start = time.time()
        number = len(train_data[0]) // options.batch_size
        if estimator == "example":
            number = options.example_batches
        found = keras_vdrop.gradient_variance(
            model,
            *train_data,
            batch_size=options.batch_size,
            num_batches=number,
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
                    "num_batches": number,
                    "test_error": f"{test_error:.2f}",
                    "rates": joined(f"{x:.4f}" for x in mean_rates(model)),
                    "seconds": f"{seconds:.1f}",
                    **versions(),
                }
            )


def main():
    options = parse_arguments()
    train_data, test_data = load(options.data, options.data_dir)
    for noise in options.noise:
        train(noise, train_data, options)
    for epoch, noise, weights in itertools.product(
        options.epochs, options.noise, options.weights
    ):
        measure(noise, weights, epoch, train_data, test_data, options)
    for noise, weights in itertools.product(options.noise, options.weights):
        settings = settings_of(noise, weights, options)
        rows = Results(options.out).select(**settings)
        gradient_variance_report.report(rows, noise, weights, options)


if __name__ == "__main__":
    main()
