"""Plain, dropout and variational networks, chosen on validation data.

A candidate is a method and a rate: fixed for dropout, the initial one for
variational layers. Its weights are those of the epoch with the lowest
validation NLL of the mean weights. Of the rates of a method, the one with the
lowest validation NLL over the seeds is reported, for each kind of prediction
apart. The test set chooses nothing.
"""

import time

import keras
import numpy as np

import keras_vdrop
from shared.networks import adaptive_layers
from shared.networks import mean_rates
from shared.predictions import judge
from shared.predictions import mean_prediction
from shared.predictions import sampled_prediction
from shared.results import joined
from shared.results import spread
from shared.results import versions
from shared.training import EpochLine

TITLES = {
    "plain": "plain",
    "dropout": "dropout",
    "variational": "variational",
    "independent": "variational, independent",
    "last": "variational, last layer only",
}
NOISE = {"variational": {}, "independent": {"noise": "independent"}}
DROPOUT_RATES = (0.1, 0.3, 0.5)
# The default of the layers.
INITIAL_RATE = 0.05
SCORES = {"error": 1, "nll": 3, "ece": 3}


def candidates(methods):
    """Returns each method with each of its rates."""
    rates = {"plain": (0.0,), "dropout": DROPOUT_RATES}
    return [
        (method, rate)
        for method in methods
        for rate in rates.get(method, (INITIAL_RATE,))
    ]


class Kinds:
    """Makes the layers of a network with the noise of a candidate."""

    def __init__(self, method, rate):
        self.method, self.rate = method, rate

    def layer(self, kind, *args, **arguments):
        if self.method not in NOISE:
            return getattr(keras.layers, kind)(*args, **arguments)
        arguments |= {"rate": self.rate, **NOISE[self.method]}
        return getattr(keras_vdrop, f"Variational{kind}")(*args, **arguments)

    def recurrent(self, kind, *args, **arguments):
        """One mask or one noise for a sequence, on inputs and on states."""
        if self.method == "dropout":
            arguments |= {"dropout": self.rate, "recurrent_dropout": self.rate}
        if self.method == "independent":
            # The only estimator of noise that stays through a sequence.
            arguments["estimator"] = "batch"
        return self.layer(kind, *args, **arguments)

    def dropout(self, x):
        """What is before a layer."""
        if self.method != "dropout":
            return x
        return keras.layers.Dropout(self.rate)(x)


def fit(model, data, label, learning_rate, epochs, patience, batch_size):
    """Trains, and returns the epoch whose weights the model has now."""
    train, validation = data
    if adaptive_layers(model):
        keras_vdrop.set_num_examples(model, len(train[0]))
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            "accuracy",
            keras_vdrop.metrics.NegativeLogLikelihood(from_logits=True),
        ],
    )
    # Not `val_loss`: it contains the KL.
    best = keras.callbacks.EarlyStopping(
        "val_nll", mode="min", patience=patience, restore_best_weights=True
    )
    model.fit(
        *train,
        epochs=epochs,
        batch_size=batch_size,
        validation_data=validation,
        validation_batch_size=1000,
        callbacks=[best, EpochLine(label)],
        verbose=0,
    )
    return best.best_epoch + 1


def try_candidate(results, settings, make, data, samples, **training):
    """Trains a candidate, unless it is done, and appends its rows.

    Args:
        results: A `shared.results.Results`.
        settings: What identifies the run, as columns of the CSV.
        make: Function without arguments that returns the network.
        data: Training, validation and test examples.
        samples: The number of samples of the noise.
        **training: Arguments of `fit`.
    """
    if results.select(**settings):
        return
    keras.utils.set_random_seed(settings["seed"])
    model = make()
    start = time.time()
    label = ", ".join(map(str, settings.values()))
    epoch = fit(model, data[:2], label, **training)
    seconds = time.time() - start
    rows = []
    for prediction in ("mean", "sampled"):
        if prediction == "sampled" and settings["method"] == "plain":
            continue
        found = {}
        for name, (x, y) in zip(("validation", "test"), data[1:], strict=True):
            if prediction == "mean":
                probabilities = mean_prediction(model, x)
            else:
                probabilities = sampled_prediction(model, x, samples)
            for score, value in judge(y, probabilities).items():
                found[f"{name}_{score}"] = f"{value:.5f}"
        rows.append(
            {
                **settings,
                "prediction": prediction,
                "best_epoch": epoch,
                **found,
                "rates": joined(f"{rate:.3f}" for rate in mean_rates(model)),
                "seconds": f"{seconds:.0f}",
                **versions(),
            }
        )
    for row in rows:
        results.append(row)


def chosen(rows):
    """Returns the rows of the rate with the lowest validation NLL."""
    by_rate = {}
    for row in rows:
        by_rate.setdefault(row["rate"], []).append(row)
    # A rate that some seed lacks is not compared yet.
    number = max(map(len, by_rate.values()))
    whole = [rows for rows in by_rate.values() if len(rows) == number]
    return min(
        whole,
        key=lambda rows: np.mean([float(r["validation_nll"]) for r in rows]),
    )


def report(rows):
    """Prints a table of the rows of one task.

    The NLL is also compared with that of the plain network of the same seed.
    """
    print("| | rate | seeds | epochs | error % | NLL | ECE | NLL - plain |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    plain = {
        row["seed"]: float(row["test_nll"])
        for row in rows
        if row["method"] == "plain"
    }
    for method, title in TITLES.items():
        for prediction in ("mean", "sampled"):
            own = [
                row
                for row in rows
                if (row["method"], row["prediction"]) == (method, prediction)
            ]
            if not own:
                continue
            best = chosen(own)
            epochs = np.mean([int(row["best_epoch"]) for row in best])
            scores = [
                spread([float(row[f"test_{name}"]) for row in best], digits)
                for name, digits in SCORES.items()
            ]
            differences = [
                float(row["test_nll"]) - plain[row["seed"]]
                for row in best
                if method != "plain" and row["seed"] in plain
            ]
            scores.append(spread(differences, 3) if differences else "")
            rate = best[0]["rate"] if method == "dropout" else "-"
            if method in NOISE or method == "last":
                rate = "learned"
            name = title if method == "plain" else f"{title}, {prediction}"
            print(
                f"| {name} | {rate} | {len(best)} | {epochs:.0f} "
                f"| {' | '.join(scores)} |"
            )
