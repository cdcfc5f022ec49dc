"""Predictions of the mean weights, of sampled noise, and how good they are."""

import keras
import numpy as np

import keras_vdrop
from shared.networks import adaptive_layers

# At most so many examples at once.
BATCH_SIZE = 1000


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def mean_prediction(model, x):
    return softmax(model.predict(x, batch_size=BATCH_SIZE, verbose=0))


def sampled_prediction(model, x, samples):
    """Returns the mean of predictions with noise, or with dropout masks."""
    if adaptive_layers(model):
        return keras_vdrop.predict(
            model,
            x,
            num_samples=samples,
            batch_size=BATCH_SIZE,
            from_logits=True,
            seed=0,
            verbose=0,
        ).mean
    return mc_dropout(model, x, samples)


def mc_dropout(model, x, samples):
    """Returns the mean of predictions with the dropout masks of training."""
    masked = InTraining(model)
    return sum(mean_prediction(masked, x) for _ in range(samples)) / samples


class InTraining(keras.Model):
    """A model that does what it does in training, also in `predict`."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def call(self, inputs):
        return self.model(inputs, training=True)


def judge(labels, probabilities):
    """Returns the error in %, NLL in nats, Brier score and calibration."""
    judged = {"error": 100 * np.mean(probabilities.argmax(-1) != labels)}
    for metric in (
        keras_vdrop.metrics.NegativeLogLikelihood(),
        keras_vdrop.metrics.BrierScore(),
        keras_vdrop.metrics.ExpectedCalibrationError(),
    ):
        metric.update_state(labels, probabilities)
        judged[metric.name] = float(metric.result())
    return judged
