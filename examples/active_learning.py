"""How many labels does a network need if it may choose them?

    python examples/active_learning.py --data-dir FOLDER

This program starts with a few labels of MNIST. In each round it trains a
network on the labels it has, and asks for more: of random images, or of those
with the highest mutual information of label and weights, which
`keras_vdrop.predict` gives (Houlsby et al. 2011, Gal et al. 2017). It stops at
a test accuracy of 95%, and reports the number of labels that this took.

Each finished run is appended to a CSV file. A second start skips the runs in
that file.
"""

import keras
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
from shared.training import steps_per_execution

STRATEGIES = ("random", "mutual information")
BATCH_SIZE = 50


class Learner:
    """A network that is trained anew on more and more labels.

    Each training has the same number of steps, so that nothing is compiled
    twice.
    """

    def __init__(self, inputs, options, seed):
        keras.utils.set_random_seed(seed)
        dense = keras_vdrop.VariationalDense
        self.model = keras.Sequential(
            [
                keras.Input((inputs,)),
                *[dense(width, "relu", rate=0.2) for width in options.widths],
                dense(10, rate=0.2),
            ]
        )
        keras_vdrop.set_num_examples(self.model, options.first)
        self.model.compile(
            "adam",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution(min(50, options.steps)),
        )
        self.model.optimizer.build(self.model.trainable_variables)
        self.options = options

    def initial(self):
        """Returns the values of a new network."""
        fresh = keras.models.clone_model(self.model)
        return fresh.get_weights()

    def fit(self, x, y, generator):
        self.model.set_weights(self.initial())
        for variable in self.model.optimizer.variables:
            if variable is not self.model.optimizer.learning_rate:
                variable.assign(np.zeros(variable.shape))
        keras_vdrop.set_num_examples(self.model, len(x))
        # Whole epochs in random order, one after the other.
        number = self.options.steps * BATCH_SIZE
        epochs = -(-number // len(x))
        rows = [generator.permutation(len(x)) for _ in range(epochs)]
        rows = np.concatenate(rows)[:number]
        self.model.fit(
            x[rows], y[rows], batch_size=BATCH_SIZE, shuffle=False, verbose=0
        )

    def accuracy(self, x, y):
        logits = self.model.predict(x, batch_size=1000, verbose=0)
        return float(np.mean(logits.argmax(-1) == y))

    def mutual_information(self, x):
        found = keras_vdrop.predict(
            self.model,
            x,
            num_samples=self.options.samples,
            batch_size=1000,
            from_logits=True,
            verbose=0,
        )
        return found.mutual_information


def run(strategy, seed, train, test, options, results, settings):
    """Appends a row for each round, once the accuracy is reached."""
    generator = np.random.default_rng(seed)
    learner = Learner(train[0].shape[1], options, seed)
    order = generator.permutation(len(train[0]))
    known, rest = order[: options.first], order[options.first :]
    rows = []
    while True:
        learner.fit(train[0][known], train[1][known], generator)
        accuracy = learner.accuracy(*test)
        row = {
            **settings,
            "labels": len(known),
            "accuracy": f"{accuracy:.4f}",
            **versions(),
        }
        rows.append(row)
        print(
            f"{strategy}, seed {seed}: {len(known)}, {accuracy:.2%}", flush=True
        )
        if accuracy >= options.accuracy or len(known) >= options.most:
            break
        rest = generator.permutation(rest)
        pool = rest[: options.pool]
        if strategy == "mutual information":
            doubt = learner.mutual_information(train[0][pool])
            pool = pool[np.argsort(-doubt)]
        chosen = pool[: options.each]
        known = np.concatenate([known, chosen])
        rest = np.setdiff1d(rest, chosen)
    for row in rows:
        results.append(row)


def settings_of(strategy, seed, options):
    return {
        "data": options.data,
        "strategy": strategy,
        "widths": joined(options.widths),
        "steps": options.steps,
        "first": options.first,
        "each": options.each,
        "pool": options.pool,
        "samples": options.samples,
        "goal": options.accuracy,
        "seed": seed,
    }


def curves_of(strategy, results, options):
    """Returns labels and accuracies of each finished seed."""
    found = []
    for seed in options.seeds:
        rows = results.select(**settings_of(strategy, seed, options))
        if rows:
            labels = [int(row["labels"]) for row in rows]
            found.append((labels, [float(row["accuracy"]) for row in rows]))
    return found


def report(results, options):
    print(f"\nlabels for {options.accuracy:.0%}, mean ± deviation\n")
    for strategy in options.strategies:
        curves = curves_of(strategy, results, options)
        needed = [labels[-1] for labels, _ in curves]
        reached = sum(a[-1] >= options.accuracy for _, a in curves)
        if needed:
            print(
                f"| {strategy} | {spread(needed, 0)} | {joined(needed)} | "
                f"{reached} of {len(needed)} seeds |"
            )


def paint(figure, results, options):
    axes = figure.subplots()
    for number, strategy in enumerate(options.strategies):
        curves = curves_of(strategy, results, options)
        for place, (labels, accuracies) in enumerate(curves):
            axes.plot(
                labels,
                100 * np.array(accuracies),
                color=f"C{number}",
                alpha=0.7,
                label=None if place else strategy,
            )
    axes.axhline(100 * options.accuracy, color="k", linestyle=":")
    axes.set(xlabel="labels", ylabel="test accuracy, %", xscale="log")
    axes.legend()


def main():
    parser = new_parser(__doc__)
    add_data(parser)
    add_widths(parser, default=[200, 200])
    option = parser.add_argument
    option(
        "--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES)
    )
    option("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    option("--accuracy", type=float, default=0.95, help="of the test set")
    option("--first", type=int, default=100, help="labels of the first round")
    option("--each", type=int, default=100, help="labels of each other round")
    option("--most", type=int, default=5000, help="labels to stop at")
    option("--pool", type=int, default=5000, help="random images to rank")
    option("--steps", type=int, default=1000, help="of each training")
    option("--samples", type=int, default=16)
    option("--out", default="active_learning.csv")
    options = parser.parse_args()
    train, test = data.load(options.data, options.data_dir)
    results = Results(options.out)
    for seed in options.seeds:
        for strategy in options.strategies:
            settings = settings_of(strategy, seed, options)
            if not results.select(**settings):
                run(strategy, seed, train, test, options, results, settings)
    report(results, options)
    plotting.draw(
        plotting.beside(options.out, ".png"),
        (6, 4),
        lambda figure: paint(figure, results, options),
    )


if __name__ == "__main__":
    main()
