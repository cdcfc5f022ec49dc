"""Figure 1 of the paper: when does variational dropout beat fixed dropout?

    python examples/reproduction/figure1.py mnist --data-dir FOLDER
    python examples/reproduction/figure1.py cifar10 --data-dir FOLDER

This program trains every method at every size for every seed: Adam with its
defaults and temporal averaging, dropout rates 0.2 before the first layer and
0.5 before the others. The number of epochs is chosen on a validation set;
converged.py and short.py say how.

Each finished run is appended to a CSV file. A second start skips the runs in
that file. With the protocol `converged` a run that was killed is resumed. In
the end, and with --report alone, the program prints tables and draws the errors
and the learned rates over the size.
"""

import itertools
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import figure1_report
from shared import plotting
from shared.methods import METHODS
from shared.methods import RATES
from shared.options import add_data_dir
from shared.options import new_parser
from shared.results import Results
from shared.results import joined

SIZES = {
    "mnist": (100, 250, 500, 750, 1000, 1250),
    "digits": (50, 100),
    "cifar10": (1, 2),
}
# Examples held out of the training set to choose the number of epochs.
VALIDATION = {"mnist": 10_000, "digits": 297, "cifar10": 10_000}
# At most so many epochs, so many without improvement, and the average of the
# weights: its horizon in epochs, or its momentum.
PROTOCOLS = {
    "converged": {"epochs": 150, "patience": 30, "average": 20.0},
    "short": {"epochs": 60, "patience": 10, "average": 0.999},
}
# Fixed dropout takes longest to converge where it fits least.
MORE_EPOCHS = {("converged", "mnist", 100): 300}


def parse_arguments():
    parser = new_parser(__doc__)
    add_data_dir(parser)
    option = parser.add_argument
    option("data", choices=SIZES, help="digits need no download")
    option("--protocol", choices=PROTOCOLS, default="converged")
    option(
        "--widths",
        "--sizes",
        dest="sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="units of a hidden layer, or k of the convolutional network; "
        "those of the figure if not given",
    )
    option("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    option("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    for name, meaning in (
        ("epochs", "at most"),
        ("patience", "epochs without a lower validation error"),
        ("average", "of the weights: horizon in epochs; for short, momentum"),
    ):
        kind = float if name == "average" else int
        option(f"--{name}", type=kind, help=f"{meaning}; the protocol's")
    option("--batch-size", type=int, default=100)
    option(
        "--granularity",
        default="layer",
        choices=("layer", "input", "output", "weight"),
        help="what a learned rate belongs to",
    )
    option(
        "--rates",
        nargs=2,
        type=float,
        default=list(RATES),
        metavar="P",
        help="of dropout before the first layer and before the others: fixed, "
        "or where learning begins",
    )
    option("--kl", default="polynomial", help="divergence of learned rates")
    option("--kl-downscale", type=float, default=1.0, help="divides it further")
    option(
        "--rate-speed",
        type=float,
        default=1.0,
        help="how fast rates are learned; 1 is the paper's",
    )
    option(
        "--backend",
        choices=("jax", "tensorflow", "torch"),
        default=os.environ.get("KERAS_BACKEND", "jax"),
        help="the protocol converged needs jax",
    )
    option("--out", help="CSV file; pictures go beside it")
    option("--state", help="folder of unfinished runs; beside the CSV file")
    option("--checkpoint-minutes", type=float, default=5.0)
    option("--report", action="store_true", help="of the CSV, run nothing")
    options = parser.parse_args()
    options.sizes = options.sizes or SIZES[options.data]
    ending = "_converged" if options.protocol == "converged" else ""
    options.out = options.out or f"figure1_{options.data}{ending}.csv"
    options.state = options.state or plotting.beside(options.out, "_state")
    correlated = {"variational_a", "variational_a2"} & set(options.methods)
    if correlated and options.granularity in ("output", "weight"):
        parser.error(
            f"--granularity {options.granularity} is for variational_b: the "
            "noise of type A belongs to the inputs"
        )
    if options.protocol == "converged" and options.backend != "jax":
        parser.error("--protocol converged runs on jax alone")
    return options


def protocol_of(size, options):
    """Returns the columns of the CSV that the protocol decides."""
    settings = dict(PROTOCOLS[options.protocol])
    key = (options.protocol, options.data, size)
    settings["epochs"] = MORE_EPOCHS.get(key, settings["epochs"])
    given = {name: getattr(options, name) for name in settings}
    settings.update({k: v for k, v in given.items() if v is not None})
    return settings


def settings_of(method, size, seed, options):
    """Returns the first columns of the CSV, which identify a run."""
    adaptive = method.startswith("variational")
    protocol = protocol_of(size, options)
    return {
        "data": options.data,
        "method": method,
        "size": size,
        "seed": seed,
        "epochs": protocol["epochs"],
        "patience": protocol["patience"],
        "batch_size": options.batch_size,
        "average": protocol["average"],
        "initial_rates": joined(options.rates) if method != "none" else "",
        "granularity": options.granularity if adaptive else "",
        "kl": options.kl if adaptive else "",
        "kl_downscale": options.kl_downscale if adaptive else "",
        "rate_speed": options.rate_speed if adaptive else "",
    }


def build(settings, shape, num_examples=None):
    """Returns the network of a run, with the N of its KL if given."""
    from shared import networks
    from shared.training import set_num_examples

    noise, rates = None, RATES
    if settings["granularity"]:
        names = ("granularity", "kl", "rate_speed")
        noise = {name: settings[name] for name in names}
    if settings["initial_rates"]:
        rates = [float(rate) for rate in settings["initial_rates"].split()]
    size = settings["size"]
    if settings["data"] == "cifar10":
        network = networks.convolutional_network
    else:
        network, size = networks.dense_network, 3 * [size]
    model = network(settings["method"], shape, size, noise, rates)
    if num_examples is not None:
        downscale = settings["kl_downscale"] or 1.0
        set_num_examples(model, num_examples, downscale)
    return model


def run_all(results, options):
    """Runs what the CSV file does not have."""
    groups = [
        [settings_of(method, size, seed, options) for seed in options.seeds]
        for size, method in itertools.product(options.sizes, options.methods)
    ]
    runs = list(itertools.chain(*groups))
    done = sum(bool(results.select(**settings)) for settings in runs)
    print(f"{len(runs)} runs, {done} of them done", flush=True)
    if done == len(runs):
        return
    from shared.data import load

    data = load(options.data, options.data_dir)
    held, shape = VALIDATION[options.data], data[0][0].shape[1:]
    if options.protocol == "short":
        import short

        short.run_all(
            groups, lambda settings: build(settings, shape), data, held, results
        )
        return
    import converged

    converged.run_all(
        groups,
        lambda settings, number: build(settings, shape, number),
        data,
        held,
        results,
        Results(plotting.beside(options.out, "_validation.csv")),
        options,
    )


def main():
    options = parse_arguments()
    # Keras reads it when it is imported, so the modules that do so come later.
    os.environ["KERAS_BACKEND"] = options.backend
    results = Results(options.out)
    if not options.report:
        run_all(results, options)
    protocols = [protocol_of(size, options) for size in options.sizes]
    figure1_report.report(results, protocols, options)


if __name__ == "__main__":
    main()
