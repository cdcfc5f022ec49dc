"""Last-layer Laplace and IVON, in the comparison of `uncertainty.py`.

    KERAS_BACKEND=torch python examples/benchmarks/uncertainty_torch.py \
        --data-dir FOLDER --out uncertainty.csv

This program adds rows to the CSV files of `examples/uncertainty.py`: the same
network, data, epochs, batches, decay of the learning rate, samples and metrics.
The networks are torch modules. The plain one is trained with Adam of torch.

- Last-layer Laplace (Daxberger et al. 2021): `laplace-torch`.
- IVON (Shen et al. 2024): `ivon-opt`.

A library that is not installed is left out, and the program says how to
install it. What a method leaves open is chosen by the likelihood of the same
10,000 images of the training set. A second start goes on where the first has
ended.
"""

import functools
import importlib.util
import os
import pathlib
import sys
import time
import types

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

import peers_ivon
import uncertainty
from shared import uncertainty_choice
from shared.training import steps_of
from shared.uncertainty_networks import BATCH_SIZE
from shared.uncertainty_networks import architecture
from shared.uncertainty_networks import path_of
from shared.uncertainty_report import folder_of
from shared.uncertainty_report import kept
from shared.uncertainty_scores import judge

INSTALL_LINES = {
    "ivon": peers_ivon.INSTALL_LINE,
    "laplace": "pip install laplace-torch==0.3",
}
# Of each method: its library, and what is tried on validation data.
METHODS = {
    "plain, torch": (None, [{}]),
    "last-layer Laplace": (
        "laplace",
        [
            {"prior_precision": "marglik"},
            *[{"prior_precision": x} for x in (1.0, 10.0, 100.0)],
        ],
    ),
    "IVON": (
        "ivon",
        [
            {"learning_rate": rate, "initial_hessian": hessian}
            for rate, hessian in ((0.1, 0.1), (0.1, 0.5), (0.2, 0.5))
        ],
    ),
}


def network(inputs, widths):
    """Returns dense layers of ReLU units that begin as those of Keras."""
    layers = []
    for _, arguments in architecture((inputs,), widths):
        layers.append(torch.nn.Linear(inputs, arguments["units"]))
        torch.nn.init.xavier_uniform_(layers[-1].weight)
        torch.nn.init.zeros_(layers[-1].bias)
        if "activation" in arguments:
            layers.append(torch.nn.ReLU())
        inputs = arguments["units"]
    return torch.nn.Sequential(*layers)


def adam_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(name, choice, train, seed, options):
    """Returns a network, its optimizer, and the seconds of its training."""
    torch.manual_seed(seed)
    model = network(train[0].shape[1], options.widths)
    if name == "IVON":
        step = peers_ivon.ivon_step
        optimizer = peers_ivon.ivon_optimizer(
            model.parameters(), len(train[0]), **choice
        )
    else:
        name, choice, step = "plain_torch", {}, adam_step
        optimizer = torch.optim.Adam(model.parameters())
    number = len(train[0])
    what = [name, choice, number, seed, options.epochs, options.widths]
    path = f"{path_of(what, folder_of(options))}.pt"
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return model, optimizer, state["seconds"]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, steps_of(options.epochs, number, BATCH_SIZE)
    )
    x, y = torch.from_numpy(train[0]), torch.from_numpy(train[1]).long()
    start = time.process_time()
    for epoch in range(options.epochs):
        for rows in torch.randperm(number).split(BATCH_SIZE):
            loss = step(model, optimizer, x[rows], y[rows])
            schedule.step()
        print(f"{name}, seed {seed}: epoch {epoch + 1}, {loss:.4f}", flush=True)
    seconds = time.process_time() - start
    os.makedirs(folder_of(options), exist_ok=True)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "seconds": seconds,
        },
        path,
    )
    return model, optimizer, seconds


def laplace_of(model, train, prior_precision):
    """Returns the posterior of the last layer: Kronecker factors."""
    from laplace import Laplace

    found = Laplace(
        model,
        "classification",
        subset_of_weights="last_layer",
        hessian_structure="kron",
    )
    x, y = torch.from_numpy(train[0]), torch.from_numpy(train[1]).long()
    found.fit(DataLoader(TensorDataset(x, y), batch_size=1000))
    if prior_precision == "marglik":
        found.optimize_prior_precision(
            pred_type="glm", method="marglik", prior_structure="scalar"
        )
    else:
        found.prior_precision = prior_precision
    return found


def predictor(name, choice, train, seed, options):
    """Returns a function of images and a number of samples, and seconds.

    The function returns probabilities, `(samples, images, classes)`.
    """
    model, optimizer, seconds = trained(name, choice, train, seed, options)
    if name == "IVON":

        def outputs(x, samples):
            found = peers_ivon.ivon_samples(model, optimizer, x, samples)
            return torch.stack(list(found)).softmax(-1)

    elif name == "last-layer Laplace":
        start = time.process_time()
        posterior = laplace_of(model, train, **choice)
        seconds += time.process_time() - start

        def outputs(x, samples):
            parts = [
                posterior.predictive_samples(part, "glm", n_samples=samples)
                for part in x.split(1000)
            ]
            return torch.cat(parts, dim=1)

    else:

        def outputs(x, samples):
            return model(x).softmax(-1)[None]

    def predict(x, samples):
        torch.manual_seed(seed)
        with torch.no_grad():
            return outputs(torch.from_numpy(x), samples).numpy()

    return predict, seconds


def statistics(samples):
    """Returns what `judge` asks for, of samples of probabilities."""

    def entropy(p):
        return -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=-1)

    mean = samples.mean(0, dtype="float64")
    total = entropy(mean)
    return types.SimpleNamespace(
        mean=mean,
        entropy=total,
        mutual_information=total - entropy(samples).mean(0, dtype="float64"),
        num_samples=len(samples),
    )


def choose(name, train, options):
    """Returns the candidate for a method with the highest likelihood."""

    def validate(candidate, part, images):
        predict, _ = predictor(name, candidate, part, 0, options)
        return predict(images, uncertainty.VALIDATION_SAMPLES).mean(0)

    return uncertainty_choice.choose(
        name, METHODS[name][1], validate, train, options
    )


def run(settings, choice, seed, sets, options):
    """Trains the network of a method, or loads it, and judges it."""
    train, test, strange = sets
    predict, seconds = predictor(
        settings["method"], choice, train, seed, options
    )
    columns, mean = judge(
        lambda x: statistics(predict(x, settings["samples"])),
        test,
        strange,
        options,
    )
    np.save(kept(settings, seed, options), mean)
    return {"train_seconds": f"{seconds:.1f}", **columns}


def main():
    options = uncertainty.parse_arguments(__doc__, METHODS)
    if options.data == "cifar10":
        sys.exit("This program has networks for rows of pixels only.")
    samples = {}
    for name in options.methods:
        library = METHODS[name][0]
        if library and not importlib.util.find_spec(library):
            print(f"Without {name}: {INSTALL_LINES[library]}")
        else:
            samples[name] = options.samples if library else 1
    uncertainty.compare(
        samples,
        functools.partial(choose, options=options),
        functools.partial(run, options=options),
        options,
        pictures=False,  # Those of all methods are drawn by `uncertainty.py`.
    )


if __name__ == "__main__":
    main()
