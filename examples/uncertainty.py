"""How sure is the network, and does it notice what it has never seen?

    python examples/uncertainty.py --data-dir FOLDER

Trains a network on MNIST without dropout, with binary dropout and with
variational dropout, and predicts the test set by the mean weights, and by
samples of the noise: for binary dropout this is MC dropout (Gal and Ghahramani
2016), for variational layers `keras_vdrop.predict`. Reports error,
negative log-likelihood, Brier score and expected calibration error, and how
well the entropy of the prediction tells MNIST from Fashion-MNIST, which it has
never seen, as the area under the ROC curve.

Each finished run is appended to a CSV file, its predictions are kept in a
folder beside it, and a second start skips what is there. In the end it prints
a table and draws the reliability of the predictions.
"""

import argparse
import os
import time

import experiments
import keras
import numpy as np

import keras_vdrop

METHODS = ("none", "binary", "variational_a", "variational_b")
# In the picture: how each method is best used.
SHOWN = (
    ("none", "mean"),
    ("binary", "sampled"),
    ("variational_a", "sampled"),
    ("variational_b", "sampled"),
)


def load(options):
    """Training and test set, and images of another kind."""
    train, test = experiments.load(options.data, options.data_dir)
    if options.data == "digits":
        # The same pixels in another order.
        order = np.random.default_rng(0).permutation(test[0].shape[1])
        return train, test, test[0][:, order]
    if options.fashion:
        strange = experiments.load_idx(options.fashion)
    else:
        strange = experiments.load_tfds("fashion_mnist", options.data_dir)[1][0]
    return train, test, strange.reshape(len(strange), -1)


def fit(method, data, seed, options):
    keras.utils.set_random_seed(seed)
    model = experiments.dense_network(method, data[0].shape[1:], options.widths)
    steps = options.epochs * -(-len(data[0]) // options.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    experiments.compile_classifier(
        model, len(data[0]), keras.optimizers.Adam(rate)
    )
    label = f"{method}, seed {seed}"
    model.fit(
        *data,
        batch_size=options.batch_size,
        epochs=options.epochs,
        callbacks=[experiments.EpochLine(label)],
        verbose=0,
    )
    return model


def mean_prediction(model, x, options):
    logits = model.predict(x, batch_size=1000, verbose=0)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sampled_prediction(model, x, options):
    if experiments.adaptive_layers(model):
        return keras_vdrop.predict(
            model,
            x,
            num_samples=options.samples,
            batch_size=1000,
            from_logits=True,
            seed=0,
            verbose=0,
        ).mean
    parts = np.array_split(x, -(-len(x) // 1000))
    return np.concatenate([mc_dropout(model, part, options) for part in parts])


def mc_dropout(model, x, options):
    """Mean of predictions with the dropout masks of training."""
    total = 0.0
    for _ in range(options.samples):
        logits = model(x, training=True)
        total += keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    return total / options.samples


def entropy(probabilities):
    logs = np.log(np.maximum(probabilities, 1e-30))
    return -(probabilities * logs).sum(-1)


def area_under_curve(low, high):
    """Probability that a value of `high` is above one of `low`."""
    from sklearn.metrics import roc_auc_score

    is_high = np.repeat([0, 1], [len(low), len(high)])
    return roc_auc_score(is_high, np.concatenate([low, high]))


def judge(probabilities, strange_probabilities, labels):
    judged = {
        "error": 100 * np.mean(probabilities.argmax(-1) != labels),
        "auroc": area_under_curve(
            entropy(probabilities), entropy(strange_probabilities)
        ),
    }
    for metric in (
        keras_vdrop.metrics.NegativeLogLikelihood(),
        keras_vdrop.metrics.BrierScore(),
        keras_vdrop.metrics.ExpectedCalibrationError(),
    ):
        metric.update_state(labels, probabilities)
        judged[metric.name] = float(metric.result())
    return {name: f"{value:.5f}" for name, value in judged.items()}


def run(method, seed, data, options):
    results = experiments.Results(options.out)
    settings = {
        "data": options.data,
        "method": method,
        "seed": seed,
        "epochs": options.epochs,
        "widths": " ".join(map(str, options.widths)),
        "samples": options.samples,
    }
    if results.select(**settings):
        return
    train, (x, labels), strange = data
    start = time.time()
    model = fit(method, train, seed, options)
    predictions = {"mean": mean_prediction}
    if method != "none":
        predictions["sampled"] = sampled_prediction
    for prediction, function in predictions.items():
        found = function(model, x, options)
        found_strange = function(model, strange, options)
        np.save(kept(method, prediction, seed, options), found)
        results.append(
            {
                **settings,
                "prediction": prediction,
                **judge(found, found_strange, labels),
                "seconds": f"{time.time() - start:.0f}",
                **experiments.versions(),
            }
        )


def kept(method, prediction, seed, options):
    """Path of the predictions of a run."""
    folder = os.path.splitext(options.out)[0] + "_predictions"
    os.makedirs(folder, exist_ok=True)
    size = "-".join(map(str, options.widths))
    name = f"{options.data}_{method}_{prediction}_{size}_{options.epochs}"
    return os.path.join(folder, f"{name}_{options.samples}_{seed}.npy")


def draw(labels, options):
    """Reliability of the predictions of all seeds together."""
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
    picture = os.path.splitext(options.out)[0] + ".png"
    figure.savefig(picture, dpi=150)
    print(f"Drew {picture}")


def report(options):
    results = experiments.Results(options.out)
    names = ("error", "nll", "brier", "ece", "auroc")
    print("\nmean ± standard deviation over the seeds")
    print(f"{'':30s}" + "".join(f"{name:20s}" for name in names))
    for method in options.methods:
        for prediction in ("mean", "sampled"):
            rows = results.select(
                data=options.data,
                method=method,
                epochs=options.epochs,
                widths=" ".join(map(str, options.widths)),
                samples=options.samples,
                prediction=prediction,
            )
            if rows:
                columns = [
                    experiments.spread([float(row[name]) for row in rows], 4)
                    for name in names
                ]
                print(
                    f"{method + ', ' + prediction:30s}"
                    + "".join(f"{column:20s}" for column in columns)
                )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    experiments.add_data_arguments(parser)
    option = parser.add_argument
    option(
        "--fashion",
        metavar="FILE",
        help="t10k-images-idx3-ubyte.gz of Fashion-MNIST; by "
        "tensorflow-datasets if not given",
    )
    option("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    option("--widths", nargs="+", type=int, default=[400, 400])
    option("--epochs", type=int, default=20)
    option("--batch-size", type=int, default=100)
    option("--samples", type=int, default=32)
    option("--seeds", type=int, default=3)
    option("--out", default="uncertainty.csv")
    options = parser.parse_args()
    data = load(options)
    for seed in range(options.seeds):
        for method in options.methods:
            run(method, seed, data, options)
    report(options)
    draw(data[1][1], options)


if __name__ == "__main__":
    main()
