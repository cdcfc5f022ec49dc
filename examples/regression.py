"""How often is a target inside its interval, and for which method?

    python examples/regression.py
    python examples/regression.py --csv FILE

This program trains a regression on scikit-learn's diabetes, or on any CSV file
of numbers whose last column is the target. It compares variational layers with
MC dropout and with an ensemble of five networks. All of them learn the noise
of the data (`GaussianNegativeLogLikelihood`), one for all rows or, with
`--noise predicted`, one for each row. For several random splits it reports the
coverage of intervals against their nominal probability, the interval score,
the negative log-likelihood and the root mean squared error, all in units of the
file.

The rate of dropout, the weight of the KL, the scale of the prior and the decay
of plain weights are chosen for each split by the likelihood of a part of its
training rows. An ensemble takes what one of its networks chose. Each finished
run is appended to a
CSV file. A second start skips the runs in that file.
"""

import keras
import numpy as np

import keras_vdrop
from shared import plotting
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.results import versions
from shared.training import steps_per_execution

LEVELS = (0.5, 0.8, 0.9, 0.95)
# What is tried on validation rows.
DECAYS = ({"decay": 1e-3}, {"decay": 1e-2}, {"decay": 1e-1})
CANDIDATES = {
    "plain": DECAYS,
    "variational": (
        {"kl_downscale": 1.0},
        {"kl_downscale": 3.0},
        {"kl_downscale": 10.0},
    ),
    "normal prior": (
        {"scale": 0.1},
        {"scale": 0.3},
        {"scale": 1.0},
    ),
    "MC dropout": ({"rate": 0.1}, {"rate": 0.2}, {"rate": 0.4}),
    "ensemble of 5": DECAYS,
}
METHODS = tuple(CANDIDATES)


def load(options):
    """Returns rows of features and a column of targets."""
    if options.csv:
        table = np.genfromtxt(options.csv, delimiter=options.delimiter)
        # Without a header, if there is one.
        table = table[~np.isnan(table).any(axis=1)]
        return table[:, :-1], table[:, -1:]
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return x, y[:, None]


class Scaling:
    """To mean 0 and variance 1, by the training rows."""

    def __init__(self, rows):
        self.mean, self.std = rows.mean(axis=0), rows.std(axis=0)
        self.std[self.std == 0] = 1

    def __call__(self, rows):
        return ((rows - self.mean) / self.std).astype("float32")


def build(method, choice, features, width, noise):
    """Returns a network of one hidden layer, as of the UCI protocol."""
    outputs = 1 if noise == "shared" else 2
    layers = [keras.Input((features,))]
    for units, activation in ((width, "relu"), (outputs, None)):
        arguments = {"units": units, "activation": activation}
        if method == "variational":
            layers.append(
                keras_vdrop.VariationalDense(
                    **arguments, noise="independent", **choice
                )
            )
        elif method == "normal prior":
            layers.append(
                keras_vdrop.VariationalDense(
                    **arguments,
                    parameterization="additive",
                    granularity="weight",
                    kl=keras_vdrop.priors.Normal(choice["scale"]),
                    max_alpha=None,
                )
            )
        else:
            if method == "MC dropout" and len(layers) > 1:
                layers.append(keras.layers.Dropout(choice["rate"]))
            decay = choice.get("decay", 0.0)
            regularizer = keras.regularizers.L2(decay) if decay else None
            layers.append(
                keras.layers.Dense(**arguments, kernel_regularizer=regularizer)
            )
    if noise == "shared":
        layers.append(keras_vdrop.layers.ObservationNoise())
    return keras.Sequential(layers)


def fit(method, choice, train, options, seed, members=1):
    """Returns as many networks as there are members."""
    models = []
    x, y = train
    for member in range(members):
        keras.utils.set_random_seed(10 * seed + member)
        model = build(method, choice, x.shape[1], options.width, options.noise)
        for layer in keras_vdrop.variational_layers(model):
            layer.set_num_examples(len(x), layer.kl_downscale)
        steps = options.epochs * -(-len(x) // options.batch_size)
        rate = keras.optimizers.schedules.CosineDecay(0.01, steps)
        model.compile(
            keras.optimizers.Adam(rate),
            keras_vdrop.losses.GaussianNegativeLogLikelihood(),
            steps_per_execution=steps_per_execution(
                -(-len(x) // options.batch_size)
            ),
        )
        model.fit(
            x,
            y,
            batch_size=options.batch_size,
            epochs=options.epochs,
            verbose=0,
        )
        models.append(model)
    return models


def predict(method, models, x, options):
    # A plain network is an ensemble of one.
    return keras_vdrop.predict(
        models,
        x,
        num_samples=options.samples,
        batch_size=len(x),
        likelihood="gaussian",
        dropout=method == "MC dropout",
        keep_samples=True,
        seed=0,
        verbose=0,
    )


def judge(found, y, unit):
    """Returns the metrics as columns of the CSV.

    Args:
        found: Predictions of standardized targets.
        y: Standardized targets.
        unit: The standard deviation of the targets.
    """
    judged = {
        "nll": np.log(unit) - found.log_likelihood(y).mean(),
        "rmse": unit * np.sqrt(np.mean((y - found.mean) ** 2)),
    }
    for level in LEVELS:
        interval = found.interval(level)
        coverage = keras_vdrop.metrics.IntervalCoverage(level)
        coverage.update_state(y, interval)
        judged[f"coverage_{level}"] = float(coverage.result())
    score = keras_vdrop.metrics.IntervalScore(0.9)
    score.update_state(y, found.interval(0.9))
    judged["interval_score"] = unit * float(score.result())
    judged["weights_std"] = unit * float(found.weights_std.mean())
    judged["data_std"] = unit * float(found.data_std.mean())
    return {name: f"{value:.5g}" for name, value in judged.items()}


def run(method, split, x, y, options):
    """Returns what a method has on the test rows of a split."""
    order = np.random.default_rng(split).permutation(len(x))
    number = round(options.test_share * len(x))
    test, train = order[:number], order[number:]
    held, part = train[: len(train) // 5], train[len(train) // 5 :]
    scale_x, scale_y = Scaling(x[part]), Scaling(y[part])
    data = scale_x(x[part]), scale_y(y[part])
    likelihoods = []
    for candidate in CANDIDATES[method]:
        models = fit(method, candidate, data, options, split)
        found = predict(method, models, scale_x(x[held]), options)
        likelihoods.append(found.log_likelihood(scale_y(y[held])).mean())
    choice = CANDIDATES[method][int(np.argmax(likelihoods))]
    scale_x, scale_y = Scaling(x[train]), Scaling(y[train])
    data = scale_x(x[train]), scale_y(y[train])
    members = 5 if method == "ensemble of 5" else 1
    models = fit(method, choice, data, options, split, members)
    found = predict(method, models, scale_x(x[test]), options)
    unit = scale_y.std.item()
    return {
        "choice": joined(choice.values()),
        **judge(found, scale_y(y[test]), unit),
        **versions(),
    }


def settings_of(method, options):
    return {
        "data": options.csv or "diabetes",
        "method": method,
        "noise": options.noise,
        "width": options.width,
        "epochs": options.epochs,
        "samples": options.samples,
    }


def report(results, options):
    names = ("coverage_0.9", "interval_score", "nll", "rmse", "weights_std")
    print(f"\nmean ± standard deviation over the splits\n\n| | {names} |")
    for method in options.methods:
        rows = results.select(**settings_of(method, options))
        cells = [spread([float(row[name]) for row in rows]) for name in names]
        print(f"| {method} | {' | '.join(cells)} |")


def paint(figure, results, options):
    axes = figure.subplots()
    axes.plot([0.45, 1], [0.45, 1], "k--", linewidth=1, label="calibrated")
    for method in options.methods:
        rows = results.select(**settings_of(method, options))
        coverage = np.array(
            [[float(row[f"coverage_{x}"]) for x in LEVELS] for row in rows]
        )
        error = coverage.std(axis=0, ddof=min(1, len(rows) - 1))
        axes.errorbar(
            LEVELS,
            coverage.mean(axis=0),
            error / np.sqrt(len(rows)),
            marker="o",
            capsize=2,
            label=method,
        )
    axes.set(xlabel="nominal probability", ylabel="share of targets inside")
    axes.legend()


def main():
    parser = new_parser(__doc__)
    option = parser.add_argument
    option("--csv", metavar="FILE", help="numbers; the last column is y")
    option("--delimiter", default=",")
    option("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    option("--noise", choices=("shared", "predicted"), default="shared")
    option("--splits", type=int, default=5)
    option("--test-share", type=float, default=0.2)
    option("--width", type=int, default=50)
    option("--epochs", type=int, default=100)
    option("--batch-size", type=int, default=32)
    option("--samples", type=int, default=100)
    option("--out", default="regression.csv")
    options = parser.parse_args()
    x, y = load(options)
    results = Results(options.out)
    for split in range(options.splits):
        for method in options.methods:
            settings = {**settings_of(method, options), "split": split}
            if not results.select(**settings):
                row = run(method, split, x, y, options)
                results.append({**settings, **row})
                print(method, split, joined(row.values()), flush=True)
    report(results, options)
    plotting.draw(
        plotting.beside(options.out, ".png"),
        (5, 4.5),
        lambda figure: paint(figure, results, options),
    )


if __name__ == "__main__":
    main()
