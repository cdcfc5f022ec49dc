"""Networks that learn which of their weights they need, stage by stage.

1. `plain`: the network of Keras, trained as usual.
2. `noisy`: the same with noise on each weight, whose variance is learned.
3. `pruned`: weights that are noise are removed, and what is left is trained
   on, with new noise.

Each stage is a file in a folder, and a stage that is interrupted goes on with
the epoch that it was in. The last of the training examples are held out.
"""

import dataclasses
import os

import keras

import keras_vdrop
from shared.data import load
from shared.networks import convolutional_network
from shared.training import EpochLine
from shared.training import compile_classifier
from shared.training import steps_of

BATCH_SIZE = 100
NOISE = {
    "granularity": "weight",
    "parameterization": "additive",
    "kl": "sigmoid",
    "max_alpha": None,
}


@dataclasses.dataclass
class Settings:
    """How a network is trained, chosen on the examples that are held out."""

    data: str
    plain_epochs: int
    noisy_epochs: int
    pruned_epochs: int
    warmup: int
    rate: float
    threshold: float
    learning_rate: float = 1e-3
    images: int | None = None


SETTINGS = {
    "lenet300": Settings("mnist", 10, 100, 40, 20, 0.05, 1.0),
    "lenet5": Settings("mnist", 5, 12, 30, 4, 0.2, 2.0, 2e-3),
    "digits": Settings("digits", 10, 60, 30, 10, 0.05, 1.0),
    "cifar": Settings("cifar10", 30, 60, 30, 10, 0.05, 1.0),
    "mobilenet": Settings("cifar10", 10, 12, 8, 4, 0.2, 2.0, 2e-3, 15_000),
}


def build(network):
    """Returns one of the plain networks, with logits."""
    layers = keras.layers
    if network == "cifar":
        return convolutional_network("none", (32, 32, 3), 1)
    if network == "mobilenet":
        return mobilenet()
    if network in ("lenet300", "digits"):
        stack = [
            keras.Input((784 if network == "lenet300" else 64,)),
            layers.Dense(300, activation="relu", name="hidden_1"),
            layers.Dense(100, activation="relu", name="hidden_2"),
            layers.Dense(10, name="scores"),
        ]
    else:
        stack = [
            keras.Input((28, 28, 1)),
            layers.Conv2D(20, 5, activation="relu", name="features_1"),
            layers.MaxPooling2D(name="pooled_1"),
            layers.Conv2D(50, 5, activation="relu", name="features_2"),
            layers.MaxPooling2D(name="pooled_2"),
            layers.Flatten(name="flat"),
            layers.Dense(500, activation="relu", name="hidden"),
            layers.Dense(10, name="scores"),
        ]
    return keras.Sequential(stack, name=network)


def mobilenet():
    """Inverted residual blocks, as in MobileNetV2, for small images."""
    layers = keras.layers

    def normalized(y, activation=True):
        y = layers.BatchNormalization(momentum=0.9)(y)
        return layers.ReLU(6.0)(y) if activation else y

    x = keras.Input((32, 32, 3))
    y = normalized(layers.Conv2D(16, 3, 2, "same", use_bias=False)(x))
    for filters, stride in ((24, 2), (24, 1), (48, 2), (48, 1), (48, 1)):
        before = y
        y = layers.Conv2D(6 * y.shape[-1], 1, use_bias=False)(y)
        y = normalized(y)
        y = layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(y)
        y = layers.Conv2D(filters, 1, use_bias=False)(normalized(y))
        y = normalized(y, activation=False)
        if stride == 1:
            y = layers.Add()([before, y])
    y = normalized(layers.Conv2D(256, 1, use_bias=False)(y))
    y = layers.GlobalAveragePooling2D()(y)
    return keras.Model(x, layers.Dense(10)(y))


def has_noise(layer):
    """The few weights of a depthwise kernel stay plain."""
    return not isinstance(layer, keras.layers.DepthwiseConv2D)


def load_split(network, data_dir):
    """Returns the data to train on, those held out, and the test data."""
    train, test = load(SETTINGS[network].data, data_dir)
    if network == "lenet5":
        train, test = ((x.reshape(-1, 28, 28, 1), y) for x, y in (train, test))
    x, y = train
    count = min(5000, len(x) // 4)
    train = slice(min(SETTINGS[network].images or len(x), len(x) - count))
    return (x[train], y[train]), (x[-count:], y[-count:]), test


def kernels(model):
    """Returns the variables that can be pruned."""
    return [x.kernel for x in model.layers if hasattr(x, "kernel")]


class Stages:
    """The models of a network and a seed, each trained once.

    Args:
        network: One of `SETTINGS`.
        seed: Integer.
        data: The training and the held-out data.
        folder: Folder for the files.
        epochs: Epochs of each stage, for a quick try, or `None`.
    """

    settings_of = SETTINGS

    def __init__(self, network, seed, data, folder, epochs=None):
        self.network = network
        self.seed = seed
        self.train, self.held_out = data
        self.folder = folder
        self.epochs = epochs
        self.settings = self.settings_of[network]

    def model(self, stage):
        """Returns the model of a stage, trained."""
        return self.stored(stage, getattr(self, f"_{stage}"))

    def stored(self, stage, train):
        """Returns the model of a file, or of a function, and then a file."""
        path = self._path(stage)
        if not os.path.exists(path):
            # A stage has random numbers of its own, resumed or not.
            keras.utils.set_random_seed(self.seed)
            model = train()
            os.makedirs(self.folder, exist_ok=True)
            # A kill leaves no file, or a whole one.
            model.save(f"{path}.new.keras")
            os.replace(f"{path}.new.keras", path)
        return keras.saving.load_model(path, compile=False)

    def _plain(self):
        model = build(self.network)
        self.fit(model, "plain", self.settings.plain_epochs)
        return model

    def _noisy(self):
        settings = self.settings
        model = keras_vdrop.to_variational(
            self.model("plain"),
            has_noise,
            rate=settings.rate,
            seed=self.seed,
            verbose=0,
            **NOISE,
        )
        warmup = self.epochs or settings.warmup
        callbacks = [keras_vdrop.callbacks.KLWarmup(warmup)]
        self.fit(model, "noisy", settings.noisy_epochs, callbacks)
        return model

    def _pruned(self):
        model = self.model("noisy")
        keras_vdrop.prune(model, self.settings.threshold)
        for layer in keras_vdrop.variational_layers(model):
            layer.reset_noise()
        callbacks = [keras_vdrop.callbacks.KLWarmup(1)]
        self.fit(model, "pruned", self.settings.pruned_epochs, callbacks)
        return model

    def _path(self, stage):
        name = f"{self.network}_{self.seed}_{stage}.keras"
        return os.path.join(self.folder, name)

    def fit(
        self,
        model,
        stage,
        epochs,
        callbacks=(),
        learning_rate=None,
        optimizer=keras.optimizers.Adam,
    ):
        """Trains, from the epoch on in which an earlier program stopped."""
        epochs = self.epochs or epochs
        steps = steps_of(epochs, len(self.train[0]), BATCH_SIZE)
        schedule = keras.optimizers.schedules.PolynomialDecay(
            learning_rate or self.settings.learning_rate, steps, 0.0
        )
        compile_classifier(model, len(self.train[0]), optimizer(schedule))
        name = f"{self.network}_{self.seed}_{stage}"
        backup = os.path.join(self.folder, f"{name}_backup")
        model.fit(
            *self.train,
            epochs=epochs,
            batch_size=BATCH_SIZE,
            validation_data=self.held_out,
            validation_batch_size=1000,
            callbacks=[
                *callbacks,
                keras.callbacks.BackupAndRestore(backup),
                EpochLine(name.replace("_", " ")),
            ],
            verbose=0,
        )
