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
from peers import PIXELS
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


def peer_rows(name, peer, widths, x, y):
    build = functools.partial(model_and_optimizer, peer.layer, widths)
    return keras_rows(name, peer.package, build, peer.note, x, y)


def model_and_optimizer(layer, widths):
    import tf_keras

    model = tf_keras.Sequential(
        [*(layer(width, activation="relu") for width in widths), layer(CLASSES)]
    )
    model.build((None, PIXELS))
    return model, tf_keras.optimizers.Adam()


def keras_rows(name, package, build, note, x, y):
    """Returns rows for a model of Keras or tf_keras, without and with XLA."""

    def row(loop, compiled):
        step = training_step(*build(), x, y, compiled)
        return Row(package, loop, step, note)

    return {
        name: row("tf.function", compiled=False),
        name + XLA: row("tf.function, XLA", compiled=True),
    }


def training_step(model, optimizer, x, y, compiled):
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=compiled)
    def train(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) + sum(model.losses) / EXAMPLES
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return lambda: float(train(x, y))
