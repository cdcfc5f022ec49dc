"""The networks that `uncertainty.py` compares, and their training."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Method:
    """How predictions are made.

    Args:
        network: Key of `CANDIDATES`.
        members: How many networks are trained, for an ensemble.
        samples: Samples of each network; `None` for the number asked for.
        dropout: Whether its dropout is on in predictions.
    """

    network: str
    members: int = 1
    samples: int | None = None
    dropout: bool = False


METHODS = {
    "plain": Method("plain", samples=1),
    "MC dropout": Method("dropout", dropout=True),
    "ensemble of 5": Method("plain", members=5, samples=1),
    "correlated": Method("correlated"),
    "independent per weight": Method("independent"),
    "normal prior": Method("normal"),
    "dropout + normal prior": Method("both"),
    "5 x correlated": Method("correlated", members=5, samples=8),
    "plain, then 2 epochs": Method("converted"),
    "plain, then its last layer": Method("converted_last"),
}
# What is tried on validation data for each network. The first is the default.
_SCALES = [
    {"scale": scale, "kl_downscale": downscale}
    for scale in (0.1, 0.3)
    for downscale in (30.0, 10.0)
]
CANDIDATES = {
    "plain": [{}],
    "dropout": [
        {"rates": (0.2, 0.5)},
        {"rates": (0.1, 0.3)},
        {"rates": (0.2, 0.2)},
    ],
    "correlated": [
        {"rate": 0.05, "kl_downscale": 1.0},
        {"rate": 0.05, "kl_downscale": 3.0},
        {"rate": 0.2, "kl_downscale": 1.0},
    ],
    "independent": [
        {"rate": 0.05, "kl_downscale": 1.0},
        {"rate": 0.05, "kl_downscale": 3.0},
    ],
    "normal": _SCALES,
    "both": _SCALES[:2],
    # A plain network that was trained, made variational. Two epochs more.
    "converted": [{"rate": 0.2, "epochs": 2}],
    "converted_last": [{"rate": 0.2, "epochs": 2}],
}


def layers_for(network, units, choice, first, activation):
    """A dense layer with the noise of a network before it or in it."""
    arguments = {"units": units, "activation": activation}
    variational = keras_vdrop.VariationalDense
    if network == "plain":
        return [keras.layers.Dense(**arguments)]
    if network == "dropout":
        rate = choice["rates"][0 if first else 1]
        return [keras.layers.Dropout(rate), keras.layers.Dense(**arguments)]
    if network == "correlated":
        return [variational(**arguments, **choice)]
    if network == "independent":
        return [
            variational(
                **arguments,
                **choice,
                noise="independent",
                granularity="weight",
            )
        ]
    layer = variational(
        **arguments,
        parameterization="additive",
        granularity="weight",
        kl=keras_vdrop.priors.Normal(choice["scale"]),
        kl_downscale=choice["kl_downscale"],
        max_alpha=None,
    )
    before = [keras_vdrop.VariationalDropout()] if network == "both" else []
    return [*before, layer]


def build(network, choice, inputs, widths, classes=10):
    layers = [keras.Input((inputs,))]
    for number, width in enumerate((*widths, classes)):
        layers += layers_for(
            network,
            width,
            choice,
            first=number == 0,
            activation="relu" if number < len(widths) else None,
        )
    return keras.Sequential(layers)


def new_model(network, choice, train, seed, epochs, widths, folder):
    """Returns a network to train, and the time that it has cost so far."""
    inputs = train[0].shape[1]
    if not network.startswith("converted"):
        keras.utils.set_random_seed(seed)
        return build(network, choice, inputs, widths), 0.0
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
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    path = os.path.join(folder, f"{network}_{seed}_{digest}")
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
