"""What noise costs: training steps, inference and memory, as ratios.

    KERAS_BACKEND=jax python examples/benchmarks/benchmark.py --quick
    KERAS_BACKEND=jax python examples/benchmarks/benchmark.py --threads 1

This program times whole training steps, including Adam, of models that differ
in their layers only. The models take turns in one process, so that other work
on the machine slows them alike. The program reports the ratio of each to
`Dense` with `GaussianDropout`: the median over the rounds, and the quartiles.
The data is random: the time does not depend on it.

Results are appended to a CSV file, and those of this run are drawn. Run the
program once for each backend and each number of threads.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

from shared import timing
from shared.options import new_parser

BASE = "GaussianDropout"
# By name: the method of `shared.methods`, and arguments of the noise.
MODELS = {
    "Dense": ("none", None),
    "Dropout": ("binary", None),
    BASE: ("gaussian_a", None),
    "type A": ("variational_a", None),
    "type B, layer": ("variational_b", {"granularity": "layer"}),
    "type B, output": ("variational_b", {"granularity": "output"}),
    "type B, input": ("variational_b", {"granularity": "input"}),
    "type B, weight": ("variational_b", {"granularity": "weight"}),
    "type B, weight, exact KL": (
        "variational_b",
        {"granularity": "weight", "kl": "exact"},
    ),
    "type B, additive": (
        "variational_b",
        {"granularity": "weight", "parameterization": "additive"},
    ),
}
GROWING = ("Dense", BASE, "type A", "type B, layer", "type B, weight")
INFERENCE = ("Dense", "type A", "type B, layer", "type B, weight")
PARTS = ("mlp", "fit", "cifar", "inference", "memory", "growth")


def run(measurements, options):
    parts, quick = options.parts, options.quick
    widths = 3 * [options.width]
    if "mlp" in parts:
        for batch_size in [128] if quick else [128, 1000]:
            measurements.compare(
                "train_on_batch", "mlp", widths, batch_size, MODELS
            )
    if "fit" in parts and not quick:
        measurements.compare("fit of 10 batches", "mlp", widths, 128, MODELS)
    if "cifar" in parts:
        for size in [1] if quick else [1, 2]:
            names = GROWING if quick else MODELS
            measurements.compare("train_on_batch", "cifar", size, 128, names)
    if "inference" in parts:
        for network, size in [("mlp", widths), ("cifar", 1)]:
            measurements.time("inference", network, size, 128, INFERENCE)
    if "memory" in parts:
        measurements.memory(widths, 128)
    if "growth" in parts:
        most = 2 if quick else None
        for width in [256, 512, 1024, 2048, 4096][:most]:
            measurements.grow("width", width, 2 * [width], 128, GROWING)
        for batch_size in [32, 128, 512, 2048][:most]:
            measurements.grow(
                "batch size", batch_size, 2 * [512], batch_size, GROWING
            )
        for depth in [1, 2, 4, 8][:most]:
            measurements.grow(
                "hidden layers", depth, depth * [512], 128, GROWING
            )


def parse_arguments():
    parser = new_parser(__doc__)
    option = parser.add_argument
    option("--quick", action="store_true", help="in under two minutes")
    option("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    option("--width", type=int, default=1024, help="of the hidden layers")
    option("--rounds", type=int, help="30 if not given, or 5 if quick")
    option("--threads", type=int, help="all cores if not given")
    option("--out", default="benchmark.csv")
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 30)
    options.threads = options.threads or timing.cores()
    return options


def main():
    options = parse_arguments()
    timing.limit_threads(options.threads)
    # These import Keras, which reads the number of threads.
    from benchmark_plots import draw
    from measurements import Measurements

    measurements = Measurements(MODELS, BASE, options)
    run(measurements, options)
    draw(measurements, options)


if __name__ == "__main__":
    main()
