"""Networks for small files: rounds of removing noise and training what is left.

After the second stage of `shared.sparse`, the weights that are noise and the
units without use are removed. A smaller network is trained on, with new noise,
and then the next round begins. It is quicker from round to round.
"""

import dataclasses

import keras
import numpy as np

import keras_vdrop
from shared.sparse import NOISE
from shared.sparse import SETTINGS
from shared.sparse import Stages
from shared.sparse import has_noise

# Of removed weights, which are noise and nothing else.
REMOVED = 20.0


@dataclasses.dataclass
class Round:
    """Log alpha from which on a weight is removed, and what follows."""

    threshold: float
    epochs: int
    learning_rate: float = 1e-3


def settings_of(network, **changes):
    return dataclasses.replace(SETTINGS[network], **changes)


SMALL = {
    "lenet300": settings_of("lenet300", noisy_epochs=40, warmup=15),
    "lenet5": settings_of("lenet5", plain_epochs=8, noisy_epochs=6, warmup=3),
    "digits": settings_of("digits"),
    "cifar": settings_of(
        "cifar",
        plain_epochs=6,
        noisy_epochs=8,
        warmup=3,
        rate=0.2,
        learning_rate=2e-3,
    ),
    "mobilenet": settings_of("mobilenet"),
}
ROUNDS = {
    "lenet300": [Round(1.0, 60), Round(1.0, 60)],
    "lenet5": [Round(2.0, 8, 2e-3), Round(1.0, 12, 2e-3), Round(1.0, 8)],
    "digits": [Round(1.0, 30)],
    "cifar": [Round(2.0, 4, 2e-3), Round(1.0, 6)],
    "mobilenet": [Round(2.0, 8, 2e-3)],
}


def last_threshold(network):
    return ROUNDS[network][-1].threshold


def without_batch_normalization(model, x):
    """Returns a model whose batch normalization is in the layers before it."""
    normal = keras.layers.BatchNormalization
    if not any(isinstance(layer, normal) for layer in model.layers):
        return model
    keras_vdrop.update_batch_normalization(model, x[:5000], 1000)
    return keras_vdrop.fold_batch_normalization(model)


class Rounds(Stages):
    """The models of a network and a seed, each trained once."""

    settings_of = SMALL

    def last(self):
        """Returns the model of the last round."""
        return self.round(len(ROUNDS[self.network]))

    def round(self, number):
        """Returns the model of a round. Number 0 is the noisy stage."""
        if not number:
            return self.model("noisy")
        return self.stored(f"round_{number}", lambda: self._round(number))

    def _round(self, number):
        step = ROUNDS[self.network][number - 1]
        model = self.without_noise(self.round(number - 1), step.threshold)
        self.fit(
            model,
            f"round_{number}",
            step.epochs,
            [keras_vdrop.callbacks.KLWarmup(1)],
            step.learning_rate,
        )
        return model

    def without_noise(self, model, threshold):
        """Returns what is left of a network, with new noise."""
        plain = keras_vdrop.to_deterministic(model, prune=threshold, verbose=0)
        model = keras_vdrop.to_variational(
            plain,
            has_noise,
            rate=self.settings.rate,
            seed=self.seed,
            verbose=0,
            **NOISE,
        )
        for layer in keras_vdrop.variational_layers(model):
            kernel, noise = map(
                keras.ops.convert_to_numpy, (layer.kernel, layer.log_variance)
            )
            layer.log_variance.assign(np.where(kernel == 0, REMOVED, noise))
        keras_vdrop.prune(model, REMOVED / 2)
        return model
