"""Seconds for a training step with each estimator (the paper: 1635 and 7.4).

    KERAS_BACKEND=torch python examples/reproduction/estimator_speed.py

This program times a whole `train_on_batch` of 3 hidden layers of 1024 ReLU
units on inputs of MNIST's size, with independent noise, including Adam. The
estimators take turns in one run, so that other work on the machine slows them
alike. The program reports the median over the rounds and the ratio to local
reparameterization. The data is random: the time does not depend on it.

The paper, on a GPU: an epoch took 1635 s with a weight sample for each data
point, and 7.4 s with local reparameterization, 221 times less.
"""

import functools
import os
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import keras

from shared import timing
from shared.data import random_images
from shared.networks import dense_network
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import versions
from shared.training import compile_classifier

MODELS = {
    "plain": "plain Dense, no noise",
    "local": "local reparameterization",
    "batch": "weight sample per minibatch",
    "example": "weight sample per data point",
}
PIXELS, EXAMPLES = 784, 60_000


def network(name, widths):
    method, noise = "variational_b", {"estimator": name}
    if name == "plain":
        method, noise = "none", None
    model = dense_network(method, (PIXELS,), widths, noise)
    compile_classifier(model, EXAMPLES, "adam")
    return model


def measure(batch_size, options):
    """Returns the seconds of each step, by model."""
    x, y = random_images(batch_size, (PIXELS,))
    # The loss is a number, so the step has ended when it returns.
    steps = {
        name: functools.partial(
            network(name, options.widths).train_on_batch, x, y
        )
        for name in options.models
    }
    limits = {"example": options.example_rounds}
    return timing.alternate(steps, options.rounds, warmup=1, limits=limits)


def row_of(name, steps, local, batch_size, options):
    step = statistics.median(steps)
    return {
        "model": name,
        "batch_size": batch_size,
        "widths": joined(options.widths),
        "steps": len(steps),
        "seconds_a_step": f"{step:.4f}",
        "fastest": f"{min(steps):.4f}",
        "slowest": f"{max(steps):.4f}",
        "ratio_to_local": f"{step / local:.2f}",
        "seconds_an_epoch": f"{step * EXAMPLES / batch_size:.1f}",
        "cores": os.cpu_count(),
        **versions(),
    }


def parse_arguments():
    parser = new_parser(__doc__)
    add_widths(parser, default=[1024, 1024, 1024])
    option = parser.add_argument
    option("--batch-sizes", nargs="+", type=int, default=[100, 1000])
    option("--models", nargs="+", choices=MODELS, default=list(MODELS))
    option("--rounds", type=int, default=20)
    option(
        "--example-rounds",
        type=int,
        default=3,
        help="of the slow estimator 'example'",
    )
    option("--out", default="estimator_speed.csv")
    options = parser.parse_args()
    if "local" not in options.models:
        parser.error("--models needs local, to which the others are compared")
    return options


def main():
    options = parse_arguments()
    results = Results(options.out)
    for batch_size in options.batch_sizes:
        print(f"batch size {batch_size}, {keras.backend.backend()}")
        seconds = measure(batch_size, options)
        local = statistics.median(seconds["local"])
        print(f"{'':30s}seconds a step   ratio   seconds an epoch")
        for name, steps in seconds.items():
            row = row_of(name, steps, local, batch_size, options)
            results.append(row)
            print(
                f"{MODELS[name]:30s}{row['seconds_a_step']:>14s}"
                f"{row['ratio_to_local']:>8s}{row['seconds_an_epoch']:>19s}"
            )


if __name__ == "__main__":
    main()
