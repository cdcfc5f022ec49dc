"""Pruned networks, run: how small and how fast are they?

    python examples/pruned_speed.py lenet --data-dir FOLDER
    python examples/pruned_speed.py mobilenet --data-dir FOLDER

This program trains a network with sparse variational dropout (Molchanov,
Ashukha, Vetrov 2017): LeNet-5-Caffe on MNIST, or a small MobileNetV2 on
CIFAR-10. Then it makes the plain model and the pruned one, in which whole units
are removed, and measures both: error, parameters, size of the file, time of a
prediction. Errors are those of the last epoch. Nothing is chosen by the test
set.

Each finished run is appended to a CSV file. A second start skips the runs in
that file.
"""

import os
import tempfile

from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.results import versions
from shared.timing import alternate
from shared.timing import compare
from shared.timing import limit_threads

DATA = {"lenet": "mnist", "mobilenet": "cifar10"}
SPARSE = {
    "noise": "independent",
    "rate": 0.05,
    "granularity": "weight",
    "parameterization": "additive",
    "kl": "exact",
    "max_alpha": None,
}


def lenet():
    """LeNet-5-Caffe: 20 and 50 channels, 500 units, 431,080 parameters."""
    import keras

    import keras_vdrop as kv

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            kv.VariationalConv2D(20, 5, activation="relu", **SPARSE),
            keras.layers.MaxPooling2D(),
            kv.VariationalConv2D(50, 5, activation="relu", **SPARSE),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            kv.VariationalDense(500, activation="relu", **SPARSE),
            kv.VariationalDense(10, **SPARSE),
        ]
    )


def mobilenet():
    """Inverted residual blocks, as in MobileNetV2, for small images."""
    import keras

    import keras_vdrop as kv

    def normalized(y, activation=True):
        y = keras.layers.BatchNormalization(momentum=0.9)(y)
        return keras.layers.ReLU(6.0)(y) if activation else y

    def pointwise(y, filters):
        return kv.VariationalConv2D(filters, 1, use_bias=False, **SPARSE)(y)

    x = keras.Input((32, 32, 3))
    y = keras.layers.Conv2D(16, 3, 2, "same", use_bias=False)(x)
    y = normalized(y)
    for filters, stride in ((24, 2), (24, 1), (48, 2), (48, 1), (48, 1)):
        before = y
        y = normalized(pointwise(y, 6 * y.shape[-1]))
        y = keras.layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(y)
        y = pointwise(normalized(y), filters)
        y = normalized(y, activation=False)
        if stride == 1:
            y = keras.layers.Add()([before, y])
    y = normalized(pointwise(y, 256))
    y = keras.layers.GlobalAveragePooling2D()(y)
    return keras.Model(x, kv.VariationalDense(10, **SPARSE)(y))


def load(network, options):
    from shared.data import load

    train, test = load(DATA[network], options.data_dir)
    if network == "lenet":
        train, test = ((x.reshape(-1, 28, 28, 1), y) for x, y in (train, test))
    return tuple(x[: options.images] for x in train), test


def trained(network, train, seed, options):
    import keras

    import keras_vdrop as kv
    from shared.training import EpochLine
    from shared.training import steps_of

    keras.utils.set_random_seed(seed)
    model = {"lenet": lenet, "mobilenet": mobilenet}[network]()
    kv.set_num_examples(model, len(train[0]))
    steps = steps_of(options.epochs, len(train[0]), options.batch_size)
    rate = keras.optimizers.schedules.PolynomialDecay(0.002, steps, 0.0)
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    callbacks = [
        kv.callbacks.KLWarmup(max(1, options.epochs // 3)),
        EpochLine(f"{network}, seed {seed}"),
    ]
    model.fit(
        *train,
        epochs=options.epochs,
        batch_size=options.batch_size,
        callbacks=callbacks,
        verbose=0,
    )
    return model


def file_size(model):
    """Returns the bytes of a `.keras` file of a model that is not compiled."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return os.path.getsize(path)


def times(models, test, batch_size, rounds):
    """Returns milliseconds and ratios of predictions that take turns."""
    x = test[0][:batch_size]
    steps = {
        name: lambda model=model: model.predict_on_batch(x)
        for name, model in models.items()
    }
    return compare(alternate(steps, rounds), "plain")


def run(network, seed, options):
    import numpy as np

    import keras_vdrop as kv
    from shared.training import error_percent

    settings = {
        "network": network,
        "seed": seed,
        "epochs": options.epochs,
        "images": options.images,
    }
    results = Results(options.out)
    if results.select(**settings):
        return
    train, test = load(network, options)
    model = trained(network, train, seed, options)
    some = train[0][:1000] if network == "mobilenet" else None
    models = {
        "plain": kv.to_deterministic(model, batch_normalization_data=some),
        "pruned": kv.to_deterministic(
            model, prune=3.0, batch_normalization_data=some
        ),
    }
    single = times(models, test, 1, options.rounds)
    batch = times(models, test, 256, options.rounds)
    for name, small in models.items():
        weights = small.get_weights()
        results.append(
            {
                **settings,
                "model": name,
                "error": f"{error_percent(small, test):.2f}",
                "parameters": small.count_params(),
                "other_than_zero": sum(np.count_nonzero(w) for w in weights),
                "file_bytes": file_size(small),
                "single_ms": single[name]["milliseconds"],
                "single_ratio": single[name]["ratio"],
                "batch_ms": batch[name]["milliseconds"],
                "batch_ratio": batch[name]["ratio"],
                "threads": options.threads,
                **versions(),
            }
        )


def report(options):
    columns = {
        "network": "network",
        "seed": "seed",
        "model": "model",
        "error": "test error, %",
        "parameters": "parameters",
        "other_than_zero": "not zero",
        "file_bytes": "file, bytes",
        "single_ms": "1 image, ms",
        "batch_ms": "256 images, ms",
    }
    print("\n| " + " | ".join(columns.values()) + " |")
    print("| --- " * len(columns) + "|")
    for row in Results(options.out).rows():
        print("| " + " | ".join(row[name] for name in columns) + " |")


def main():
    parser = new_parser(__doc__)
    parser.add_argument("network", choices=tuple(DATA))
    add_data_dir(parser)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="pruned_speed.csv")
    options = parser.parse_args()
    limit_threads(options.threads)
    for seed in range(options.seeds):
        run(options.network, seed, options)
    report(options)


if __name__ == "__main__":
    main()
