"""Weights that are noise, taken out of a model that goes on training."""

from typing import Any

import keras

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.core.priors import ScaleInvariant
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.models.traversal import require_variational_layers


def prune(model: keras.Model, threshold: float = 3.0) -> None:
    """Takes weights that are mostly noise out of a model, for good.

    These are the weights with log alpha above the threshold. They become
    zero, have no noise and no KL any more, and stay zero while the model goes
    on training, under any optimizer. So what is left can adapt, and more of it
    may become noise. `to_deterministic` then makes the model smaller. Files of
    the model know which weights were pruned.

    The model itself is changed. An optimizer of Keras goes on as it is, unless
    it averages the weights (`use_ema`): compile for a new one then. Make a new
    one of torch or optax too. The momentum of the old would move the pruned
    weights, until `to_deterministic` makes them zero again.

    Args:
        model: A built `keras.Model`. Layers some of whose weights are to go
            need `noise="independent"`, `max_alpha=None` and a `kl` that
            depends on alpha alone.
        threshold: Float, the largest log alpha that a weight may have to be
            kept. Molchanov et al. use 3, a rate of 0.95.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDense(
    ...     2, granularity="output", kl="exact", max_alpha=None
    ... )
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> _ = layer.log_alpha.assign([-3.0, 5.0])
    >>> keras_vdrop.prune(model)
    >>> int(np.count_nonzero(layer.get_weights()[0]))
    3

    Reference:

    - [Molchanov, Ashukha, Vetrov, 2017](https://arxiv.org/abs/1701.05369)
    """
    threshold = validation.check_limit("threshold", threshold)
    layers = require_variational_layers(model, keras.Model)
    if not model.built:
        raise validation.invalid(
            "model",
            "a built model, whose weights can be pruned",
            model,
            "Call it on some data first, or give it a `keras.Input`.",
        )
    found = []
    for layer in layers:
        for weight in layer.random_weights:
            if weight.mean_variable is None:
                continue  # A layer of noise alone.
            (log_alpha,) = backend.to_numpy([weight.log_alpha()])
            noise = log_alpha > threshold
            if noise.any():
                _check_prunable(layer, weight)
                found.append((weight, noise))
    # A refused call changes nothing.
    for weight, noise in found:
        weight.prune(noise)
    # On tensorflow compiled functions know nothing of it otherwise.
    model.train_function = None
    model.test_function = None


def _check_prunable(layer: Any, weight: RandomWeight) -> None:
    for argument, value, expected, holds in (
        ("noise", layer.noise, "'independent'", layer.noise == "independent"),
        ("max_alpha", layer.max_alpha, "None", weight.limit is None),
        (
            "kl",
            layer.noise_arguments.as_dict()["kl"],
            "a function of alpha alone",
            isinstance(weight.prior, ScaleInvariant),
        ),
    ):
        if not holds:
            raise validation.invalid(
                argument,
                f"{expected} in layer '{layer.name}', whose weights are to be "
                "pruned",
                value,
                "Make the layer with that, or prune with `to_deterministic`.",
            )
