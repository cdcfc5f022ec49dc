"""Time and memory of models that differ in their noise."""

import re

import keras

from shared import timing
from shared.data import random_images
from shared.networks import convolutional_network
from shared.networks import dense_network
from shared.results import Results
from shared.results import joined
from shared.results import versions
from shared.training import compile_classifier


class Measurements:
    """Prints each comparison and appends it to a CSV file.

    Args:
        models: By name, the method of `shared.methods` and arguments of the
            noise.
        base: The model to which the others are compared.
        options: Those of benchmark.py.
    """

    def __init__(self, models, base, options):
        self.models = models
        self.base = base
        self.options = options
        self.results = Results(options.out)
        self.versions = versions()
        # Rows to draw: comparisons, and series over a size by its name.
        self.compared = []
        self.grown = {}
        # A size that is in more than one series is measured once.
        self._measured = {}

    def build(self, name, network, size):
        """Returns a compiled model. `size` is the widths, or k for CIFAR-10."""
        method, noise = self.models[name]
        if network == "mlp":
            model = dense_network(method, (784,), size, noise)
        else:
            model = convolutional_network(method, (32, 32, 3), size, noise)
        compile_classifier(model, 60_000, "adam")
        return model

    def time(self, what, network, size, batch_size, names):
        """Times models in turns and returns the rows of the CSV file."""
        self.announce(what, network, size, batch_size)
        steps = {
            name: step_of(what, self.build(name, network, size), batch_size)
            for name in names
        }
        base = self.base if self.base in steps else next(iter(steps))
        seconds = timing.alternate(steps, self.options.rounds)
        table = timing.compare(seconds, base)
        timing.show(table, base)
        return self.write(what, network, size, batch_size, table)

    def compare(self, *arguments):
        """Times models and keeps the rows for the picture."""
        self.compared.append(self.time(*arguments))

    def grow(self, series, place, widths, batch_size, names):
        """Times models of one size and adds the rows to a series."""
        size = (*widths, batch_size)
        if size not in self._measured:
            self._measured[size] = self.time(
                "train_on_batch", "mlp", widths, batch_size, names
            )
        self.grown.setdefault(series, []).append((place, self._measured[size]))

    def memory(self, size, batch_size):
        """Measures what torch keeps for the backward pass, with the weights."""
        if keras.backend.backend() != "torch":
            print("\nMemory is measured on torch alone.")
            return
        self.announce("memory", "mlp", size, batch_size)
        megabytes = {
            name: kept_by_torch(self.build(name, "mlp", size), batch_size)
            for name in self.models
        }
        table = {}
        for name, kept in megabytes.items():
            ratio = kept / megabytes["Dense"]
            table[name] = {"value": f"{kept:.1f}", "ratio": f"{ratio:.2f}"}
            print(f"{name:32s}{kept:>8.1f} MB{ratio:>8.2f} x Dense")
        self.write("memory", "mlp", size, batch_size, table)

    def announce(self, what, network, size, batch_size):
        print(
            f"\n{what}, {network} {size}, batch {batch_size}, "
            f"{self.versions['backend']}, threads: {self.options.threads}"
        )

    def write(self, what, network, size, batch_size, table):
        rows = [
            {
                "what": what,
                "network": network,
                "size": joined(size) if isinstance(size, list) else size,
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
            for name, columns in table.items()
        ]
        for row in rows:
            self.results.append(row)
        return rows


def step_of(what, model, batch_size):
    """Returns a function that does the work and waits for its result.

    `what` is `"train_on_batch"`, `"inference"` or `"fit of <n> batches"`.
    """
    shape = model.input_shape[1:]
    if batches := re.fullmatch(r"fit of (\d+) batches", what):
        x, y = random_images(int(batches[1]) * batch_size, shape)
        return lambda: model.fit(x, y, batch_size=batch_size, verbose=0)
    x, y = random_images(batch_size, shape)
    if what == "inference":
        return lambda: model.predict_on_batch(x)
    return lambda: model.train_on_batch(x, y)


def kept_by_torch(model, batch_size):
    """Returns the megabytes of the weights and of tensors saved in a step."""
    import torch

    x, y = random_images(batch_size, model.input_shape[1:])
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
