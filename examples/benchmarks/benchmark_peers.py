"""Time of a training step with other libraries of Bayesian layers, and ours.

    KERAS_BACKEND=tensorflow python examples/benchmarks/benchmark_peers.py
    KERAS_BACKEND=torch python examples/benchmarks/benchmark_peers.py

All libraries get the same work: 3 hidden layers of 1024 ReLU units on inputs of
MNIST's size, Adam, cross-entropy, and the library's own KL divided by 60000. On
tensorflow the peers are TensorFlow Probability and Edward2, on torch they are
bayesian-torch, torchbnn and BLiTZ. A peer that is not installed is left out,
and --install-lines prints how to install it.

The steps take turns in one run, so that other work on the machine slows them
alike. The ratio is to `VariationalDense` with one alpha for each weight, which
like the peers has a mean and a variance for each weight: a peer with a ratio
above 1 is slower. The libraries do not all compute the same, and a note on each
says what differs. The data is random: the time does not depend on it.

The same loop trains all models, that of their framework: a `tf.function` with a
`GradientTape`, or `zero_grad`, `backward` and the update. Our layers use the
Adam of Keras, the peers that of tf_keras or of torch. The plain layer of the
framework has a row as well: its distance from `keras.layers.Dense` is that of
the optimizers. On tensorflow all models are timed without and with compilation
by XLA, and each is compared to ours of the same kind.
"""

import functools
import importlib
import importlib.metadata
import itertools
import logging
import math
import os
import pathlib
import sys
import textwrap
import warnings

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import peers
from shared import timing
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import versions


def tables(seconds):
    """Returns comparisons by their base: plain steps, and those with XLA."""
    found = {}
    for suffix in ("", peers.XLA):
        part = {
            name: own
            for name, own in seconds.items()
            if name.endswith(peers.XLA) == bool(suffix)
        }
        base = peers.BASE + suffix
        if part:
            found[base] = timing.compare(part, base)
    return found


def store(compared, rows, options):
    results, software = Results(options.out), versions()
    for base, table in compared.items():
        for name, columns in table.items():
            package = rows[name].package
            version = software.get(package)
            version = version or importlib.metadata.version(package)
            results.append(
                {
                    "model": name,
                    "library": f"{package} {version}",
                    "loop": rows[name].loop,
                    **columns,
                    "ratio_to": base,
                    "note": rows[name].note,
                    "batch_size": options.batch_size,
                    "widths": joined(options.widths),
                    "threads": options.threads,
                    **software,
                }
            )


def show_notes(rows):
    print()
    for note, names in itertools.groupby(rows, lambda name: rows[name].note):
        text = f"{', '.join(names)}: {note}."
        print(textwrap.fill(text, 80, subsequent_indent="  "))


def check(rows, x, y):
    """Ends the program if a loss is not finite: its time would say nothing."""
    for name, row in rows.items():
        loss = float(row.step(x, y))
        if not math.isfinite(loss):
            sys.exit(f"The loss of {name} is {loss}.")


def parse_arguments():
    parser = new_parser(__doc__)
    add_widths(parser, default=[1024, 1024, 1024])
    option = parser.add_argument
    option("--rounds", type=int, default=30)
    option("--batch-size", type=int, default=128)
    option("--threads", type=int, default=timing.cores())
    option("--out", default="benchmark_peers.csv")
    option(
        "--install-lines",
        action="store_true",
        help="print how to install the peers, and do nothing else",
    )
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds needs 2 at least, for quartiles")
    return options


def rows_of(backend, options):
    """Returns rows of our models and of the peers, and their steps, by name."""
    from our_models import our_rows
    from shared.data import random_images

    framework = importlib.import_module(f"peers_{backend}")
    x, y = random_images(options.batch_size, (peers.PIXELS,))
    sizes = peers.PIXELS, *options.widths
    rows = our_rows(framework, sizes)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        rows.update(peers.peer_rows(framework, sizes))
        check(rows, x, y)
    steps = {
        name: functools.partial(row.step, x, y) for name, row in rows.items()
    }
    return rows, steps


def main():
    options = parse_arguments()
    if options.install_lines:
        for backend in peers.INSTALL_LINES:
            peers.show_install_lines(backend)
        return
    timing.limit_threads(options.threads)
    # Each model compiles its own step, of which tensorflow would warn.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Edward2 needs the Keras of tf_keras, and takes it from tensorflow.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import keras

    backend = keras.backend.backend()
    if backend not in peers.INSTALL_LINES:
        known = " and ".join(peers.INSTALL_LINES)
        print(f"There is no peer on {backend}, only on {known}.")
        return
    rows, steps = rows_of(backend, options)
    compared = tables(timing.alternate(steps, options.rounds))
    store(compared, rows, options)
    for base, table in compared.items():
        timing.show(table, base)
    show_notes(rows)


if __name__ == "__main__":
    main()
