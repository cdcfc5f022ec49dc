"""The tables of docs/performance.md, from the CSV files of benchmark.py.

    cd docs/performance
    python ../../examples/benchmarks/benchmark_tables.py benchmark.csv

Prints a table for each of the comparisons in the file, and one for each way in
which a network grows. Of several measurements of a row the last counts.
"""

import argparse
import collections
import csv

NAMES = {
    "Dense": "`Dense`",
    "Dropout": "`Dense` + `Dropout`",
    "GaussianDropout": "`Dense` + `GaussianDropout`",
    "type B, layer": "type B, one alpha per layer",
    "type B, output": "type B, one alpha per output",
    "type B, input": "type B, one alpha per input",
    "type B, weight": "type B, one alpha per weight",
    "type B, weight, exact KL": "type B, one alpha per weight, exact KL",
    "type B, additive": "type B, additive (one variance per weight)",
}
BACKENDS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "torch"}
BASE = "GaussianDropout"
# In the order of the sizes that grow.
GROWTH = {
    "width": [f"{n} {n}" for n in (256, 512, 1024, 2048, 4096)],
    "batch size": ["32", "128", "512", "2048"],
    "hidden layers": [" ".join(n * ["512"]) for n in (1, 2, 4, 8)],
}


def read(path):
    """Returns ratios and quartiles: by comparison, model and backend."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            names = ("what", "network", "size", "batch_size", "threads")
            comparison = tuple(row[name] for name in names)
            backend = BACKENDS[row["backend"].split()[0]]
            numbers = [
                float(row[name] or "nan")
                for name in ("ratio", "lower_quartile", "upper_quartile")
            ]
            found[comparison][row["model"]][backend] = numbers
    return found


def line(cells):
    return f"| {' | '.join(cells)} |"


def show(title, heads, rows):
    print(f"\n{title}\n")
    print(line(["", *heads]))
    print(line(["---"] * (len(heads) + 1)))
    for cells in rows:
        print(line(cells))


def cell(model, numbers):
    ratio, lower, upper = numbers
    if model == BASE:
        return "1"
    return f"{ratio:.2f} ({lower:.2f} to {upper:.2f})"


def show_comparison(comparison, models):
    backends = [x for x in BACKENDS.values() if x in models[BASE]]
    show(
        ", ".join(comparison),
        backends,
        [
            [
                NAMES.get(model, model),
                *[cell(model, models[model][backend]) for backend in backends],
            ]
            for model in models
        ],
    )


def grown(found, name, size):
    """The comparison of one size of a way to grow."""
    widths, batch_size = size, "128"
    if name == "batch size":
        widths, batch_size = "512 512", size
    # The whole benchmark has more models of some of these networks.
    for threads in ("2", "1"):
        key = ("train_on_batch", "mlp", widths, batch_size, threads)
        if key in found:
            return found[key]
    return None


def show_growth(found, name):
    sizes = [size for size in GROWTH[name] if grown(found, name, size)]
    if not sizes:
        return
    models = [model for model in grown(found, name, sizes[0]) if model != BASE]
    rows = []
    for backend in BACKENDS.values():
        for model in models:
            ratios = [
                grown(found, name, size)[model].get(backend, [float("nan")])[0]
                for size in sizes
            ]
            told = [f"{ratio:.2f}" for ratio in ratios]
            rows.append([f"{backend}, {NAMES.get(model, model)}", *told])
    heads = [
        str(len(size.split())) if name == "hidden layers" else size.split()[0]
        for size in sizes
    ]
    show(name, heads, rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("csv")
    found = read(parser.parse_args().csv)
    for comparison, models in found.items():
        if "Dropout" in models:
            show_comparison(comparison, models)
    for name in GROWTH:
        show_growth(found, name)


if __name__ == "__main__":
    main()
