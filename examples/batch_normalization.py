"""Batch normalization behind noise: what do its moving averages cost?

    python examples/batch_normalization.py --data-dir FOLDER

This program trains a convolutional network with batch normalization on few
images of CIFAR-10: plain, with type A and with type B noise, whose rates are
learned. The moving averages of the training contain the noise, and `predict`
has none. So each network is measured three times: as `fit` leaves it, and after
`update_batch_normalization` with some and with all training images. Nothing is
chosen by the test set.

Each finished run is appended to a CSV file. A second start skips the runs in
that file.
"""

import time

import keras
import numpy as np

import keras_vdrop
from shared.data import load
from shared.networks import block
from shared.networks import mean_rates
from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.results import versions
from shared.training import EpochLine
from shared.training import compile_classifier
from shared.training import steps_of

METHODS = {
    "none": "plain",
    "variational_a": "type A",
    "variational_b": "type B",
}
STATES = {
    "trained": "as `fit` leaves it",
    "some": "estimated anew, {} images",
    "all": "estimated anew, all images",
}


def network(method, rate, width):
    layers = []
    for number in range(3):
        layers += block(
            method,
            "Conv2D",
            rate,
            filters=width * 2**number,
            kernel_size=3,
            strides=2,
            padding="same",
            use_bias=False,
        )
        layers.append(keras.layers.BatchNormalization(momentum=0.9))
        layers.append(keras.layers.ReLU())
    layers.append(keras.layers.Flatten())
    layers += block(method, "Dense", rate, units=8 * width, use_bias=False)
    layers.append(keras.layers.BatchNormalization(momentum=0.9))
    layers.append(keras.layers.ReLU())
    layers += block(method, "Dense", rate, units=10)
    return keras.Sequential([keras.Input((32, 32, 3)), *layers])


def measure(model, test):
    """Returns the accuracy in percent and the mean negative log-likelihood."""
    logits = model.predict(test[0], batch_size=500, verbose=0)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    accuracy = np.mean(log_p.argmax(axis=-1) == test[1])
    return 100 * accuracy, -np.mean(log_p[np.arange(len(log_p)), test[1]])


def run(method, rate, seed, train, test, options):
    label = f"{METHODS[method]}, rate {rate}, seed {seed}"
    settings = {
        "method": method,
        "rate": rate,
        "seed": seed,
        "epochs": options.epochs,
        "width": options.width,
        "images": len(train[0]),
    }
    results = Results(options.out)
    if results.select(**settings):
        return
    keras.utils.set_random_seed(seed)
    model = network(method, rate, options.width)
    steps = steps_of(options.epochs, len(train[0]), options.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(
        options.rate_of_adam, steps
    )
    optimizer = keras.optimizers.Adam(schedule)
    compile_classifier(model, len(train[0]), optimizer)
    start = time.time()
    history = model.fit(
        *train,
        epochs=options.epochs,
        batch_size=options.batch_size,
        callbacks=[EpochLine(label)],
        verbose=0,
    )
    epoch = (time.time() - start) / options.epochs
    found = {"trained": measure(model, test)}
    for name, number in (("some", options.some), ("all", len(train[0]))):
        start = time.time()
        keras_vdrop.update_batch_normalization(
            model, train[0][:number], options.batch_size
        )
        seconds = time.time() - start
        found[name] = measure(model, test)
    row = {
        **settings,
        "some": options.some,
        "train_accuracy": f"{100 * history.history['accuracy'][-1]:.2f}",
    }
    for name, (accuracy, likelihood) in found.items():
        row[f"{name}_accuracy"] = f"{accuracy:.2f}"
        row[f"{name}_nll"] = f"{likelihood:.3f}"
    row |= {
        "rates": joined(f"{x:.3f}" for x in mean_rates(model)),
        "epoch_seconds": f"{epoch:.2f}",
        "update_seconds": f"{seconds:.2f}",
        **versions(),
    }
    results.append(row)


def report(options):
    rows = Results(options.out).select(
        epochs=options.epochs, width=options.width, images=options.images
    )
    print("\n| noise | initial rate | seeds | moving averages ", end="")
    print("| accuracy, % | NLL |\n| --- | --- | --- | --- | --- | --- |")
    for method, rate in dict.fromkeys((r["method"], r["rate"]) for r in rows):
        own = [r for r in rows if (r["method"], r["rate"]) == (method, rate)]
        for name, title in STATES.items():
            accuracy, nll = (
                [float(row[f"{name}_{what}"]) for row in own]
                for what in ("accuracy", "nll")
            )
            shown = "-" if method == "none" else rate
            print(
                f"| {METHODS[method]} | {shown} | {len(own)} "
                f"| {title.format(own[0]['some'])} "
                f"| {spread(accuracy, 1)} | {spread(nll, 2)} |"
            )


def main():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--some", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.05, 0.5])
    parser.add_argument("--rate-of-adam", type=float, default=0.002)
    parser.add_argument("--out", default="batch_normalization.csv")
    options = parser.parse_args()
    train, test = load("cifar10", options.data_dir)
    train = tuple(part[: options.images] for part in train)
    for seed in range(options.seeds):
        for rate in options.rates:
            for method in METHODS:
                if method != "none" or rate == options.rates[0]:
                    run(method, rate, seed, train, test, options)
    report(options)


if __name__ == "__main__":
    main()
