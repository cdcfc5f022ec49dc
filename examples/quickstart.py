"""Learned dropout rates on 8x8 digits, in less than a minute.

Trains the same small network as plain `Dense`, with binary `Dropout`, and with
`VariationalDense`, whose dropout rates are learned by `fit` along with the
weights. Few training examples are used, so that regularization matters. It
prints the test error of each, and the rates, and saves a picture of them: the
rate of each pixel tells how much the network relies on it.

    pip install "keras-vdrop[examples]"
    python examples/quickstart.py
    python examples/quickstart.py --width 256 --seeds 10

`KERAS_BACKEND=jax` (or `tensorflow`, `torch`) chooses the backend. The data
comes with scikit-learn; nothing is downloaded.
"""

import argparse
import functools
import math
import os
import sys
import time

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

BATCH_SIZE = 50


def plain(width):
    return [
        Dense(width, activation="relu"),
        Dense(width, activation="relu"),
        Dense(10),
    ]


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
    # Noise on each input, with a rate of its own (the paper's type A).
    "Variational A": functools.partial(
        variational, noise="correlated", granularity="input"
    ),
    # Noise on each weight, with one rate for the layer (type B).
    "Variational B": functools.partial(variational, noise="independent"),
}


def train(layers, x, y, epochs):
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    if any(isinstance(layer, VariationalDense) for layer in layers):
        keras_vdrop.set_num_examples(model, len(x))
    steps = epochs * math.ceil(len(x) / BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(0.01, steps)
    model.compile(
        keras.optimizers.Adam(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    return model


def test_error(model, x, y):
    logits = model.predict(x, batch_size=len(x), verbose=0)
    return 100 * np.mean(np.argmax(logits, axis=-1) != y)


def learned_rates(model):
    """The dropout rates of each variational layer, first layer first."""
    return [
        layer.dropout_rates()
        for layer in model.layers
        if isinstance(layer, VariationalDense)
    ]


def print_results(errors, rates):
    print(f"\n{'':<16}  test error, mean and deviation over the seeds")
    for method, values in errors.items():
        deviation = f" ± {np.std(values, ddof=1):.2f}" if values[1:] else ""
        print(f"{method:<16}  {np.mean(values):5.2f}{deviation} %")

    print(f"\n{'learned rates':<16}  layer   mean    min    max")
    for method, runs in rates.items():
        for number, layer in enumerate(zip(*runs, strict=True), start=1):
            layer = np.stack(layer)
            statistics = layer.mean(), layer.min(), layer.max()
            row = "".join(f"{value:7.2f}" for value in statistics)
            print(f"{method:<16}  {number:5}{row}")
    print("0.50 is the highest rate that the default max_alpha=1 allows.")


def save_figure(path, errors, images, pixel_rates):
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))

    for row, values in enumerate(errors.values()):
        left.plot(values, [row] * len(values), "o", color=f"C{row}", alpha=0.5)
        left.plot(np.mean(values), row, "|", color=f"C{row}", ms=24, mew=3)
    left.set_yticks(range(len(errors)), errors)
    left.set_ylim(len(errors) - 0.5, -0.5)
    left.grid(axis="x", alpha=0.3)
    left.set_xlabel("test error in %")
    left.set_title("Each seed (dot) and their mean (bar)")

    shown = middle.imshow(images.mean(axis=0).reshape(8, 8), cmap="gray")
    middle.set_title("Mean training image")
    figure.colorbar(shown, ax=middle, shrink=0.8, label="intensity")

    shown = right.imshow(pixel_rates.reshape(8, 8), cmap="viridis", vmin=0)
    right.set_title("Learned dropout rate")
    figure.colorbar(shown, ax=right, shrink=0.8, label="rate of the pixel")
    for axes in (middle, right):
        axes.set_axis_off()
    figure.savefig(path, dpi=150)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = functools.partial(parser.add_argument, metavar="N", type=int)
    option("--epochs", default=50, help="passes over the training set")
    option("--seeds", default=3, help="runs of each method")
    option("--width", default=100, help="units of each hidden layer")
    option("--train-size", default=500, help="training examples, of 1797")
    parser.add_argument("--out", default="quickstart.png", help="picture")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x.astype("float32") / 16,
        y,
        train_size=arguments.train_size,
        stratify=y,
        random_state=0,
    )
    print(f"{len(x_train)} training and {len(x_test)} test examples")

    errors = {method: [] for method in METHODS}
    rates = {method: [] for method in METHODS}
    runs = [(s, method) for s in range(arguments.seeds) for method in METHODS]
    for number, (seed, method) in enumerate(runs, start=1):
        start = time.perf_counter()
        print(f"run {number} of {len(runs)}: {method}", end="", flush=True)
        keras.utils.set_random_seed(seed)
        layers = METHODS[method](arguments.width)
        model = train(layers, x_train, y_train, arguments.epochs)
        errors[method].append(test_error(model, x_test, y_test))
        rates[method].append(learned_rates(model))
        seconds = time.perf_counter() - start
        print(f", test error {errors[method][-1]:.2f} %, {seconds:.1f} s")

    print_results(errors, rates)
    pixel_rates = np.mean([run[0] for run in rates["Variational A"]], axis=0)
    save_figure(arguments.out, errors, x_train, pixel_rates)
    print(f"The picture is in {arguments.out}")


if __name__ == "__main__":
    main()
