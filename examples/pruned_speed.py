"""Pruned networks, run: how small and how fast are they?

    python examples/pruned_speed.py lenet5 --data-dir FOLDER
    python examples/pruned_speed.py mobilenet --data-dir FOLDER

This program trains a network with sparse variational dropout (Molchanov,
Ashukha, Vetrov 2017): LeNet-5-Caffe on MNIST, or a small MobileNetV2 on
CIFAR-10. Weights that are noise are removed, and what is left is trained on,
with new noise. Then the program measures three plain models: the network
before it had noise (`plain`), the sparse one with zeros in it (`zeros`), and
the same without the units that are of no use (`pruned`): error, parameters,
size of the file, time of a prediction. Errors are those of the last epoch.
Nothing is chosen by the test set.

Each trained stage is a file in the folder `--state`, and the finished rows are
appended to a CSV file. A second start goes on where the first stopped. On
another backend it measures the same networks.
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

NETWORKS = ("lenet5", "mobilenet")


def file_size(model):
    """Returns the bytes of a `.keras` file of a model that is not compiled."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return os.path.getsize(path)


def packed_size(model):
    """Returns the bytes of a compressed file, without loss."""
    import keras_vdrop as kv

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.kvz")
        kv.save_compressed(model, path)
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
    from shared.sparse import Stages
    from shared.sparse import load_split
    from shared.training import error_percent

    settings = {
        "network": network,
        "seed": seed,
        "epochs": options.epochs or "all",
        "last_epochs": options.last_epochs or "all",
        "backend": versions()["backend"],
    }
    results = Results(options.out)
    if results.select(**settings):
        return
    train, held_out, test = load_split(network, options.data_dir)
    stages = Stages(
        network, seed, (train, held_out), options.state, options.epochs
    )
    if options.last_epochs:
        stages.settings.pruned_epochs = options.last_epochs
    trained = stages.model("pruned")
    threshold = stages.settings.threshold
    kv.prune(trained, threshold)
    if network == "mobilenet":
        kv.update_batch_normalization(trained, train[0][:1000])
    zeros = kv.to_deterministic(trained)
    pruned = kv.to_deterministic(trained, prune=threshold)
    models = {"plain": stages.model("plain"), "zeros": zeros, "pruned": pruned}
    single = times(models, test, 1, options.rounds)
    batch = times(models, test, 256, options.rounds)
    for name, model in models.items():
        weights = model.get_weights()
        results.append(
            {
                **settings,
                "model": name,
                "images": len(train[0]),
                "validation_error": f"{error_percent(model, held_out):.2f}",
                "error": f"{error_percent(model, test):.2f}",
                "parameters": model.count_params(),
                "other_than_zero": sum(np.count_nonzero(w) for w in weights),
                "file_bytes": file_size(model),
                "packed_bytes": packed_size(model),
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
        "backend": "backend",
        "model": "model",
        "error": "test error, %",
        "parameters": "parameters",
        "other_than_zero": "not zero",
        "file_bytes": "file, bytes",
        "packed_bytes": "packed, bytes",
        "single_ms": "1 image, ms",
        "batch_ms": "256 images, ms",
    }
    print("\n| " + " | ".join(columns.values()) + " |")
    print("| --- " * len(columns) + "|")
    for row in Results(options.out).rows():
        print("| " + " | ".join(row[name] for name in columns) + " |")


def main():
    parser = new_parser(__doc__)
    parser.add_argument("network", choices=NETWORKS)
    add_data_dir(parser)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--epochs", type=int, help="of each stage, for a quick try"
    )
    parser.add_argument(
        "--last-epochs", type=int, help="of the stage after the first cut"
    )
    parser.add_argument("--state", default="pruned_speed_state")
    parser.add_argument("--out", default="pruned_speed.csv")
    options = parser.parse_args()
    limit_threads(options.threads)
    for seed in range(options.seeds):
        run(options.network, seed, options)
    report(options)


if __name__ == "__main__":
    main()
