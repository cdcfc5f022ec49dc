"""The networks that `uncertainty.py` compares, and their training."""

import hashlib
import json
import os
import time

import keras

import keras_vdrop
from shared.training import EpochLine
from shared.training import steps_of
from shared.training import steps_per_execution

BATCH_SIZE = 128
# What the layers of each network have beside their candidate.
NOISE = {
    "correlated": {"noise": "correlated"},
    "default": {},
    "independent": {"noise": "independent", "granularity": "weight"},
}


def architecture(shape, widths, classes=10):
    """Returns the names of layers, and their arguments.

    Args:
        shape: Of an example. Images get the paper's network for CIFAR-10 of
            size k = 1, rows get dense layers of ReLU units.
        widths: Units of each hidden layer for rows.
        classes: Number of logits.
    """
    layers = [("Dense", {"units": x, "activation": "relu"}) for x in widths]
    if len(shape) == 3:
        layers = [
            (
                "Conv2D",
                {
                    "filters": filters,
                    "kernel_size": 3,
                    "strides": 2,
                    "padding": "same",
                    "activation": "softplus",
                },
            )
            for filters in (32, 64)
        ]
        hidden = {"units": 128, "activation": "softplus"}
        layers += [("Flatten", {}), ("Dense", hidden), ("Dense", hidden)]
    return [*layers, ("Dense", {"units": classes})]


def layers_for(network, kind, arguments, choice, first):
    """A layer with the noise of a network before it or in it."""
    plain = getattr(keras.layers, kind)
    if network == "plain" or kind == "Flatten":
        return [plain(**arguments)]
    if network == "dropout":
        rate = choice["rates"][0 if first else 1]
        return [keras.layers.Dropout(rate), plain(**arguments)]
    variational = getattr(keras_vdrop, f"Variational{kind}")
    if network in NOISE:
        return [variational(**arguments, **choice, **NOISE[network])]
    layer = variational(
        **arguments,
        parameterization="additive",
        granularity="weight",
        kl=keras_vdrop.priors.Normal(choice["scale"]),
        kl_downscale=choice["kl_downscale"],
        max_alpha=None,
    )
    if network == "both":
        rate = choice.get("rate", 0.05)
        return [keras_vdrop.VariationalDropout(rate), layer]
    return [layer]


def build(network, choice, shape, widths):
    layers = [keras.Input(shape)]
    for kind, arguments in architecture(shape, widths):
        first = len(layers) == 1
        layers += layers_for(network, kind, arguments, choice, first)
    return keras.Sequential(layers)


def new_model(network, choice, train, seed, epochs, widths, folder):
    """Returns a network to train, and the time that it has cost so far."""
    if not network.startswith("converted"):
        keras.utils.set_random_seed(seed)
        return build(network, choice, train[0].shape[1:], widths), 0.0
    plain, seconds = trained("plain", {}, train, seed, epochs, widths, folder)
    keras.utils.set_random_seed(seed)
    last = plain.layers[-1].name
    model = keras_vdrop.to_variational(
        plain,
        rate=choice["rate"],
        filter=lambda layer: network == "converted" or layer.name == last,
        verbose=0,
    )
    for layer in model.layers:
        # Only the last layer is trained.
        layer.trainable = network == "converted" or layer.name == last
    return model, seconds


def path_of(what, folder):
    """Returns where a trained network is kept, without an ending."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    network, _, _, seed, *_ = what
    return os.path.join(folder, f"{network}_{seed}_{digest}")


def trained(network, choice, train, seed, epochs, widths, folder):
    """Returns a trained model and the processor's time of its training.

    Both are kept in a folder, and found there the next time.
    """
    number = len(train[0])
    model, seconds = new_model(
        network, choice, train, seed, epochs, widths, folder
    )
    for layer in keras_vdrop.variational_layers(model):
        layer.set_num_examples(number, layer.kl_downscale)
    own_epochs = choice.get("epochs", epochs)
    steps = steps_of(own_epochs, number, BATCH_SIZE)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution(50),
    )
    what = [network, choice, number, seed, epochs, widths]
    path = path_of(what, folder)
    if os.path.exists(f"{path}.json"):
        model.load_weights(f"{path}.weights.h5")
        with open(f"{path}.json") as file:
            return model, json.load(file)["seconds"]
    start = time.process_time()
    model.fit(
        *train,
        batch_size=BATCH_SIZE,
        epochs=own_epochs,
        callbacks=[EpochLine(f"{network}, seed {seed}")],
        verbose=0,
    )
    seconds += time.process_time() - start
    os.makedirs(folder, exist_ok=True)
    model.save_weights(f"{path}.weights.h5")
    with open(f"{path}.json", "w") as file:
        json.dump({"what": what, "seconds": seconds}, file)
    return model, seconds
