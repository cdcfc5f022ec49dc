"""Sparse variational dropout: how many weights does LeNet-300-100 need?

    python examples/sparsify.py --data-dir FOLDER

This program trains LeNet-300-100 on MNIST with the additive posterior and a KL
that holds for every alpha (Molchanov, Ashukha, Vetrov 2017). Then it removes
the weights with log alpha above 3. Each run is compared with magnitude pruning
to the same number of weights in each layer: a plain network is trained for half
of the epochs, its smallest weights are removed, and it is trained for the other
half without them. Errors are those of the last epoch. Nothing is chosen by the
test set.

Each finished run is appended to a CSV file. A second start skips the runs in
that file.
"""

import time

import keras
import numpy as np

import keras_vdrop
from shared.data import load
from shared.options import add_data
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.training import EpochLine
from shared.training import error_percent
from shared.training import steps_of

WIDTHS = (300, 100, 10)
THRESHOLD = 3.0


class Masked(keras.constraints.Constraint):
    """Keeps removed weights at zero."""

    def __init__(self, mask):
        self.mask = mask

    def __call__(self, kernel):
        return kernel * keras.ops.cast(self.mask, kernel.dtype)


def variational_network(shape, kl):
    layers = [
        keras_vdrop.VariationalDense(
            width,
            activation="relu" if width != WIDTHS[-1] else None,
            rate=0.05,
            granularity="weight",
            parameterization="additive",
            kl=kl,
            max_alpha=None,
        )
        for width in WIDTHS
    ]
    return keras.Sequential([keras.Input(shape), *layers])


def plain_network(shape, masks=(None, None, None)):
    layers = [
        keras.layers.Dense(
            width,
            activation="relu" if width != WIDTHS[-1] else None,
            kernel_constraint=None if mask is None else Masked(mask),
        )
        for width, mask in zip(WIDTHS, masks, strict=True)
    ]
    return keras.Sequential([keras.Input(shape), *layers])


def fit(model, train, epochs, batch_size, label, callbacks=()):
    steps = steps_of(epochs, len(train[0]), batch_size)
    rate = keras.optimizers.schedules.PolynomialDecay(1e-3, steps, 0.0)
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        *train,
        epochs=epochs,
        batch_size=batch_size,
        callbacks=[*callbacks, EpochLine(label)],
        verbose=0,
    )


def remove(model, masks):
    for layer, mask in zip(model.layers, masks, strict=True):
        layer.kernel.assign(keras.ops.convert_to_numpy(layer.kernel) * mask)


def run_variational(kl, train, test, options, label):
    model = variational_network(train[0].shape[1:], kl)
    keras_vdrop.set_num_examples(model, len(train[0]))
    warmup = keras_vdrop.callbacks.KLWarmup(max(1, options.epochs // 5))
    fit(model, train, options.epochs, options.batch_size, label, [warmup])
    masks = [
        keras.ops.convert_to_numpy(layer.log_alpha) <= THRESHOLD
        for layer in model.layers
    ]
    before = error_percent(model, test)
    remove(model, masks)
    return before, error_percent(model, test), masks


def run_magnitude(kept_by_layer, train, test, options, label):
    shape = train[0].shape[1:]
    first = max(1, options.epochs // 2)
    model = plain_network(shape)
    fit(model, train, first, options.batch_size, label)
    before = error_percent(model, test)
    masks = []
    for layer, kept in zip(model.layers, kept_by_layer, strict=True):
        size = np.abs(keras.ops.convert_to_numpy(layer.kernel))
        smallest = np.sort(size, axis=None)[size.size - kept] if kept else 9e9
        masks.append(size >= smallest)
    pruned = plain_network(shape, masks)
    pruned.set_weights(model.get_weights())
    remove(pruned, masks)
    second = max(1, options.epochs - first)
    fit(pruned, train, second, options.batch_size, label)
    return before, error_percent(pruned, test), masks


def run(method, seed, train, test, options):
    label = f"{method}, seed {seed}"
    settings = {"data": options.data, "seed": seed, "epochs": options.epochs}
    results = Results(options.out)
    if results.select(method=method, **settings):
        return
    keras.utils.set_random_seed(seed)
    start = time.time()
    if method.startswith("magnitude"):
        twin = results.select(method=method.split("-")[1], **settings)[0]
        kept = [int(count) for count in twin["kept_by_layer"].split()]
        result = run_magnitude(kept, train, test, options, label)
    else:
        result = run_variational(method, train, test, options, label)
    before, after, masks = result
    kept = [int(mask.sum()) for mask in masks]
    results.append(
        {
            "data": options.data,
            "method": method,
            "seed": seed,
            "epochs": options.epochs,
            "error": f"{before:.2f}",
            "pruned_error": f"{after:.2f}",
            "kept": sum(kept),
            "total": sum(mask.size for mask in masks),
            "kept_by_layer": joined(kept),
            "seconds": f"{time.time() - start:.0f}",
            "backend": keras.backend.backend(),
            "keras": keras.__version__,
        },
    )
    print(f"\r{label}: {after:.2f}% with {sum(kept)} weights" + 20 * " ")


def report(options):
    rows = Results(options.out).select(data=options.data, epochs=options.epochs)
    print(f"\n{options.data}, {options.epochs} epochs, mean ± deviation")
    print("seeds  method              error %        after removal  ", end="")
    print("fewer weights  removed in each layer, %")
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        columns = [
            np.array([float(row[name]) for row in own])
            for name in ("error", "pruned_error", "kept", "total")
        ]
        factor = columns[3] / np.maximum(columns[2], 1)
        layers = np.array([r["kept_by_layer"].split() for r in own], float)
        inputs = (total_inputs(own[0]), *WIDTHS)
        sizes = [a * b for a, b in zip(inputs, WIDTHS, strict=False)]
        removed = 100 * (1 - layers.mean(0) / sizes)
        share = " ".join(f"{layer:.1f}" for layer in removed)
        print(
            f"{len(own):5d}  {method:18s}  {spread(columns[0])}    "
            f"{spread(columns[1])}    {spread(factor, 1)}     {share}"
        )


def total_inputs(row):
    hidden = sum(a * b for a, b in zip(WIDTHS, WIDTHS[1:], strict=False))
    return (int(row["total"]) - hidden) // WIDTHS[0]


def main():
    parser = new_parser(__doc__)
    add_data(parser)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--kl", nargs="+", default=["exact", "sigmoid"])
    parser.add_argument("--out", default="sparsify.csv")
    options = parser.parse_args()
    train, test = load(options.data, options.data_dir)
    for seed in range(options.seeds):
        for kl in options.kl:
            run(kl, seed, train, test, options)
            run(f"magnitude-{kl}", seed, train, test, options)
    report(options)


if __name__ == "__main__":
    main()
