"""What noise costs: training steps, inference and memory, as ratios.

    KERAS_BACKEND=jax python examples/benchmark.py --quick
    KERAS_BACKEND=jax python examples/benchmark.py --threads 1

Whole training steps, Adam included, of models that differ in their layers
alone. They take turns in one process, so that other work on the machine burdens
all alike, and the ratio of each to `Dense` with `GaussianDropout` is told: its
median over the rounds, and its quartiles. The data is random: the time does
not depend on it.

Results are appended to a CSV file, and those of this run are drawn. Run it once
for each backend and each number of threads.
"""

import argparse
import os

import timing

BASE = "GaussianDropout"
# By name: the method of experiments.py, and arguments of the noise.
MODELS = {
    "Dense": ("none", None),
    "Dropout": ("binary", None),
    BASE: ("gaussian_a", None),
    "type A": ("variational_a", None),
    "type B, layer": ("variational_b", {"granularity": "layer"}),
    "type B, output": ("variational_b", {"granularity": "output"}),
    "type B, input": ("variational_b", {"granularity": "input"}),
    "type B, weight": ("variational_b", {"granularity": "weight"}),
    "type B, weight, exact KL": (
        "variational_b",
        {"granularity": "weight", "kl": "exact"},
    ),
    "type B, additive": (
        "variational_b",
        {"granularity": "weight", "parameterization": "additive"},
    ),
}
GROWING = ("Dense", BASE, "type A", "type B, layer", "type B, weight")
INFERENCE = ("Dense", "type A", "type B, layer", "type B, weight")
# Batches in an epoch of `fit`.
EPOCH = 10
FIT = f"fit of {EPOCH} batches"
PARTS = ("mlp", "fit", "cifar", "inference", "memory", "growth")


def build(name, network, size):
    """A compiled model: `size` are the widths, or k of the convolutions."""
    import experiments

    method, noise = MODELS[name]
    if network == "mlp":
        model = experiments.dense_network(method, (784,), size, noise)
    else:
        shape = (32, 32, 3)
        model = experiments.convolutional_network(method, shape, size, noise)
    experiments.compile_classifier(model, 60_000, "adam")
    return model


def data_for(model, examples):
    import numpy as np

    generator = np.random.default_rng(0)
    shape = (examples, *model.input_shape[1:])
    x = generator.random(shape, dtype="float32")
    return x, generator.integers(10, size=examples)


def step_of(what, model, batch_size):
    """What is timed: it has ended when its result is a number or an array."""
    if what == FIT:
        x, y = data_for(model, EPOCH * batch_size)
        return lambda: model.fit(x, y, batch_size=batch_size, verbose=0)
    x, y = data_for(model, batch_size)
    if what == "inference":
        return lambda: model.predict_on_batch(x)
    return lambda: model.train_on_batch(x, y)


class Benchmark:
    """Measures one comparison after the other; prints and writes each."""

    def __init__(self, options):
        from experiments import Results
        from experiments import versions

        self.options = options
        self.results = Results(options.out)
        self.versions = versions()
        # What is drawn: comparisons of all models, and series of others.
        self.compared = []
        self.grown = {}
        # A size that is reached in more than one way is measured once.
        self.sizes = {}

    def time(self, what, network, size, batch_size, names=tuple(MODELS)):
        """Returns the rows it has written."""
        self.announce(what, network, size, batch_size)
        steps = {
            name: step_of(what, build(name, network, size), batch_size)
            for name in names
        }
        base = BASE if BASE in names else names[0]
        seconds = timing.alternate(steps, self.options.rounds)
        table = timing.compare(seconds, base)
        timing.show(table, base)
        return self.write(what, network, size, batch_size, table)

    def compare(self, *arguments):
        self.compared.append(self.time(*arguments))

    def grow(self, name, place, widths, batch_size):
        size = (*widths, batch_size)
        if size not in self.sizes:
            self.sizes[size] = self.time(
                "train_on_batch", "mlp", widths, batch_size, GROWING
            )
        self.grown.setdefault(name, []).append((place, self.sizes[size]))

    def memory(self, size, batch_size):
        """What torch keeps for the backward pass, weights included."""
        if not self.versions["backend"].startswith("torch"):
            print("\nMemory is measured on torch alone.")
            return
        self.announce("memory", "mlp", size, batch_size)
        kept = {
            name: kept_by_torch(build(name, "mlp", size), batch_size)
            for name in MODELS
        }
        table = {}
        for name, size_kept in kept.items():
            ratio = size_kept / kept["Dense"]
            table[name] = {"value": f"{size_kept:.1f}", "ratio": f"{ratio:.2f}"}
            print(f"{name:32s}{size_kept:>8.1f} MB{ratio:>8.2f} x Dense")
        self.write("memory", "mlp", size, batch_size, table)

    def announce(self, what, network, size, batch_size):
        print(
            f"\n{what}, {network} {size}, batch {batch_size}, "
            f"{self.versions['backend']}, threads: {self.options.threads}"
        )

    def write(self, what, network, size, batch_size, table):
        text = " ".join(map(str, size)) if isinstance(size, list) else size
        rows = []
        for name, columns in table.items():
            row = {
                "what": what,
                "network": network,
                "size": text,
                "batch_size": batch_size,
                "model": name,
                "value": columns.get("milliseconds", columns.get("value")),
                "unit": "MB" if what == "memory" else "ms",
                "ratio": columns["ratio"],
                "lower_quartile": columns.get("lower_quartile", ""),
                "upper_quartile": columns.get("upper_quartile", ""),
                "rounds": columns.get("rounds", 1),
                "threads": self.options.threads,
                **self.versions,
            }
            self.results.append(row)
            rows.append(row)
        return rows


def kept_by_torch(model, batch_size):
    """Storage of the weights, and of what is saved in a training step."""
    import keras
    import torch

    x, y = data_for(model, batch_size)
    x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    for variable in model.trainable_variables:
        keep(variable.value)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model.compute_loss(x, y, model(x, training=True), training=True)
    loss.backward()
    return sum(storages.values()) / 1e6


def run(benchmark, options):
    parts, quick = options.parts, options.quick
    widths = 3 * [options.width]
    if "mlp" in parts:
        for batch_size in [128] if quick else [128, 1000]:
            benchmark.compare("train_on_batch", "mlp", widths, batch_size)
    if "fit" in parts and not quick:
        benchmark.compare(FIT, "mlp", widths, 128)
    if "cifar" in parts:
        for size in [1] if quick else [1, 2]:
            names = GROWING if quick else tuple(MODELS)
            benchmark.compare("train_on_batch", "cifar", size, 128, names)
    if "inference" in parts:
        for network, size in [("mlp", widths), ("cifar", 1)]:
            benchmark.time("inference", network, size, 128, INFERENCE)
    if "memory" in parts:
        benchmark.memory(widths, 128)
    if "growth" in parts:
        most = 2 if quick else None
        for width in [256, 512, 1024, 2048, 4096][:most]:
            benchmark.grow("width", width, 2 * [width], 128)
        for batch_size in [32, 128, 512, 2048][:most]:
            benchmark.grow("batch size", batch_size, 2 * [512], batch_size)
        for depth in [1, 2, 4, 8][:most]:
            benchmark.grow("hidden layers", depth, depth * [512], 128)


def draw(benchmark, options):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture without matplotlib: pip install matplotlib")
        return
    lines = [own for own in (benchmark.compared, benchmark.grown) if own]
    if not lines:
        return
    columns = max(map(len, lines))
    size = (4 * columns, 4 * len(lines))
    figure = Figure(figsize=size, layout="constrained")
    backend = benchmark.versions["backend"]
    figure.suptitle(
        f"{backend}, threads: {options.threads}\n"
        f"ratio of the time to {BASE}, with quartiles"
    )
    axes = figure.subplots(len(lines), columns, squeeze=False)
    for line, panels in zip(lines, axes, strict=True):
        for unused in panels[len(line) :]:
            unused.remove()
    named = []
    for panel, rows in zip(axes[0], benchmark.compared, strict=False):
        draw_ratios(panel, rows)
        names = [row["model"] for row in rows]
        panel.tick_params(labelleft=names != named)
        named = names
    for panel, name in zip(axes[-1], benchmark.grown, strict=False):
        draw_growth(panel, name, benchmark.grown[name])
    stem = os.path.splitext(options.out)[0]
    picture = f"{stem}_{backend.split()[0]}_{options.threads}.png"
    figure.savefig(picture, dpi=120)
    print(f"\nDrew {picture}")


def draw_ratios(panel, rows):
    names = [row["model"] for row in rows]
    ratio, low, high = (
        [float(row[column]) for row in rows]
        for column in ("ratio", "lower_quartile", "upper_quartile")
    )
    errors = [
        [r - lower for r, lower in zip(ratio, low, strict=True)],
        [upper - r for r, upper in zip(ratio, high, strict=True)],
    ]
    panel.barh(names, ratio, xerr=errors, capsize=2)
    panel.axvline(1, color="black", linewidth=1)
    panel.invert_yaxis()
    first = rows[0]
    panel.set_title(
        f"{first['what']}\n{first['network']} {first['size']}, "
        f"batch {first['batch_size']}",
        size="medium",
    )


def draw_growth(panel, name, series):
    places = [place for place, _ in series]
    for number, model in enumerate(GROWING):
        ratios = [float(rows[number]["ratio"]) for _, rows in series]
        panel.plot(places, ratios, "o-", label=model)
    panel.set(xlabel=name, xscale="log", ylabel="ratio", ylim=(0, None))
    panel.set_xticks(places, places)
    panel.minorticks_off()
    panel.legend(fontsize="small")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--quick", action="store_true", help="in under two minutes")
    option("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    option("--width", type=int, default=1024, help="of the hidden layers")
    option("--rounds", type=int, help="30 if not given, or 5 if quick")
    option("--threads", type=int, help="all cores if not given")
    option("--out", default="benchmark.csv")
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 30)
    options.threads = options.threads or timing.cores()
    timing.limit_threads(options.threads)
    benchmark = Benchmark(options)
    run(benchmark, options)
    draw(benchmark, options)


if __name__ == "__main__":
    main()
