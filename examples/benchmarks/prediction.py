"""What predictions with samples cost: `keras_vdrop.predict`.

    KERAS_BACKEND=jax python examples/benchmarks/prediction.py

This program times 32 samples of the weights, and 32 samples with local noise,
beside 32 calls of `model.predict` of the network of plain Keras layers. They
take turns in one process, so that other work on the machine slows them alike.
The ratio to the plain network is the median over the rounds, with quartiles.
The data and the networks are random: the time does not depend on them.

Results are appended to a CSV file.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

from shared import timing
from shared.options import new_parser

BASE = "predict, plain"


def dense(dense_class, convolution_class):
    import keras

    del convolution_class
    hidden = [dense_class(400, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *hidden, dense_class(10)])


def convolutional(dense_class, convolution_class):
    import keras

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            convolution_class(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            convolution_class(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            dense_class(64, activation="relu"),
            dense_class(10),
        ]
    )


NETWORKS = {"mlp": dense, "cnn": convolutional}


def steps(build, batch_size, samples):
    """Returns what takes turns, by name."""
    import keras

    import keras_vdrop
    from shared.data import random_images

    plain = build(keras.layers.Dense, keras.layers.Conv2D)
    ours = build(keras_vdrop.VariationalDense, keras_vdrop.VariationalConv2D)
    x, _ = random_images(batch_size, plain.input_shape[1:])

    def sampled(sampling):
        return keras_vdrop.predict(
            ours,
            x,
            num_samples=samples,
            batch_size=batch_size,
            from_logits=True,
            sampling=sampling,
            verbose=0,
        )

    return {
        BASE: lambda: [
            plain.predict(x, batch_size=batch_size, verbose=0)
            for _ in range(samples)
        ],
        "samples of the weights": lambda: sampled("weights"),
        "local noise": lambda: sampled("local"),
    }


def main():
    parser = new_parser(__doc__)
    option = parser.add_argument
    option("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    option("--batch-sizes", nargs="+", type=int, default=[32, 1024])
    option("--samples", type=int, default=32)
    option("--rounds", type=int, default=7)
    option("--threads", type=int, help="all cores if not given")
    option("--out", default="prediction.csv")
    options = parser.parse_args()
    options.threads = options.threads or timing.cores()
    timing.limit_threads(options.threads)
    # This imports Keras, which reads the number of threads.
    from shared.results import Results
    from shared.results import versions

    results = Results(options.out)
    for network in options.networks:
        for batch_size in options.batch_sizes:
            print(f"\n{network}, batch {batch_size}, {versions()['backend']}")
            turns = steps(NETWORKS[network], batch_size, options.samples)
            seconds = timing.alternate(turns, options.rounds, warmup=1)
            table = timing.compare(seconds, BASE)
            timing.show(table, BASE)
            for name, columns in table.items():
                settings = {
                    "network": network,
                    "batch_size": batch_size,
                    "samples": options.samples,
                    "what": name,
                    "threads": options.threads,
                }
                results.append({**settings, **columns, **versions()})


if __name__ == "__main__":
    main()
