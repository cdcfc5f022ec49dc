"""The peers on tensorflow, and the loop that trains them."""

import functools

import tensorflow as tf

from peers import CLASSES
from peers import EXAMPLES
from peers import FLIPOUT
from peers import LOCAL
from peers import NO_NOISE
from peers import NORMAL_KL
from peers import PAPER_KL
from peers import SAMPLE
from peers import XLA
from peers import Peer
from peers import Row

NAME = "tensorflow"


def tf_keras():
    import tf_keras

    return {"tf_keras Dense": Peer("tf_keras", tf_keras.layers.Dense, NO_NOISE)}


def tensorflow_probability():
    from tensorflow_probability import layers

    package = "tensorflow-probability"
    return {
        "TFP LocalReparameterization": Peer(
            package,
            layers.DenseLocalReparameterization,
            f"{LOCAL} of a mean and a variance for each weight; {NORMAL_KL}",
        ),
        "TFP Flipout": Peer(
            package, layers.DenseFlipout, f"{FLIPOUT}; {NORMAL_KL}"
        ),
    }


def edward2():
    from edward2 import layers

    return {
        "Edward2 VariationalDropout": Peer(
            "edward2",
            layers.DenseVariationalDropout,
            f"{LOCAL} of a mean and a variance for each weight, which it turns "
            "into a log alpha and back to limit that; "
            f"{PAPER_KL}, with the wrong sign",
        ),
        "Edward2 Reparameterization": Peer(
            "edward2",
            layers.DenseReparameterization,
            f"{SAMPLE}; {NORMAL_KL}",
        ),
    }


LIBRARIES = (tf_keras, tensorflow_probability, edward2)


OPTIMIZERS = ()


def peer_rows(name, peer, sizes):
    build = functools.partial(model_and_optimizer, peer.layer, sizes)
    return keras_rows(name, peer.package, build, peer.note)


def model_and_optimizer(layer, sizes):
    import tf_keras

    inputs, *widths = sizes
    model = tf_keras.Sequential(
        [*(layer(width, activation="relu") for width in widths), layer(CLASSES)]
    )
    model.build((None, inputs))
    return model, tf_keras.optimizers.Adam()


def keras_rows(name, package, build, note):
    """Returns rows for a model of Keras or tf_keras, without and with XLA."""

    def row(loop, compiled):
        functions = functions_of(*build(), compiled)
        return Row(package, loop, *functions, note)

    return {
        name: row("tf.function", compiled=False),
        name + XLA: row("tf.function, XLA", compiled=True),
    }


def functions_of(model, optimizer, compiled):
    """Returns the functions of a `Row`."""
    variables = model.trainable_variables
    optimizer.build(variables)
    function = functools.partial(tf.function, jit_compile=compiled)

    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) + sum(model.losses) / EXAMPLES
        return loss, tape.gradient(loss, variables)

    @function
    def train(x, y):
        loss, gradients = gradients_of(x, y)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @function
    def logits(x):
        return model(x, training=True)

    @function
    def gradient(x, y):
        return gradients_of(x, y)[1][0]

    return (
        lambda x, y: float(train(x, y)),
        lambda x: logits(x).numpy(),
        lambda x, y: gradient(x, y).numpy(),
        lambda rate: optimizer.learning_rate.assign(rate),
    )
