"""The small file: LeNet-300-100 in less than 3 kB.

    python examples/compress.py --data-dir FOLDER
    python examples/compress.py --network lenet5 --data-dir FOLDER
    python examples/compress.py --network cifar --data-dir FOLDER
    python examples/compress.py --network digits

This program trains a network with noise on each weight, removes the weights
that are noise, trains what is left, and looks for the smallest file within an
allowed loss on training examples that are held out, 5,000 of MNIST. Other ways
to make the file of the network small are measured beside it, gradual magnitude
pruning with the same rounding and the same coder among them: with as many
weights as the posterior has left, in each layer or in all layers together,
whichever has the lower validation error, and with several times as many.
Errors are those of the models that were loaded from the files. Nothing is
chosen by the test set.

Each trained stage is a file in the folder `--state`, and each finished row is
appended to a CSV file. A second start goes on where the first stopped.
"""

import functools
import os
import tempfile
import time

import keras
import numpy as np

import keras_vdrop
from shared.magnitude import gradual
from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.results import spread
from shared.results import versions
from shared.rounds import Rounds
from shared.rounds import last_threshold
from shared.rounds import without_batch_normalization
from shared.sparse import build
from shared.sparse import kernels
from shared.sparse import load_split
from shared.training import error_percent

NETWORKS = ("lenet300", "lenet5", "digits", "cifar", "mobilenet")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def float16(model, network):
    """The network in half precision."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float16")
    try:
        half = build(network)
    finally:
        keras.config.set_dtype_policy(before)
    half.set_weights(model.get_weights())
    return half


def int8(model, network):
    same = build(network)
    same.set_weights(model.get_weights())
    same.quantize("int8")
    return same


def pruned(model, threshold):
    return keras_vdrop.to_deterministic(model, prune=threshold, verbose=0)


def smallest(model, held_out, allowed):
    return keras_vdrop.compress(
        model, *held_out, LOSS, allowed, batch_size=1000
    )


def kept_by_layer(model):
    """The number of weights left in each kernel."""
    values = map(keras.ops.convert_to_numpy, kernels(model))
    return [int(np.count_nonzero(value)) for value in values]


def methods(stages, options):
    """Yields the name of each method, its file format, and its model."""
    network, held_out = stages.network, stages.held_out
    plain = stages.model("plain")
    yield "float32", "Keras", lambda: plain
    yield "float32, LZMA", ".keras", lambda: plain
    yield "float16", "Keras", lambda: float16(plain, network)
    yield "quantize('int8')", "Keras", lambda: int8(plain, network)
    threshold = last_threshold(network)
    model = without_batch_normalization(stages.last(), stages.train[0])
    yield "pruned, LZMA", ".keras", lambda: pruned(model, threshold)
    found = {}

    def posterior(allowed):
        if allowed not in found:
            found[allowed] = smallest(model, held_out, allowed)
        return found[allowed]

    for allowed in options.allowed:
        # Not evaluated before it is needed: `allowed` is bound here.
        make = lambda allowed=allowed: posterior(allowed)  # noqa: E731
        yield f"posterior, {allowed:g}", ".kvz", make
        yield f"posterior, {allowed:g}", ".keras", make
    first = options.allowed[0]
    counts = functools.cache(lambda: kept_by_layer(posterior(first)))
    for times in options.rival:

        def rival(times=times):
            trained = best_of(stages, counts(), times, options.rival_epochs)
            return smallest(trained, held_out, first)

        yield f"gradual magnitude, {times:g} times as many", ".kvz", rival


def best_of(stages, counts, times, epochs):
    """Returns the rival with the lower error on what was held out."""
    counts = [round(times * count) for count in counts]
    found = [
        gradual(stages, kept, epochs, f"gradual_{name}_{times:g}")
        for name, kept in (("each", counts), ("all", sum(counts)))
    ]
    found = [
        without_batch_normalization(model, stages.train[0]) for model in found
    ]
    return min(found, key=lambda x: error_percent(x, stages.held_out))


def save(model, kind, path):
    if kind == "Keras":
        model.save(path)
    else:
        keras_vdrop.save_compressed(model, path)


def measure(model, kind, stages, test):
    """Saves and loads a model, and returns what there is to tell."""
    with tempfile.TemporaryDirectory() as folder:
        ending = ".kvz" if kind == ".kvz" else ".keras"
        path = os.path.join(folder, f"model{ending}")
        save(model, kind, path)
        size = os.path.getsize(path)
        loaded = keras_vdrop.load_compressed(path)
    kept = sum(int(np.count_nonzero(w)) for w in loaded.get_weights())
    return {
        "bytes": size,
        "validation_error": f"{error_percent(loaded, stages.held_out):.2f}",
        "test_error": f"{error_percent(loaded, test):.2f}",
        "kept": kept,
        "total": loaded.count_params(),
    }


def run(network, seed, data, options):
    train, held_out, test = data
    results = Results(options.out)
    stages = Rounds(
        network, seed, (train, held_out), options.state, options.epochs
    )
    layers = keras_vdrop.variational_layers(stages.last())
    kl_bytes = sum(layer.kl() for layer in layers) / np.log(2) / 8
    for method, kind, make in methods(stages, options):
        settings = {
            "network": network,
            "method": method,
            "format": kind,
            "seed": seed,
            "epochs": options.epochs or "all",
        }
        if results.select(**settings):
            continue
        start = time.time()
        measured = measure(make(), kind, stages, test)
        row = {**settings, **measured, "kl_bytes": f"{kl_bytes:.0f}"}
        row["seconds"] = f"{time.time() - start:.0f}"
        results.append({**row, **versions()})
        print(
            f"{network}, seed {seed}, {method} ({kind}): "
            f"{row['bytes']:,} bytes, test error {row['test_error']}%"
        )


def report(options):
    print("\n| | file | bytes | times smaller | test error % | not zero |")
    print("| --- | --- | --- | --- | --- | --- |")
    results = Results(options.out).select(
        network=options.network, epochs=options.epochs or "all"
    )
    first = [int(row["bytes"]) for row in results if row["format"] == "Keras"]
    for method, kind in dict.fromkeys(
        (row["method"], row["format"]) for row in results
    ):
        rows = [
            row
            for row in results
            if (row["method"], row["format"]) == (method, kind)
        ]
        sizes, errors, kept = (
            np.array([float(row[name]) for row in rows])
            for name in ("bytes", "test_error", "kept")
        )
        print(
            f"| {method} | {kind} | {np.mean(sizes):,.0f} | "
            f"{max(first) / np.mean(sizes):.1f} | {spread(errors)} | "
            f"{np.mean(kept):,.0f} |"
        )
    kl = [float(row["kl_bytes"]) for row in results]
    print(f"\nKL / ln 2: {np.mean(kl):,.0f} bytes")


def main():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    parser.add_argument("--network", choices=NETWORKS, default="lenet300")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--allowed",
        type=float,
        nargs="+",
        default=[0.003, 0.01],
        help="by how much the loss may rise, in nats",
    )
    parser.add_argument(
        "--rival",
        type=float,
        nargs="*",
        default=[1, 2, 3],
        help="weights of the rival, relative to those of the posterior",
    )
    parser.add_argument("--rival-epochs", type=int, default=60)
    parser.add_argument(
        "--epochs", type=int, help="of each stage, for a quick try"
    )
    parser.add_argument("--state", default="compress_state")
    parser.add_argument("--out", default="compress.csv")
    options = parser.parse_args()
    data = load_split(options.network, options.data_dir)
    for seed in options.seeds:
        run(options.network, seed, data, options)
    report(options)


if __name__ == "__main__":
    main()
