"""The protocol `converged` of Figure 1, fixed before the first run.

1. The number of epochs is a setting of a method at a size. It is chosen with
   10,000 of the training examples held out: the seeds 0 and 1 are trained on
   the others, and the epoch with the lowest mean validation error is taken.
   This training ends when the error has found no new minimum for 30 epochs, or
   for half as many epochs as the best one had, whichever is more: fixed
   dropout still improves after 170 epochs, in small steps. It ends after 300
   epochs at the latest, at widths above 100 after 150.
2. Every seed is trained anew on all training examples for that many epochs.
3. Validation and test errors are those of the averaged weights without noise;
   the exponential average has a horizon of 20 epochs, corrected for its
   beginning. Nothing is chosen by the test error, which is computed once.
4. Adam with its defaults, batches of 100. A seed decides the initial weights,
   the order of the examples and the noise.

The validation errors of all epochs go to a CSV file of their own, so that one
can see which methods had converged.
"""

import os
import time
import typing

import jax
import numpy as np

from scanned_training import ScannedTraining
from shared.networks import kl_nats
from shared.networks import mean_rates
from shared.results import joined
from shared.results import versions

CHOOSING_SEEDS = (0, 1)


class Run(typing.NamedTuple):
    """The training of one or several seeds so far, epoch by epoch."""

    states: list
    errors: list  # The validation errors, for each epoch and seed.
    seconds: float  # The time of the processor.


class Checkpoint:
    """A run in a file. A kill leaves the old file or the new one."""

    def __init__(self, settings, name, options):
        parts = [settings[key] for key in settings if key != "seed"]
        stem = "_".join(map(str, [*parts, name])).replace(" ", "_")
        self.path = os.path.join(options.state, f"{stem}.npz")
        self.minutes = options.checkpoint_minutes
        self.last = time.monotonic()

    def restore(self, states):
        """Returns the saved run, or a new one with these states."""
        if not os.path.exists(self.path):
            return Run(states, [], 0.0)
        leaves, structure = jax.tree.flatten(states)
        with np.load(self.path) as file:
            saved = [file[f"leaf_{number}"] for number in range(len(leaves))]
            states = jax.tree.unflatten(structure, map(jax.numpy.array, saved))
            return Run(states, file["errors"].tolist(), float(file["seconds"]))

    def save_if_due(self, run):
        if time.monotonic() - self.last < 60 * self.minutes:
            return
        arrays = {
            f"leaf_{number}": np.asarray(leaf)
            for number, leaf in enumerate(jax.tree.leaves(run.states))
        }
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(f"{self.path}.new", "wb") as file:
            np.savez(file, errors=run.errors, seconds=run.seconds, **arrays)
        os.replace(f"{self.path}.new", self.path)
        self.last = time.monotonic()

    def remove(self):
        if os.path.exists(self.path):
            os.remove(self.path)


def train(training, seeds, held_out, has_ended, checkpoint, label):
    """Trains all seeds epoch by epoch until `has_ended(errors)` is true."""
    run = checkpoint.restore([training.begin(seed) for seed in seeds])
    while not has_ended(run.errors):
        start = time.process_time()
        states, losses = zip(
            *[
                training.epoch(state, seed)
                for state, seed in zip(run.states, seeds, strict=True)
            ],
            strict=True,
        )
        errors = [
            training.error_percent(state, held_out) if held_out else np.nan
            for state in states
        ]
        seconds = time.process_time() - start
        run = Run(list(states), [*run.errors, errors], run.seconds + seconds)
        shown = f", validation {np.mean(errors):.2f}%" if held_out else ""
        print(
            f"\r{label}: epoch {len(run.errors)}, loss {np.mean(losses):.4f}"
            f"{shown}, {seconds:.1f} s" + 8 * " ",
            end="",
            flush=True,
        )
        checkpoint.save_if_due(run)
    return run


def best_epoch(errors):
    """Returns the first epoch, from 1 on, with the lowest mean error."""
    return int(np.argmin(np.mean(errors, axis=1))) + 1


def is_chosen(errors, limit, patience):
    if not errors:
        return False
    best = best_epoch(errors)
    waited = len(errors) - best
    return len(errors) >= limit or waited >= max(patience, best / 2)


def training_of(settings, build, data):
    return ScannedTraining(
        lambda: build(settings, len(data[0])),
        data,
        settings["batch_size"],
        settings["average"],
        scan=settings["data"] != "cifar10",
    )


def choose_epochs(build, data, held, settings, options):
    """Returns a row for the CSV of choices."""
    (x, y), limit = data, settings["epochs"]
    run = train(
        training_of(settings, build, (x[:-held], y[:-held])),
        CHOOSING_SEEDS,
        (x[-held:], y[-held:]),
        lambda errors: is_chosen(errors, limit, settings["patience"]),
        Checkpoint(settings, "choice", options),
        f"{title_of(settings)}, choice",
    )
    best = best_epoch(run.errors)
    print(f"\n{title_of(settings)}: {best} epochs of {len(run.errors)}")
    return {
        **settings,
        "best_epoch": best,
        "validation_error": f"{np.mean(run.errors[best - 1]):.3f}",
        **{
            f"errors_{seed}": joined(f"{error:.2f}" for error in errors)
            for seed, errors in zip(
                CHOOSING_SEEDS, np.transpose(run.errors), strict=True
            )
        },
        "seconds": f"{run.seconds:.0f}",
        **versions(),
    }


def train_anew(training, test, settings, choice, options):
    """Trains one run and returns its row for the CSV file."""
    epochs, seed = int(choice["best_epoch"]), settings["seed"]
    label = f"{title_of(settings)}, seed {seed} of {epochs} epochs"
    run = train(
        training,
        [seed],
        None,
        lambda errors: len(errors) >= epochs,
        Checkpoint(settings, seed, options),
        label,
    )
    (state,) = run.states
    error = training.error_percent(state, test)
    model = training.averaged_model(state)
    rates = mean_rates(model)
    print(f"\n{label}: test error {error:.2f}%, rates {rates or 'fixed'}")
    return {
        **settings,
        "best_epoch": epochs,
        "validation_error": choice["validation_error"],
        "test_error": f"{error:.2f}",
        "rates": joined(f"{rate:.4f}" for rate in rates),
        "kl_nats": f"{kl_nats(model):.1f}",
        "train_examples": len(training.data[0]),
        "seconds": f"{run.seconds:.0f}",
        **versions(),
    }


def title_of(settings):
    told = ("method", "size", "initial_rates", "granularity", "rate_speed")
    return joined(settings[name] for name in told if settings[name])


def run_all(groups, build, data, held, results, choices, options):
    """Chooses the epochs and trains anew, where the CSV files have no row.

    Args:
        groups: Lists of the settings of runs that differ in the seed alone.
        build: Function of settings and the number of training examples that
            returns the network.
        data: Training and test examples and labels.
        held: Number of examples to hold out for the choice.
        results, choices: `shared.results.Results`.
        options: With `state`, a folder, and `checkpoint_minutes`.
    """
    data, test = jax.tree.map(jax.numpy.asarray, data)
    for group in groups:
        todo = [run for run in group if not results.select(**run)]
        if not todo:
            continue
        shared = {name: todo[0][name] for name in todo[0] if name != "seed"}
        if not choices.select(**shared):
            choices.append(choose_epochs(build, data, held, shared, options))
            Checkpoint(shared, "choice", options).remove()
        (choice,) = choices.select(**shared)
        training = training_of(shared, build, data)
        for run in todo:
            results.append(train_anew(training, test, run, choice, options))
            Checkpoint(run, run["seed"], options).remove()
