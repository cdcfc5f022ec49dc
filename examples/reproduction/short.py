"""The protocol `short` of Figure 1: `fit` with early stopping.

10,000 of the training examples are held out. Each run ends when its validation
error has found no new minimum for 10 epochs, or after 60 epochs. The test error
is that of the averaged weights of the best epoch (momentum 0.999). Fixed
dropout has not converged by then: see `converged`.
"""

import time

import keras

from shared.networks import kl_nats
from shared.networks import mean_rates
from shared.results import joined
from shared.results import versions
from shared.training import EpochLine
from shared.training import compile_classifier
from shared.training import error_percent


def train(model, train_data, validation_data, settings, label):
    """Leaves the averaged weights of the best epoch in the model.

    Returns the number of that epoch, from 1 on.
    """
    compile_classifier(
        model,
        len(train_data[0]),
        keras.optimizers.Adam(use_ema=True, ema_momentum=settings["average"]),
        settings["kl_downscale"] or 1.0,
    )
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_accuracy",
        mode="max",
        patience=settings["patience"],
        restore_best_weights=True,
    )
    model.fit(
        *train_data,
        validation_data=validation_data,
        batch_size=settings["batch_size"],
        validation_batch_size=1000,
        epochs=settings["epochs"],
        callbacks=[
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            stopping,
            EpochLine(label),
        ],
        verbose=0,
    )
    return stopping.best_epoch + 1


def run(settings, build, data, held, label):
    """Trains one run and returns its row for the CSV file."""
    (x, y), test = data
    keras.utils.set_random_seed(settings["seed"])
    start = time.time()
    model = build(settings)
    validation = (x[-held:], y[-held:])
    best_epoch = train(
        model, (x[:-held], y[:-held]), validation, settings, label
    )
    errors = {
        f"{name}_error": f"{error_percent(model, held_out):.2f}"
        for name, held_out in [("validation", validation), ("test", test)]
    }
    rates = mean_rates(model)
    return {
        **settings,
        "best_epoch": best_epoch,
        **errors,
        "rates": joined(f"{rate:.4f}" for rate in rates),
        "kl_nats": f"{kl_nats(model):.1f}",
        "train_examples": len(x) - held,
        "seconds": f"{time.time() - start:.0f}",
        **versions(),
    }


def run_all(groups, build, data, held, results):
    """Trains what the CSV file does not have."""
    todo = [
        settings
        for group in groups
        for settings in group
        if not results.select(**settings)
    ]
    for number, settings in enumerate(todo):
        label = (
            f"run {number + 1}/{len(todo)}: {settings['method']}, "
            f"size {settings['size']}, seed {settings['seed']}"
        )
        row = run(settings, build, data, held, label)
        results.append(row)
        print(
            f"\r{label}: test error {row['test_error']}%, epoch "
            f"{row['best_epoch']}, rates {row['rates'] or 'fixed'}" + 30 * " ",
            flush=True,
        )
