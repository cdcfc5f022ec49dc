"""The networks of the experiments, for each method of `methods`."""

import keras
import numpy as np

import keras_vdrop
from shared.methods import RATES


def block(method, layer, rate, noise=None, **arguments):
    """Returns a Keras layer with the noise of a method before it or in it.

    Args:
        method: One of `shared.methods.METHODS`.
        layer: `"Dense"` or `"Conv2D"`.
        rate: Dropout rate, fixed or initial.
        noise: More arguments for a variational layer.
        **arguments: Arguments of the Keras layer.
    """
    plain = getattr(keras.layers, layer)
    variational = getattr(keras_vdrop, f"Variational{layer}")
    if method == "none":
        return [plain(**arguments)]
    if method == "binary":
        return [keras.layers.Dropout(rate), plain(**arguments)]
    if method == "gaussian_a":
        return [keras.layers.GaussianDropout(rate), plain(**arguments)]
    kind, variant = method.split("_")
    return [
        variational(
            rate=rate,
            noise={"a": "correlated", "b": "independent"}[variant[0]],
            adaptive=kind == "variational",
            kl_downscale=3.0 if variant == "a2" else 1.0,
            # Log alpha itself is the variable, as in the paper.
            **{"granularity": "layer", "rate_speed": 1.0, **(noise or {})},
            **arguments,
        )
    ]


def dense_network(method, shape, widths, noise=None, rates=RATES):
    """Returns a network of ReLU layers of these widths, with ten logits."""
    layers = []
    for width in widths:
        rate = rates[1] if layers else rates[0]
        layers += block(
            method, "Dense", rate, noise, units=width, activation="relu"
        )
    layers += block(method, "Dense", rates[1], noise, units=10)
    return keras.Sequential([keras.Input(shape), *layers])


def convolutional_network(method, shape, size, noise=None, rates=RATES):
    """Returns the paper's network for CIFAR-10: `size` is its k."""
    input_rate, rate = rates
    convolution = {
        "kernel_size": 3,
        "strides": 2,
        "padding": "same",
        "activation": "softplus",
    }
    hidden = {"units": 128 * size, "activation": "softplus"}
    layers = [
        *block(
            method,
            "Conv2D",
            input_rate,
            noise,
            filters=32 * size,
            **convolution,
        ),
        *block(
            method,
            "Conv2D",
            rate,
            noise,
            filters=64 * size,
            **convolution,
        ),
        keras.layers.Flatten(),
        *block(method, "Dense", rate, noise, **hidden),
        *block(method, "Dense", rate, noise, **hidden),
        *block(method, "Dense", rate, noise, units=10),
    ]
    return keras.Sequential([keras.Input(shape), *layers])


def adaptive_layers(model):
    """Returns the layers that learn their dropout rates."""
    layers = keras_vdrop.variational_layers(model)
    return [layer for layer in layers if layer.adaptive]


def mean_rates(model):
    """Returns the mean learned rate of each random weight."""
    return [
        float(np.mean(rates))
        for layer in adaptive_layers(model)
        for rates in keras.tree.flatten(layer.dropout_rates())
    ]


def kl_nats(model):
    """Returns the KL of all adaptive layers together."""
    return sum(layer.kl() for layer in adaptive_layers(model))
