"""Learned dropout rates on 8x8 digits, in less than a minute.

This program trains the same small network as plain `Dense`, with binary
`Dropout`, and with `VariationalDense`, which learns its dropout rates in `fit`
along with its weights. The training set is small, so that regularization
matters. Each seed draws another training set, the same for every method. The
program prints the test errors and the learned rates, and saves a picture: the
rate of a pixel shows how little the network relies on it.

    pip install "keras-vdrop[examples]"
    KERAS_BACKEND=jax python examples/quickstart.py
    KERAS_BACKEND=jax python examples/quickstart.py --width 256 --seeds 10

The data comes with scikit-learn; nothing is downloaded.
"""

import argparse
import functools
import itertools
import math
import os
import sys

# Matrices this small are multiplied fastest on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import numpy as np
from keras.layers import Dense
from keras.layers import Dropout

import keras_vdrop
from keras_vdrop import VariationalDense

try:
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(
        f'{error}. Try: pip install "keras-vdrop[examples]", or in a checkout '
        'pip install -e ".[examples]"'
    )

BATCH_SIZE = 100


def plain(width):
    relu = functools.partial(Dense, activation="relu")
    return [relu(width), relu(width), Dense(10)]


def binary_dropout(width):
    first, second, last = plain(width)
    return [Dropout(0.2), first, Dropout(0.5), second, Dropout(0.5), last]


def variational(width, **noise):
    return [
        VariationalDense(width, activation="relu", rate=0.2, **noise),
        VariationalDense(width, activation="relu", rate=0.5, **noise),
        VariationalDense(10, rate=0.5, **noise),
    ]


METHODS = {
    "Dense": plain,
    "Dense + Dropout": binary_dropout,
    # Noise on each input, with a rate of its own: the paper's type A.
    "Variational A": functools.partial(
        variational, noise="correlated", granularity="input", rate_speed=1
    ),
    # Noise on each weight, with one rate for the layer: type B.
    "Variational B": functools.partial(variational, noise="independent"),
}


def train(layers, x, y, epochs):
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    if keras_vdrop.variational_layers(model):
        keras_vdrop.set_num_examples(model, len(x))
    steps = epochs * math.ceil(len(x) / BATCH_SIZE)
    learning_rate = keras.optimizers.schedules.CosineDecay(0.01, steps)
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    return model


def error_percent(model, x, y):
    logits = keras.ops.convert_to_numpy(model(x))
    return 100 * np.mean(np.argmax(logits, axis=-1) != y)


def spread(values):
    """Returns mean ± standard deviation as text."""
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation}"


def print_tables(errors, rates):
    print(f"\n{'mean ± deviation':<16}  test error in %  minus Dense's")
    for method, values in errors.items():
        difference = np.subtract(values, errors["Dense"])
        print(f"{method:<16}  {spread(values):>15}  {spread(difference):>13}")

    print(f"\n{'learned rates':<16}  layer  mean   min   max")
    for method, runs in rates.items():
        for number, layer in enumerate(zip(*runs, strict=True), start=1):
            row = [f"{f(layer):.2f}" for f in (np.mean, np.min, np.max)]
            print(f"{method:<16}  {number:5}  {'  '.join(row)}")
    print("0.50 is the highest rate that the default max_alpha=1 allows.")


def show_pixels(axes, pixels, colors, title, label):
    image = axes.imshow(pixels.reshape(8, 8), cmap=colors, vmin=0)
    axes.figure.colorbar(image, ax=axes, label=label)
    axes.set_title(title)
    axes.set_axis_off()


def save_figure(path, errors, images, pixel_rates):
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))

    rows = range(len(errors))
    left.plot(list(errors.values()), rows, "o-", color="0.75", mec="0.4", lw=1)
    means = [np.mean(values) for values in errors.values()]
    left.plot(means, rows, "|", color="C0", markersize=26, markeredgewidth=4)
    left.set_yticks(rows, errors)
    left.set_ylim(len(errors) - 0.5, -0.5)
    left.grid(axis="x", alpha=0.3)
    left.set_xlabel("test error in %")
    left.set_title("Each seed (dots) and the mean (bar)")

    show_pixels(middle, images.mean(axis=0), "gray", "Mean digit", "intensity")
    title = "Learned by Variational A"
    show_pixels(right, pixel_rates, "viridis", title, "dropout rate")
    figure.savefig(path, dpi=150)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = functools.partial(parser.add_argument, metavar="N", type=int)
    option("--epochs", default=60, help="passes over the training set")
    option("--seeds", default=3, help="runs of a method, each on a new split")
    option("--width", default=100, help="units of each hidden layer")
    option("--train-size", default=500, help="training examples, of 1797")
    parser.add_argument("--out", default="quickstart.png", help="picture file")
    arguments = parser.parse_args()
    if min(arguments.epochs, arguments.seeds, arguments.width) < 1:
        parser.error("--epochs, --seeds and --width must be at least 1")
    return arguments


def main():
    arguments = parse_arguments()
    images, digits = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    errors = {method: [] for method in METHODS}
    rates = {method: [] for method in METHODS}
    runs = list(itertools.product(range(arguments.seeds), METHODS))
    for number, (seed, method) in enumerate(runs, start=1):
        x_train, x_test, y_train, y_test = train_test_split(
            images,
            digits,
            train_size=arguments.train_size,
            stratify=digits,
            random_state=seed,
        )
        keras.utils.set_random_seed(seed)
        layers = METHODS[method](arguments.width)
        model = train(layers, x_train, y_train, arguments.epochs)
        error = error_percent(model, x_test, y_test)
        run = f"run {number} of {len(runs)}: {method}"
        print(f"{run}, test error {error:.2f} %", flush=True)
        errors[method].append(error)
        layers = keras_vdrop.variational_layers(model)
        rates[method].append([layer.dropout_rates() for layer in layers])

    print_tables(errors, rates)
    pixel_rates = np.mean([run[0] for run in rates["Variational A"]], axis=0)
    save_figure(arguments.out, errors, images, pixel_rates)
    print(f"Saved {arguments.out}")


if __name__ == "__main__":
    main()
