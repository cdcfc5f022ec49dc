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
    "type B, additive": (
        "variational_b",
        {"granularity": "weight", "parameterization": "additive"},
    ),
}
GROWING = ("Dense", BASE, "type A", "type B, layer", "type B, weight")
INFERENCE = ("Dense", "type A", "type B, layer", "type B, weight")
# Batches in an epoch of `fit`.
EPOCH = 10
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
    if what == "fit":
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
        self.rows = []

    def time(self, what, network, size, batch_size, names=tuple(MODELS)):
        self.announce(what, network, size, batch_size)
        steps = {
            name: step_of(what, build(name, network, size), batch_size)
            for name in names
        }
        base = BASE if BASE in names else names[0]
        seconds = timing.alternate(steps, self.options.rounds)
        table = timing.compare(seconds, base)
        timing.show(table, base)
        self.write(what, network, size, batch_size, table)

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
            self.rows.append(row)


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
            benchmark.time("train_on_batch", "mlp", widths, batch_size)
    if "fit" in parts and not quick:
        benchmark.time("fit", "mlp", widths, 128)
    if "cifar" in parts:
        for size in [1] if quick else [1, 2]:
            names = GROWING if quick else tuple(MODELS)
            benchmark.time("train_on_batch", "cifar", size, 128, names)
    if "inference" in parts:
        for network, size in [("mlp", widths), ("cifar", 1)]:
            benchmark.time("inference", network, size, 128, INFERENCE)
    if "memory" in parts:
        benchmark.memory(widths, 128)
    if "growth" in parts:
        step, few = "train_on_batch", 2 if quick else 9
        for width in [256, 512, 1024, 2048, 4096][:few]:
            benchmark.time(step, "mlp", 2 * [width], 128, GROWING)
        for batch_size in [32, 128, 512, 2048][:few]:
            benchmark.time(step, "mlp", 2 * [512], batch_size, GROWING)
        for depth in [1, 2, 4, 8][:few]:
            benchmark.time(step, "mlp", depth * [512], 128, GROWING)


def draw(rows, options):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture without matplotlib: pip install matplotlib")
        return
    groups = {}
    for row in rows:
        if row["what"] in ("train_on_batch", "fit"):
            key = (row["what"], row["network"], row["size"], row["batch_size"])
            groups.setdefault(key, []).append(row)
    full = [own for own in groups.values() if len(own) > len(GROWING)]
    grown = {
        "width": [
            own
            for (_, network, size, batch), own in groups.items()
            if network == "mlp" and len(own) == len(GROWING) and batch == 128
            if len(str(size).split()) == 2
        ],
        "batch size": [
            own
            for (_, network, size, _), own in groups.items()
            if network == "mlp" and len(own) == len(GROWING)
            if size == "512 512"
        ],
        "depth": [
            own
            for (_, network, size, batch), own in groups.items()
            if network == "mlp" and len(own) == len(GROWING) and batch == 128
            if set(str(size).split()) == {"512"}
        ],
    }
    grown = {name: own for name, own in grown.items() if len(own) > 1}
    columns = max(len(full), len(grown), 1)
    heights = bool(full) + bool(grown)
    if not heights:
        return
    figure = Figure(figsize=(4 * columns, 4 * heights), layout="constrained")
    figure.suptitle(
        f"{rows[0]['backend']}, threads: {rows[0]['threads']}; ratio of the "
        f"time of a step to {BASE}, with quartiles"
    )
    axes = figure.subplots(heights, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for panel, own in zip(axes[0], full, strict=False):
        draw_ratios(panel, own)
    for panel, (name, own) in zip(axes[-1], grown.items(), strict=False):
        draw_growth(panel, name, own)
    picture = os.path.splitext(options.out)[0] + (
        f"_{rows[0]['backend'].split()[0]}_{options.threads}.png"
    )
    figure.savefig(picture, dpi=120)
    print(f"\nDrew {picture}")


def draw_ratios(panel, rows):
    panel.set_visible(True)
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
        f"{first['what']}, {first['network']} {first['size']}, "
        f"batch {first['batch_size']}",
        size="medium",
    )


def draw_growth(panel, name, groups):
    panel.set_visible(True)
    place = {
        "width": lambda row: int(row["size"].split()[0]),
        "batch size": lambda row: row["batch_size"],
        "depth": lambda row: len(row["size"].split()),
    }[name]
    groups = sorted(groups, key=lambda rows: place(rows[0]))
    for number, model in enumerate(GROWING):
        panel.plot(
            [place(rows[number]) for rows in groups],
            [float(rows[number]["ratio"]) for rows in groups],
            "o-",
            label=model,
        )
    panel.set(xlabel=name, xscale="log", ylabel="ratio", ylim=(0, None))
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
    option("--rounds", type=int, help="30 if not given, or 8 if quick")
    option("--threads", type=int, help="all cores if not given")
    option("--out", default="benchmark.csv")
    options = parser.parse_args()
    options.rounds = options.rounds or (8 if options.quick else 30)
    options.threads = options.threads or timing.cores()
    timing.limit_threads(options.threads)
    benchmark = Benchmark(options)
    run(benchmark, options)
    draw(benchmark.rows, options)


if __name__ == "__main__":
    main()
