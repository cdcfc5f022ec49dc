"""How sure is the network, and does it notice what it has never seen?

    python examples/uncertainty.py --data-dir FOLDER

This program trains a network on MNIST without dropout, with binary dropout and
with variational dropout. It predicts the test set with the mean weights, and
with samples of the noise: for binary dropout this is MC dropout (Gal and
Ghahramani 2016), for variational layers `keras_vdrop.predict`. It reports the
error, the negative log-likelihood, the Brier score and the expected calibration
error. It also reports how well the entropy of the prediction separates MNIST
from Fashion-MNIST, which the network has never seen, as the area under the ROC
curve.

Each finished run is appended to a CSV file, with its predictions in a folder
beside it. A second start skips the runs in that file. In the end the program
prints a table and draws the reliability of the predictions.
"""

import functools
import os
import time

import keras
import numpy as np

import keras_vdrop
from shared import data
from shared import plotting
from shared.networks import dense_network
from shared.options import add_data
from shared.options import add_widths
from shared.options import new_parser
from shared.predictions import judge
from shared.predictions import mean_prediction
from shared.predictions import sampled_prediction
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.results import versions
from shared.training import EpochLine
from shared.training import compile_classifier
from shared.training import steps_of

METHODS = ("none", "binary", "variational_a", "variational_b")
# The picture shows each method as it is best used.
SHOWN = (
    ("none", "mean"),
    ("binary", "sampled"),
    ("variational_a", "sampled"),
    ("variational_b", "sampled"),
)


def load(options):
    """Returns the training set, the test set, and images of another kind."""
    train, test = data.load(options.data, options.data_dir)
    if options.data == "digits":
        # These are the same pixels in another order.
        order = np.random.default_rng(0).permutation(test[0].shape[1])
        return train, test, test[0][:, order]
    if options.fashion:
        strange = data.load_idx(options.fashion)
    else:
        strange = data.load_tfds("fashion_mnist", options.data_dir)[1][0]
    return train, test, strange.reshape(len(strange), -1)


def fit(method, train, seed, options):
    keras.utils.set_random_seed(seed)
    number, *shape = train[0].shape
    model = dense_network(method, shape, options.widths)
    steps = steps_of(options.epochs, number, options.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    compile_classifier(model, number, keras.optimizers.Adam(rate))
    model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        callbacks=[EpochLine(f"{method}, seed {seed}")],
        verbose=0,
    )
    return model


def entropy(probabilities):
    logs = np.log(np.maximum(probabilities, 1e-30))
    return -(probabilities * logs).sum(-1)


def area_under_curve(low, high):
    """Returns the probability that a value of `high` exceeds one of `low`."""
    from sklearn.metrics import roc_auc_score

    is_high = np.repeat([0, 1], [len(low), len(high)])
    return roc_auc_score(is_high, np.concatenate([low, high]))


def judge_both(probabilities, strange_probabilities, labels):
    """Returns the metrics as columns of the CSV."""
    judged = judge(labels, probabilities)
    judged["auroc"] = area_under_curve(
        entropy(probabilities), entropy(strange_probabilities)
    )
    return {name: f"{value:.5f}" for name, value in judged.items()}


def settings_of(method, options):
    """Returns the columns of the CSV that are equal for all seeds."""
    return {
        "data": options.data,
        "method": method,
        "epochs": options.epochs,
        "widths": joined(options.widths),
        "samples": options.samples,
    }


def run(method, seed, train, test, strange, options):
    results = Results(options.out)
    settings = {**settings_of(method, options), "seed": seed}
    if results.select(**settings):
        return
    x, labels = test
    start = time.time()
    model = fit(method, train, seed, options)
    predictions = {"mean": mean_prediction}
    if method != "none":
        predictions["sampled"] = functools.partial(
            sampled_prediction, samples=options.samples
        )
    for prediction, function in predictions.items():
        found = function(model, x)
        found_strange = function(model, strange)
        np.save(kept(method, prediction, seed, options), found)
        results.append(
            {
                **settings,
                "prediction": prediction,
                **judge_both(found, found_strange, labels),
                "seconds": f"{time.time() - start:.0f}",
                **versions(),
            }
        )


def kept(method, prediction, seed, options):
    """Returns the path of the predictions of a run."""
    folder = plotting.beside(options.out, "_predictions")
    os.makedirs(folder, exist_ok=True)
    size = "-".join(map(str, options.widths))
    name = f"{options.data}_{method}_{prediction}_{size}_{options.epochs}"
    return os.path.join(folder, f"{name}_{options.samples}_{seed}.npy")


def draw(labels, options):
    """Draws the reliability of the predictions of all seeds together."""
    shown = {}
    for method, prediction in SHOWN:
        paths = [
            kept(method, prediction, seed, options)
            for seed in range(options.seeds)
        ]
        if method in options.methods and all(map(os.path.exists, paths)):
            name = f"{method}, {prediction}"
            shown[name] = np.concatenate([np.load(path) for path in paths])
    if not shown:
        return
    try:
        figure = keras_vdrop.plot_reliability(
            np.tile(labels, options.seeds), shown
        )
    except ImportError as error:
        print(error)
        return
    plotting.save(figure, plotting.beside(options.out, ".png"))


def report(options):
    results = Results(options.out)
    names = ("error", "nll", "brier", "ece", "auroc")
    print("\nmean ± standard deviation over the seeds")
    print(f"{'':30s}" + "".join(f"{name:20s}" for name in names))
    for method in options.methods:
        for prediction in ("mean", "sampled"):
            rows = results.select(
                prediction=prediction, **settings_of(method, options)
            )
            if rows:
                columns = [
                    spread([float(row[name]) for row in rows], 4)
                    for name in names
                ]
                print(
                    f"{method + ', ' + prediction:30s}"
                    + "".join(f"{column:20s}" for column in columns)
                )


def parse_arguments():
    parser = new_parser(__doc__)
    add_data(parser)
    add_widths(parser, default=[400, 400])
    option = parser.add_argument
    option(
        "--fashion",
        metavar="FILE",
        help="t10k-images-idx3-ubyte.gz of Fashion-MNIST; without it, "
        "tensorflow-datasets loads these images",
    )
    option("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    option("--epochs", type=int, default=20)
    option("--batch-size", type=int, default=100)
    option("--samples", type=int, default=32)
    option("--seeds", type=int, default=3)
    option("--out", default="uncertainty.csv")
    return parser.parse_args()


def main():
    options = parse_arguments()
    train, test, strange = load(options)
    for seed in range(options.seeds):
        for method in options.methods:
            run(method, seed, train, test, strange, options)
    report(options)
    draw(test[1], options)


if __name__ == "__main__":
    main()
