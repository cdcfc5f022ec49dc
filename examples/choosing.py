"""Which noise to choose, for which kind of layer?

    python examples/choosing.py --data-dir FOLDER

This program trains small networks of six kinds with each candidate: no noise,
noise on each input with one alpha for a layer or for each input, noise on each
weight with one alpha for a layer, each output or each weight. It reports error
and likelihood on examples held out from the training set, the calibration, and
the time of a step. No test set is touched.

Each finished run is appended to a CSV file. A second start skips the runs in
that file. In the end the program prints a table.
"""

import time

import keras
import numpy as np

import keras_vdrop
from shared import choosing_tasks
from shared.networks import adaptive_layers
from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.results import joined
from shared.results import spread
from shared.results import versions

# The arguments of the variational layers, by the name of the candidate.
CANDIDATES = {
    "none": None,
    # As "correlated layer", but convolutions have independent noise of speed 1.
    "default": {"rate_speed": None},
    "correlated layer": {"noise": "correlated"},
    "correlated input": {"noise": "correlated", "granularity": "input"},
    "correlated layer, exact": {"noise": "correlated", "kl": "exact"},
    "independent layer": {"noise": "independent"},
    "independent output": {"noise": "independent", "granularity": "output"},
    "independent weight": {"noise": "independent", "granularity": "weight"},
    "correlated layer, speed 8": {"noise": "correlated", "rate_speed": 8},
    "correlated layer, plain": {"noise": "correlated", "rate_speed": 1},
    "independent layer, plain": {"noise": "independent", "rate_speed": 1},
    "independent weight, plain": {
        "noise": "independent",
        "granularity": "weight",
        "rate_speed": 1,
    },
}
SPEED = 32
COLUMNS = ("error", "nll", "sampled_error", "sampled_nll", "sampled_ece")


def run(task, candidate, seed, data_dir):
    """Trains one run and returns its row for the CSV file."""
    train, held_out = choosing_tasks.data(task, data_dir)
    arguments = CANDIDATES[candidate]
    if arguments is not None:
        arguments = {"rate": 0.05, "rate_speed": SPEED, **arguments}
    keras.utils.set_random_seed(seed)
    model = choosing_tasks.build(task, arguments)
    if arguments is not None:
        keras_vdrop.set_num_examples(model, len(train[0]))
    model.compile(
        keras.optimizers.Adam(choosing_tasks.LEARNING_RATES.get(task, 1e-3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=choosing_tasks.STEPS_PER_EXECUTION.get(task, 10),
    )
    clock = Clock()
    epochs = choosing_tasks.EPOCHS[task]
    batch_size = choosing_tasks.BATCH_SIZE
    model.fit(
        *train,
        epochs=epochs,
        batch_size=batch_size,
        callbacks=[clock],
        verbose=0,
    )
    steps = -(-len(train[0]) // batch_size)
    logits = model.predict(held_out[0], batch_size=1000, verbose=0)
    mean = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    sampled = mean
    rates = []
    if arguments is not None:
        sampled = keras_vdrop.predict(
            model,
            held_out[0],
            num_samples=16,
            batch_size=1000,
            from_logits=True,
            seed=0,
            verbose=0,
        ).mean
        rates = [
            float(np.mean(rate))
            for layer in adaptive_layers(model)
            for rate in keras.tree.flatten(layer.dropout_rates())
        ]
    error, nll, _ = scores(held_out[1], mean)
    sampled_error, sampled_nll, ece = scores(held_out[1], sampled)
    return {
        "error": f"{error:.2f}",
        "nll": f"{nll:.4f}",
        "sampled_error": f"{sampled_error:.2f}",
        "sampled_nll": f"{sampled_nll:.4f}",
        "sampled_ece": f"{ece:.4f}",
        "milliseconds": f"{1000 * clock.shortest / steps:.2f}",
        "rates": joined(f"{rate:.4f}" for rate in rates),
        **versions(),
    }


class Clock(keras.callbacks.Callback):
    """The processor's time of the shortest epoch."""

    shortest = float("inf")

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        self.shortest = min(self.shortest, time.process_time() - self.start)


def scores(y, probabilities):
    """Returns the error in %, the NLL in nats and the calibration error."""
    found = []
    for metric in (
        keras.metrics.SparseCategoricalAccuracy(),
        keras_vdrop.metrics.NegativeLogLikelihood(from_logits=False),
        keras_vdrop.metrics.ExpectedCalibrationError(from_logits=False),
    ):
        metric.update_state(y, probabilities)
        found.append(float(metric.result()))
    return 100 * (1 - found[0]), found[1], found[2]


def show(results, tasks, candidates):
    """Prints a table for each task, as in docs/choosing.md."""
    for task in tasks:
        print(f"\n{task}\n\n| | error | NLL | sampled error | NLL | ECE | ms |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for candidate in candidates:
            rows = results.select(task=task, candidate=candidate)
            if not rows:
                continue
            cells = [
                spread([float(row[name]) for row in rows], digits)
                for name, digits in zip(COLUMNS, (2, 3, 2, 3, 3), strict=True)
            ]
            each = np.median([float(row["milliseconds"]) for row in rows])
            print(f"| {candidate} | {' | '.join(cells)} | {each:.1f} |")


def main():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    parser.add_argument("--out", default="choosing.csv", help="CSV file")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    tasks = list(choosing_tasks.EPOCHS)
    parser.add_argument("--tasks", nargs="+", default=tasks, choices=tasks)
    parser.add_argument(
        "--candidates",
        nargs="+",
        default=list(CANDIDATES),
        choices=list(CANDIDATES),
    )
    parser.add_argument(
        "--report", action="store_true", help="print the table, train nothing"
    )
    options = parser.parse_args()
    results = Results(options.out)
    for seed in options.seeds:
        for task in options.tasks:
            for candidate in options.candidates:
                settings = {"task": task, "candidate": candidate, "seed": seed}
                if options.report or results.select(**settings):
                    continue
                row = run(task, candidate, seed, options.data_dir)
                results.append({**settings, **row})
                print(joined([*settings.values(), *row.values()]), flush=True)
    show(results, options.tasks, options.candidates)


if __name__ == "__main__":
    main()
