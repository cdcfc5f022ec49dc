"""Seconds for a training step with each estimator (the paper: 1635 and 7.4).

    KERAS_BACKEND=torch python examples/estimator_speed.py

A whole `train_on_batch` of 3 hidden layers of 1024 ReLU units on inputs the
size of MNIST's, with independent noise, Adam included. The estimators take
turns in one run, so that other work on the machine burdens them alike; the
median over the rounds is told, and the ratio to local reparameterization. The
data is random: the time does not depend on it.

The paper, on a GPU: 1635 s for an epoch with a sample of the weights for each
data point, and 7.4 s with local reparameterization, 221 times less.
"""

import argparse
import os
import statistics
import time

import experiments
import keras
import numpy as np

MODELS = ("plain", "local", "batch", "example")
TITLES = {
    "plain": "plain Dense, no noise",
    "local": "local reparameterization",
    "batch": "weight sample per minibatch",
    "example": "weight sample per data point",
}
EPOCH = 60_000


def network(name, widths):
    if name == "plain":
        model = experiments.dense_network("none", (784,), widths)
    else:
        model = experiments.dense_network(
            "variational_b", (784,), widths, {"estimator": name}
        )
    experiments.compile_classifier(model, EPOCH, "adam")
    return model


def measure(batch_size, options):
    """Seconds of each step, by estimator."""
    generator = np.random.default_rng(0)
    x = generator.random((batch_size, 784), dtype="float32")
    y = generator.integers(10, size=batch_size)
    models = {name: network(name, options.widths) for name in options.models}
    seconds = {name: [] for name in models}
    progress = keras.utils.Progbar(options.rounds + 1, unit_name="round")
    for number in range(options.rounds + 1):
        for name, model in models.items():
            if name == "example" and number > options.example_rounds:
                continue
            start = time.perf_counter()
            # The loss is a number: the step has ended when it is there.
            model.train_on_batch(x, y)
            seconds[name].append(time.perf_counter() - start)
        progress.add(1)
    # The first step compiles.
    return {name: steps[1:] for name, steps in seconds.items()}


def row_of(name, steps, local, batch_size, options):
    step = statistics.median(steps)
    return {
        "model": name,
        "batch_size": batch_size,
        "widths": " ".join(map(str, options.widths)),
        "steps": len(steps),
        "seconds_a_step": f"{step:.4f}",
        "fastest": f"{min(steps):.4f}",
        "slowest": f"{max(steps):.4f}",
        "ratio_to_local": f"{step / local:.2f}",
        "seconds_an_epoch": f"{step * EPOCH / batch_size:.1f}",
        "cores": os.cpu_count(),
        **experiments.versions(),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--batch-sizes", nargs="+", type=int, default=[100, 1000])
    option("--models", nargs="+", choices=MODELS, default=list(MODELS))
    option("--widths", nargs="+", type=int, default=[1024, 1024, 1024])
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
    results = experiments.Results(options.out)
    for batch_size in options.batch_sizes:
        print(f"batch size {batch_size}, {keras.backend.backend()}")
        seconds = measure(batch_size, options)
        local = statistics.median(seconds["local"])
        print(f"{'':30s}seconds a step   ratio   seconds an epoch")
        for name, steps in seconds.items():
            row = row_of(name, steps, local, batch_size, options)
            results.append(row)
            print(
                f"{TITLES[name]:30s}{row['seconds_a_step']:>14s}"
                f"{row['ratio_to_local']:>8s}{row['seconds_an_epoch']:>19s}"
            )


if __name__ == "__main__":
    main()
