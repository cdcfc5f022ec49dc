"""Six small classifications, from networks of six kinds."""

import functools
import pydoc_data.topics

import keras
import numpy as np

import keras_vdrop
from shared.data import load
from shared.data import load_digits

# Of each task, in the order in which they run.
EPOCHS = {
    "mnist 100": 8,
    "digits": 60,
    "lstm": 40,
    "text": 5,
    "cifar10": 6,
    "mnist 500": 5,
}
# Examples to train on, and examples held out from the rest.
SIZES = {
    "digits": (1000, 297),
    "lstm": (1000, 297),
    "mnist 100": (20_000, 10_000),
    "mnist 500": (20_000, 10_000),
    "text": (20_000, 5_000),
    "cifar10": (10_000, 5_000),
}
LEARNING_RATES = {"lstm": 3e-3}
# XLA computes convolutions in a loop slowly.
STEPS_PER_EXECUTION = {"cifar10": 1}
BATCH_SIZE = 50
WINDOW = 32


@functools.cache
def data(task, data_dir=None):
    """Returns training and validation examples, all of training sets."""
    if task == "text":
        x, y = characters()
    elif task in ("digits", "lstm"):
        (x, y), _ = load_digits()
    else:
        (x, y), _ = load(task.split()[0], data_dir)
    if task == "lstm":
        x = x.reshape(-1, 8, 8)
    size, held_out = SIZES[task]
    return (x[:size], y[:size]), (x[-held_out:], y[-held_out:])


def characters():
    """Windows of characters and the character that follows each.

    The text is the language reference inside Python (`pydoc_data`).
    """
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), "uint8")
    # Training and validation examples come from apart in the text.
    number = sum(SIZES["text"])
    starts = np.linspace(0, len(codes) - WINDOW - 1, number).astype(int)
    windows = codes[starts[:, None] + np.arange(WINDOW + 1)].astype("int32")
    order = np.random.default_rng(0)
    size = SIZES["text"][0]
    order = np.concatenate(
        [order.permutation(size), size + np.arange(number - size)]
    )
    return windows[order, :-1], windows[order, -1]


def build(task, noise):
    """Returns the network of a task.

    Args:
        task: One of `EPOCHS`.
        noise: Arguments of the variational layers, or `None` for plain ones.
    """

    def layer(kind, *args, **arguments):
        if noise is None:
            return getattr(keras.layers, kind)(*args, **arguments)
        if kind == "LSTM" and noise.get("noise") == "independent":
            # Its only estimator of noise that stays through a sequence.
            arguments["estimator"] = "batch"
        found = getattr(keras_vdrop, f"Variational{kind}")
        return found(*args, **arguments, **noise)

    return BUILDERS[task.split()[0]](layer, task)


def dense(layer, task):
    inputs, width = (64, 100) if task == "digits" else (784, 0)
    width = width or int(task.split()[1])
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            *[layer("Dense", width, activation="relu") for _ in range(3)],
            layer("Dense", 10),
        ]
    )


def lstm(layer, task):
    return keras.Sequential(
        [keras.Input((8, 8)), layer("LSTM", 64), layer("Dense", 10)]
    )


def convolutional(layer, task):
    convolution = {"strides": 2, "padding": "same", "activation": "softplus"}
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layer("Conv2D", 32, 3, **convolution),
            layer("Conv2D", 64, 3, **convolution),
            keras.layers.Flatten(),
            layer("Dense", 128, activation="softplus"),
            layer("Dense", 128, activation="softplus"),
            layer("Dense", 10),
        ]
    )


def transformer(layer, task, width=48, blocks=2):
    inputs = keras.Input((WINDOW,), dtype="int32")
    x = layer("Embedding", 128, width)(inputs)
    places = keras.ops.arange(WINDOW)
    x = x + keras.layers.Embedding(WINDOW, width)(places)
    for _ in range(blocks):
        normal = keras.layers.LayerNormalization()(x)
        x = x + layer("MultiHeadAttention", 4, width // 4)(normal, normal)
        normal = keras.layers.LayerNormalization()(x)
        hidden = layer("Dense", 2 * width, activation="relu")(normal)
        x = x + layer("Dense", width)(hidden)
    x = keras.layers.LayerNormalization()(x[:, -1])
    return keras.Model(inputs, layer("Dense", 128)(x))


BUILDERS = {
    "digits": dense,
    "mnist": dense,
    "lstm": lstm,
    "cifar10": convolutional,
    "text": transformer,
}
