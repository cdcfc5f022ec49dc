"""The table and the pictures of `uncertainty.py`."""

import functools
import os

import numpy as np

import keras_vdrop
from shared import plotting
from shared.results import joined
from shared.results import spread
from shared.uncertainty_scores import SCORES

# What the pictures of calibration and of refusal show.
SHOWN = (
    "plain",
    "MC dropout",
    "ensemble of 5",
    "correlated",
    "dropout + normal prior",
)


def settings_of(name, samples, options):
    """Returns what identifies the runs of a method, as columns."""
    return {
        "data": options.data,
        "method": name,
        "widths": joined(options.widths),
        "epochs": options.epochs,
        "samples": samples,
    }


def folder_of(options):
    return plotting.beside(options.out, "_state")


def kept(settings, seed, options):
    """Returns the path of the predictions of a run."""
    os.makedirs(folder_of(options), exist_ok=True)
    words = [*settings.values(), seed]
    name = "_".join(str(word).replace(" ", "-") for word in words)
    return os.path.join(folder_of(options), f"predictions_{name}.npy")


def report(results, samples_of, options):
    """Prints the table, and returns the rows of each method.

    Args:
        results: A `shared.results.Results`.
        samples_of: The number of samples of each method.
        options: The options of the program.
    """
    rows_of = {}
    print("\nmean ± standard deviation over the seeds\n")
    print(f"| | {' | '.join(SCORES)} | seeds | training, s | prediction, s |")
    for name, samples in samples_of.items():
        rows = results.select(**settings_of(name, samples, options))
        rows = [row for row in rows if int(row["seed"]) in options.seeds]
        if rows:
            rows_of[name] = rows
            print(f"| {name} | {' | '.join(cells_of(rows))} |")
    return rows_of


def draw(rows_of, samples_of, labels, options):
    """Draws the pictures.

    Args:
        rows_of: What `report` returns.
        samples_of: The number of samples of each method.
        labels: Those of the test set.
        options: The options of the program.
    """
    try:
        for ending, plot in (
            (".png", keras_vdrop.plot_reliability),
            ("_risk.png", keras_vdrop.plot_risk_coverage),
        ):
            path = plotting.beside(options.out, ending)
            draw_predictions(plot, path, labels, rows_of, samples_of, options)
    except ImportError as error:
        print(error)
        return
    plotting.draw(
        plotting.beside(options.out, "_rotated.png"),
        (11, 4.5),
        functools.partial(paint_rotations, rows_of=rows_of),
    )


def cells_of(rows):
    cells = [
        spread([float(row[key]) for row in rows], digits)
        for key, digits in zip(SCORES, (2, 4, 4, 4, 3, 3), strict=True)
    ]
    times = [
        f"{np.mean([float(row[key]) for row in rows]):.0f}"
        for key in ("train_seconds", "predict_seconds")
    ]
    return [*cells, str(len(rows)), *times]


def draw_predictions(plot, path, labels, rows_of, samples_of, options):
    """Draws the predictions of all seeds that each method has, together."""
    paths = {
        name: {
            row["seed"]: kept(
                settings_of(name, samples_of[name], options),
                row["seed"],
                options,
            )
            for row in rows
        }
        for name, rows in rows_of.items()
        if name in SHOWN
    }
    common = [
        str(seed)
        for seed in options.seeds
        if all(os.path.exists(own.get(str(seed), "")) for own in paths.values())
    ]
    if not paths or not common:
        print(f"No {path}: it needs a seed that each method has.")
        return
    shown = {
        name: np.concatenate([np.load(own[seed]) for seed in common])
        for name, own in paths.items()
    }
    plotting.save(plot(np.tile(labels, len(common)), shown), path)


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
