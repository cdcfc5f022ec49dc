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
import os
import time

import numpy as np

import keras_vdrop
from shared import data
from shared import plotting
from shared.options import add_data
from shared.options import add_widths
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.results import versions
from shared.uncertainty_networks import CANDIDATES
from shared.uncertainty_networks import METHODS
from shared.uncertainty_networks import trained

SCORES = ("error", "nll", "brier", "ece", "auroc_mi", "auroc")
# What the pictures of calibration and of refusal show.
SHOWN = (
    "plain",
    "MC dropout",
    "ensemble of 5",
    "correlated",
    "dropout + normal prior",
)
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
    return train, test, strange.reshape(len(strange), -1)


def rotated(rows, angle):
    """Returns images, rotated by an angle in degrees, as rows of pixels."""
    from scipy import ndimage

    side = round(rows.shape[1] ** 0.5)
    images = rows.reshape(-1, side, side)
    turned = ndimage.rotate(
        images, angle, axes=(1, 2), reshape=False, order=1, mode="constant"
    )
    return turned.reshape(rows.shape)


def predict(method, models, x, samples):
    """Returns predictions by all networks of a method."""
    return keras_vdrop.predict(
        models,
        x,
        num_samples=method.samples or samples,
        batch_size=1000,
        from_logits=True,
        dropout=method.dropout,
        seed=0,
        verbose=0,
    )


def scores(labels, probabilities):
    """Returns metrics of predictions as columns of the CSV."""
    judged = {"error": 100 * np.mean(probabilities.argmax(-1) != labels)}
    for metric in (
        keras_vdrop.metrics.NegativeLogLikelihood(),
        keras_vdrop.metrics.BrierScore(),
        keras_vdrop.metrics.ExpectedCalibrationError(),
        keras_vdrop.metrics.AreaUnderRiskCoverage(),
    ):
        metric.update_state(labels, probabilities)
        judged[metric.name] = float(metric.result())
    return judged


def area_under_curve(low, high):
    """Returns the probability that a value of `high` exceeds one of `low`."""
    from sklearn.metrics import roc_auc_score

    is_high = np.repeat([0, 1], [len(low), len(high)])
    return roc_auc_score(is_high, np.concatenate([low, high]))


def folder_of(options):
    return plotting.beside(options.out, "_state")


def choose(network, train, options):
    """Returns what has the highest likelihood of validation images."""
    if len(CANDIDATES[network]) == 1:
        return CANDIDATES[network][0]
    results = Results(plotting.beside(options.out, "_validation.csv"))
    number = len(train[0]) - len(train[0]) // 6
    part, held = ([x[:number] for x in train], [x[number:] for x in train])
    method = next(x for x in METHODS.values() if x.network == network)
    likelihoods = []
    for candidate in CANDIDATES[network]:
        settings = {
            "data": options.data,
            "network": network,
            "candidate": joined(candidate.items()),
            "widths": joined(options.widths),
            "epochs": options.epochs,
        }
        if not results.select(**settings):
            model, _ = trained(
                network,
                candidate,
                part,
                0,
                options.epochs,
                options.widths,
                folder_of(options),
            )
            found = predict(method, [model], held[0], 16)
            judged = {
                name: f"{value:.5g}"
                for name, value in scores(held[1], found.mean).items()
            }
            results.append({**settings, **judged, **versions()})
        row = results.select(**settings)[0]
        print(joined(settings.values()), row["nll"], flush=True)
        likelihoods.append(-float(row["nll"]))
    return CANDIDATES[network][int(np.argmax(likelihoods))]


def settings_of(name, options):
    return {
        "data": options.data,
        "method": name,
        "widths": joined(options.widths),
        "epochs": options.epochs,
        "samples": METHODS[name].samples or options.samples,
    }


def run(name, choice, seed, sets, options):
    """Trains the networks of a method, or loads them, and judges them."""
    method = METHODS[name]
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
    models = list(models)
    predict(method, models, test[0][:1000], options.samples)  # compiles
    start = time.process_time()
    known = predict(method, models, test[0], options.samples)
    prediction_seconds = time.process_time() - start
    unknown = predict(method, models, strange, options.samples)
    judged = {
        **scores(test[1], known.mean),
        "auroc": area_under_curve(known.entropy, unknown.entropy),
        "auroc_mi": float("nan"),
    }
    if known.num_samples > 1:
        judged["auroc_mi"] = area_under_curve(
            known.mutual_information, unknown.mutual_information
        )
    turns = {}
    some = slice(0, options.rotated)
    for angle in options.angles:
        turned = rotated(test[0][some], angle)
        mean = predict(method, models, turned, options.samples).mean
        for key, value in scores(test[1][some], mean).items():
            turns.setdefault(key, []).append(f"{value:.4g}")
    np.save(kept(name, seed, options), known.mean)
    return {
        "choice": joined(choice.items()),
        **{key: f"{value:.5g}" for key, value in judged.items()},
        "train_seconds": f"{sum(seconds):.1f}",
        "predict_seconds": f"{prediction_seconds:.1f}",
        "angles": joined(options.angles),
        **{f"rotated_{key}": joined(turns[key]) for key in turns},
        **versions(),
    }


def kept(name, seed, options):
    """Returns the path of the predictions of a run."""
    os.makedirs(folder_of(options), exist_ok=True)
    words = [*settings_of(name, options).values(), seed]
    name = "_".join(str(word).replace(" ", "-") for word in words)
    return os.path.join(folder_of(options), f"predictions_{name}.npy")


def draw_reliability(plot, path, labels, rows_of, options):
    """Draws the predictions of all seeds of each method together."""
    shown = {
        name: np.concatenate(
            [np.load(kept(name, row["seed"], options)) for row in rows]
        )
        for name, rows in rows_of.items()
        if name in SHOWN
        and all(os.path.exists(kept(name, x["seed"], options)) for x in rows)
    }
    if len({len(x) for x in shown.values()}) != 1:
        print(f"No {path}: it needs the same seeds of each method.")
        return
    times = len(next(iter(shown.values()))) // len(labels)
    plotting.save(plot(np.tile(labels, times), shown), path)


def paint_rotations(figure, rows_of):
    panels = figure.subplots(1, 3)
    for axes, score, label in zip(
        panels,
        ("error", "nll", "ece"),
        ("error, %", "negative log-likelihood, nats", "calibration error"),
        strict=True,
    ):
        for name, rows in rows_of.items():
            angles = np.array(rows[0]["angles"].split(), float)
            values = [
                np.array(row[f"rotated_{score}"].split(), float) for row in rows
            ]
            axes.plot(angles, np.mean(values, axis=0), ".-", label=name)
        axes.set(xlabel="rotation, degrees", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=4,
    )


def report(results, labels, options):
    rows_of = {}
    print("\nmean ± standard deviation over the seeds\n")
    print(f"| | {' | '.join(SCORES)} | seeds | training, s | prediction, s |")
    for name in options.methods:
        rows = results.select(**settings_of(name, options))
        rows = [row for row in rows if int(row["seed"]) in options.seeds]
        if not rows:
            continue
        rows_of[name] = rows
        cells = [
            spread([float(row[key]) for row in rows], digits)
            for key, digits in zip(SCORES, (2, 4, 4, 4, 3, 3), strict=True)
        ]
        times = [
            f"{np.mean([float(row[key]) for row in rows]):.0f}"
            for key in ("train_seconds", "predict_seconds")
        ]
        cells += [str(len(rows)), *times]
        print(f"| {name} | {' | '.join(cells)} |")
    if not rows_of:
        return
    try:
        for ending, plot in (
            (".png", keras_vdrop.plot_reliability),
            ("_risk.png", keras_vdrop.plot_risk_coverage),
        ):
            path = plotting.beside(options.out, ending)
            draw_reliability(plot, path, labels, rows_of, options)
    except ImportError as error:
        print(error)
        return
    plotting.draw(
        plotting.beside(options.out, "_rotated.png"),
        (11, 4.5),
        functools.partial(paint_rotations, rows_of=rows_of),
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
    return parser.parse_args()


def main():
    options = parse_arguments()
    train, test, strange = load(options)
    results = Results(options.out)
    choices = {}
    for seed in options.seeds:
        for name in options.methods:
            settings = {**settings_of(name, options), "seed": seed}
            if options.report or results.select(**settings):
                continue
            network = METHODS[name].network
            if network not in choices:
                choices[network] = choose(network, train, options)
            sets = train, test, strange
            row = run(name, choices[network], seed, sets, options)
            results.append({**settings, **row})
            print(joined([*settings.values(), *row.values()]), flush=True)
    report(results, test[1], options)


if __name__ == "__main__":
    main()
