"""Which library's layers are best after the same time of training on MNIST?

    KERAS_BACKEND=torch python examples/benchmarks/equal_time.py \\
        --data-dir FOLDER
    KERAS_BACKEND=tensorflow python examples/benchmarks/equal_time.py \\
        --data-dir FOLDER

A cheaper step is the better bargain only if what it learns in the same time is
as good. Each model of `benchmark_peers.py`, and IVON on torch, is trained for
as many seconds as every other. The learning rate is that of Adam, for IVON its
own, and falls to zero with the time that is left. The seconds are those of the
processor on one thread, so that other work on the machine does not count.

Then the program reports the time of a step, test error, negative log-likelihood
and calibration error of the mean of 32 predictions, and the variance of the
gradient with respect to the weights of the first layer that comes from the
noise alone: of repeated gradients of the same minibatch. Nothing is chosen by
the test set, and nothing was tuned: each library has its own defaults, and its
own KL divided by the number of examples.

Results are appended to a CSV file. Those in the file are not measured again.
"""

import collections
import importlib
import logging
import os
import pathlib
import sys
import time
import warnings

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import numpy as np

import peers
from shared import timing
from shared.options import add_data_dir
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import versions

LEARNING_RATE = 1e-3
# The default of our layers.
RATE = 0.05
NORMAL = "normal prior"
# More of our models than a comparison of steps needs.
MORE = {
    "VariationalDense type A": (
        "variational_a",
        "noise on the inputs, the rate learned",
        {"granularity": "layer"},
    ),
    f"VariationalDense {NORMAL}": (
        "variational_b",
        f"{peers.LOCAL} of a mean and a variance; {peers.NORMAL_KL}",
        {
            "granularity": "weight",
            "parameterization": "additive",
            "kl": "normal",
            "max_alpha": None,
        },
    ),
}


def train(row, data, options, seed):
    """Trains for some seconds. Returns those of a step, and how many steps.

    The first step is not counted, because it compiles.
    """
    x, y = data
    generator = np.random.default_rng(seed)
    row.set_learning_rate(LEARNING_RATE)
    steps, spent, shown = 0, 0.0, 0.0
    while spent < options.seconds:
        order = generator.permutation(len(x))
        for start in range(0, len(x) - options.batch_size, options.batch_size):
            rows = order[start : start + options.batch_size]
            began = time.process_time()
            left = max(1 - spent / options.seconds, 0.0)
            row.set_learning_rate(LEARNING_RATE * left)
            row.step(x[rows], y[rows])
            if steps:
                spent += time.process_time() - began
            steps += 1
            if spent >= options.seconds:
                break
            if spent > shown + 1:
                shown = spent
                print(f"\r{spent:.0f} s, {steps} steps", end="", flush=True)
    print("\r", end="")
    return spent / max(steps - 1, 1), steps


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def predictions(row, x, samples):
    """Returns the mean of the probabilities of several samples."""
    return (
        sum(
            np.concatenate(
                [
                    softmax(row.logits(x[start : start + 1000]))
                    for start in range(0, len(x), 1000)
                ]
            )
            for _ in range(samples)
        )
        / samples
    )


def noise_variance(row, data, batch_size, draws, batches=5):
    """Returns the variance of the gradient that comes from the noise.

    The mean over weights and minibatches. The gradient is that of the mean
    loss of a minibatch.
    """
    x, y = data
    found = []
    for number in range(batches):
        part = slice(number * batch_size, (number + 1) * batch_size)
        gradients = [row.gradient(x[part], y[part]) for _ in range(draws)]
        found.append(np.var(gradients, axis=0, ddof=1).mean())
    return np.mean(found)


def rows_of(framework, sizes):
    """Returns a `peers.Row` by name. Each is a new model."""
    from our_models import OURS
    from our_models import our_rows

    libraries = *framework.LIBRARIES, *framework.OPTIMIZERS
    # With the defaults of the layers, where `OURS` has the paper's.
    ours = {
        name: (method, note, noise and {**noise, "rate_speed": None})
        for name, (method, note, noise) in {**OURS, **MORE}.items()
    }
    rows = {
        **our_rows(framework, sizes, ours, rate=RATE),
        **peers.peer_rows(framework, sizes, libraries),
    }
    # XLA for a CPU is not what users of tensorflow have by default.
    return {n: row for n, row in rows.items() if not n.endswith(peers.XLA)}


def measure(row, data, test, options, seed):
    from shared.uncertainty_scores import as_text
    from shared.uncertainty_scores import scores

    seconds, steps = train(row, data, options, seed)
    judged = scores(test[1], predictions(row, test[0], options.samples))
    variance = noise_variance(row, data, options.batch_size, options.draws)
    return {
        "milliseconds": f"{1000 * seconds:.3f}",
        "steps": steps,
        **as_text(judged),
        "gradient_variance": f"{variance:.4g}",
    }


def report(results):
    names = ("milliseconds", "steps", "error", "nll", "ece")
    heads = ["framework", "model", "seeds", *names, "gradient_variance"]
    print(f"\n| {' | '.join(heads)} |")
    print(f"| {' | '.join(['---'] * len(heads))} |")
    groups = collections.defaultdict(list)
    for row in results.select():
        groups[row["framework"], row["model"]].append(row)
    for group, rows in groups.items():
        means = {
            name: np.mean([float(row[name]) for row in rows])
            for name in (*names, "gradient_variance")
        }
        cells = [*group, str(len(rows))]
        cells += [f"{means[name]:.4g}" for name in means]
        print(f"| {' | '.join(cells)} |")


def main():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    add_widths(parser, default=[400, 400])
    option = parser.add_argument
    option("--data", choices=("mnist", "digits"), default="mnist")
    option("--seconds", type=float, default=60.0, help="of training, for each")
    option("--seeds", type=int, nargs="+", default=[0, 1, 2])
    option("--batch-size", type=int, default=128)
    option("--samples", type=int, default=32)
    option("--draws", type=int, default=20, help="gradients of a minibatch")
    option("--models", nargs="+", help="those of the CSV's first column")
    option("--out", default="equal_time.csv")
    options = parser.parse_args()
    timing.limit_threads(1)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Edward2 needs the Keras of tf_keras, and takes it from tensorflow.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import keras

    from shared.data import load

    backend = keras.backend.backend()
    if backend not in peers.INSTALL_LINES:
        known = " and ".join(peers.INSTALL_LINES)
        print(f"There is no peer on {backend}, only on {known}.")
        return
    framework = importlib.import_module(f"peers_{backend}")
    data, test = load(options.data, options.data_dir)
    sizes = data[0].shape[1], *options.widths
    results = Results(options.out)
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            for name, row in rows_of(framework, sizes).items():
                settings = {
                    "framework": backend,
                    "model": name,
                    "seed": seed,
                    "data": options.data,
                    "seconds": options.seconds,
                    "widths": joined(options.widths),
                    "batch_size": options.batch_size,
                }
                is_asked = not options.models or name in options.models
                if not is_asked or results.select(**settings):
                    continue
                columns = measure(row, data, test, options, seed)
                results.append({**settings, **columns, **versions()})
                print(f"{name}, seed {seed}: {columns}", flush=True)
    report(results)


if __name__ == "__main__":
    main()
