"""The models of Keras and of keras_vdrop in the benchmark of peers."""

import functools

import keras

from peers import BASE
from peers import LOCAL
from peers import NO_NOISE
from peers import PAPER_KL
from shared.methods import RATES
from shared.networks import dense_network
from shared.training import set_num_examples

# The method of `shared.methods`, the note, and arguments of the noise.
OURS = {
    "keras Dense": ("none", NO_NOISE, {}),
    "keras GaussianDropout": (
        "gaussian_a",
        "noise of a fixed rate on the inputs of Dense; no KL",
        {},
    ),
    BASE: (
        "variational_b",
        f"{LOCAL} of a mean and an alpha for each weight; {PAPER_KL}",
        {"granularity": "weight"},
    ),
    "VariationalDense additive": (
        "variational_b",
        f"{LOCAL} of a mean and a variance for each weight; {PAPER_KL}",
        {"granularity": "weight", "parameterization": "additive"},
    ),
    "VariationalDense layer": (
        "variational_b",
        f"{LOCAL} of a mean for each weight and one alpha; {PAPER_KL}",
        {"granularity": "layer"},
    ),
}


def our_rows(framework, sizes, models=None, rate=None):
    """Returns the rows of our models, trained by the loop of a framework.

    Args:
        framework: `peers_tensorflow` or `peers_torch`.
        sizes: Of the inputs and of each hidden layer.
        models: As `OURS`, which it is if not given.
        rate: Where learned rates begin; if not given, as in the paper.
    """
    rows = {}
    for name, (method, note, noise) in (models or OURS).items():
        package = "keras_vdrop" if method.startswith("var") else "keras"
        build = functools.partial(
            model_and_optimizer,
            method,
            noise,
            sizes,
            rate if method.startswith("variational") else None,
        )
        rows.update(framework.keras_rows(name, package, build, note))
    return rows


def model_and_optimizer(method, noise, sizes, rate=None):
    inputs, *widths = sizes
    rates = (rate, rate) if rate else RATES
    model = dense_network(method, (inputs,), widths, noise, rates)
    # The loop divides the KL by the number of examples.
    set_num_examples(model, 1)
    return model, keras.optimizers.Adam()
