"""How sure is the network, and does it notice what it has never seen?

    python examples/uncertainty.py --data-dir FOLDER

This program compares ways to know what a network does not know, on MNIST: a
plain network, MC dropout (Gal and Ghahramani 2016), an ensemble of five
networks, and variational layers of several kinds. It reports the error, the
negative log-likelihood, the Brier score and the expected calibration error. It
also reports how well the mutual information, and the entropy of the prediction,
separate MNIST from Fashion-MNIST, which the network has never seen, as the area
under the ROC curve. Last it rotates the test images by more and more degrees.

What a method leaves open is chosen first, by the likelihood of 10,000 images of
the training set that the choosing networks do not train on; no test image and
no image of Fashion-MNIST has a part in it.

Trained networks are kept in a folder beside the CSV file, and each finished run
is appended to it. A second start goes on where the first has ended. In the end
the program prints a table and draws three pictures.
"""

import functools

import numpy as np

import keras_vdrop
from shared import data
from shared import uncertainty_choice
from shared.options import add_data
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.uncertainty_methods import CANDIDATES
from shared.uncertainty_methods import METHODS
from shared.uncertainty_networks import trained
from shared.uncertainty_report import draw
from shared.uncertainty_report import folder_of
from shared.uncertainty_report import kept
from shared.uncertainty_report import report
from shared.uncertainty_report import settings_of
from shared.uncertainty_scores import judge

VALIDATION_SAMPLES = 16
# Of the seeds of an ensemble's networks.
BETWEEN_SEEDS = 1000


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
    strange = strange.reshape(-1, 28, 28)
    if options.data == "cifar10":
        # A frame of black pixels, and three equal channels.
        framed = np.pad(strange, ((0, 0), (2, 2), (2, 2)))
        return train, test, np.repeat(framed[..., None], 3, axis=-1)
    return train, test, strange.reshape(len(strange), -1)


def predict(models, x, samples, dropout):
    """Returns predictions by all networks of a method."""
    return keras_vdrop.predict(
        models,
        x,
        num_samples=samples,
        batch_size=1000,
        from_logits=True,
        dropout=dropout,
        seed=0,
        verbose=0,
    )


def choose(name, train, options):
    """Returns the candidate for a method with the highest likelihood."""
    method = METHODS[name]
    network = method.network

    def validate(candidate, part, images):
        model, _ = trained(
            network,
            candidate,
            part,
            0,
            options.epochs,
            options.widths,
            folder_of(options),
        )
        found = predict([model], images, VALIDATION_SAMPLES, method.dropout)
        return found.mean

    candidates = CANDIDATES[network]
    return uncertainty_choice.choose(
        network, candidates, validate, train, options
    )


def run(settings, choice, seed, sets, options):
    """Trains the networks of a method, or loads them, and judges them."""
    method = METHODS[settings["method"]]
    train, test, strange = sets
    found = [
        trained(
            method.network,
            choice,
            train,
            BETWEEN_SEEDS * seed + member,
            options.epochs,
            options.widths,
            folder_of(options),
        )
        for member in range(method.members)
    ]
    models, seconds = zip(*found, strict=True)
    columns, mean = judge(
        lambda x: predict(list(models), x, settings["samples"], method.dropout),
        test,
        strange,
        options,
    )
    np.save(kept(settings, seed, options), mean)
    return {
        "train_seconds": f"{sum(seconds):.1f}",
        **columns,
    }


def parse_arguments(documentation, methods):
    """Returns the options of a program with these methods."""
    parser = new_parser(documentation)
    add_data(parser, "cifar10")
    add_widths(parser, default=[400, 400])
    option = parser.add_argument
    option(
        "--fashion",
        metavar="FILE",
        help="t10k-images-idx3-ubyte.gz of Fashion-MNIST; without it, "
        "tensorflow-datasets loads these images",
    )
    option("--methods", nargs="+", choices=methods, default=list(methods))
    option(
        "--chosen-on",
        metavar="DATA",
        help="take what was chosen on other data, and choose nothing here",
    )
    option("--epochs", type=int, default=10)
    option("--samples", type=int, default=32)
    option("--seeds", nargs="+", type=int, default=[0, 1, 2])
    option(
        "--angles",
        nargs="+",
        type=int,
        default=[0, 15, 30, 45, 60, 90, 180],
    )
    option("--rotated", type=int, default=1000, help="how many test images")
    option("--out", default="uncertainty.csv")
    option("--report", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.data == "cifar10":
        options.widths = ["k=1"]
    return options


def compare(samples_of, choose, run, options, pictures=True):
    """Runs what is not in the CSV file yet, and reports.

    Args:
        samples_of: The number of samples of each method.
        choose: Function of a method and the training set that returns what
            `run` is given as the choice.
        run: Function of settings, a choice, a seed and the data sets that
            returns the columns of a run.
        options: The options of the program.
        pictures: Whether to draw them.
    """
    train, test, strange = load(options)
    results = Results(options.out)
    for seed in options.seeds:
        for name, samples in samples_of.items():
            settings = settings_of(name, samples, options)
            key = {**settings, "seed": seed}
            if options.report or results.select(**key):
                continue
            choice = choose(name, train)
            row = run(settings, choice, seed, (train, test, strange))
            row = {"choice": joined(choice.items()), **row}
            results.append({**key, **row})
            print(joined([*key.values(), *row.values()]), flush=True)
    rows_of = report(results, samples_of, options)
    if rows_of and pictures:
        draw(rows_of, samples_of, test[1], options)


def main():
    options = parse_arguments(__doc__, METHODS)
    compare(
        {x: METHODS[x].samples or options.samples for x in options.methods},
        functools.partial(choose, options=options),
        functools.partial(run, options=options),
        options,
    )


if __name__ == "__main__":
    main()
