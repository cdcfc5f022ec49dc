"""Fine-tuning with few examples: what do variational layers give?

    python examples/fine_tuning.py --data-dir FOLDER

This program trains LeNet-300-100 on the digits 0 to 4 of MNIST. Then it gives
the network a new last layer and tunes it on few images of the digits 5 to 9:
without dropout, with dropout before each layer, and converted by
`to_variational`, all of it or the last layer only. All weights are tuned in
each case.

The rate of dropout and the number of epochs are chosen by the likelihood of 500
validation images. The program reports error, negative log-likelihood (NLL) and
expected calibration error (ECE) on the test images of the digits 5 to 9, of the
mean weights and of sampled predictions.

The networks for 0 to 4 are files in the folder `--state`, and each finished run
is appended to a CSV file. A second start skips the runs in that file.
"""

import functools
import os

import keras
import numpy as np

import keras_vdrop
from shared.candidates import candidates
from shared.candidates import report
from shared.candidates import try_candidate
from shared.data import load
from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.training import EpochLine
from shared.training import compile_classifier

METHODS = ("plain", "dropout", "variational", "last")
CLASSES = 5
VALIDATION = 500


def build(rate=0.0):
    """Returns the network, with dropout before each layer."""
    layers = [
        keras.layers.Dense(300, activation="relu", name="hidden_1"),
        keras.layers.Dense(100, activation="relu", name="hidden_2"),
        keras.layers.Dense(CLASSES, name="scores"),
    ]
    if rate:
        layers = [
            part
            for layer in layers
            for part in (keras.layers.Dropout(rate), layer)
        ]
    return keras.Sequential([keras.Input((784,)), *layers])


def of_classes(data, first):
    """Returns the images of five digits, which become the classes 0 to 4."""
    x, y = data
    wanted = (y >= first) & (y < first + CLASSES)
    return x[wanted], y[wanted] - first


def few(train, shots, seed):
    """Returns so many images of each class, and others for validation."""
    x, y = train
    order = np.random.default_rng(seed).permutation(len(x))
    validation, rest = np.split(order, [min(VALIDATION, len(x) // 2)])
    chosen = np.concatenate(
        [rest[y[rest] == label][:shots] for label in range(CLASSES)]
    )
    return (x[chosen], y[chosen]), (x[validation], y[validation])


def base(train, seed, options):
    """Returns the path of a network that is trained on the digits 0 to 4."""
    path = os.path.join(options.state, f"base_{seed}_{options.base_epochs}")
    path += ".keras"
    if os.path.exists(path):
        return path
    keras.utils.set_random_seed(seed)
    model = build()
    compile_classifier(model, len(train[0]), "adam")
    model.fit(
        *train,
        epochs=options.base_epochs,
        batch_size=100,
        callbacks=[EpochLine(f"0 to 4, seed {seed}")],
        verbose=0,
    )
    os.makedirs(options.state, exist_ok=True)
    model.save(path)
    return path


def network(method, rate, path):
    """Returns the trained network with a new last layer and its noise."""
    trained = keras.saving.load_model(path, compile=False)
    model = build(rate if method == "dropout" else 0.0)
    for layer in trained.layers[:-1]:
        model.get_layer(layer.name).set_weights(layer.get_weights())
    if method in ("plain", "dropout"):
        return model
    return keras_vdrop.to_variational(
        model,
        lambda layer: method == "variational" or layer.name == "scores",
        rate=rate,
        verbose=0,
    )


def main():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--shots", type=int, nargs="+", default=[10, 100], help="of each class"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS)
    )
    parser.add_argument("--base-epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=150, help="at most")
    parser.add_argument("--patience", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--state", default="fine_tuning_state")
    parser.add_argument("--out", default="fine_tuning.csv")
    options = parser.parse_args()
    train, test = load("mnist", options.data_dir)
    results = Results(options.out)
    for seed in options.seeds:
        path = base(of_classes(train, 0), seed, options)
        for shots in options.shots:
            data = few(of_classes(train, CLASSES), shots, seed)
            for method, rate in candidates(options.methods):
                settings = {
                    "shots": shots,
                    "method": method,
                    "rate": rate,
                    "seed": seed,
                    "epochs": options.epochs,
                    "samples": options.samples,
                }
                try_candidate(
                    results,
                    settings,
                    functools.partial(network, method, rate, path),
                    (*data, of_classes(test, CLASSES)),
                    options.samples,
                    learning_rate=options.learning_rate,
                    epochs=options.epochs,
                    patience=options.patience,
                    batch_size=options.batch_size,
                )
    for shots in options.shots:
        print(f"\n{shots} images of each class\n")
        report(results.select(shots=shots))


if __name__ == "__main__":
    main()
