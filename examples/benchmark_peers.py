"""Time of a training step with other libraries of Bayesian layers, and ours.

    KERAS_BACKEND=tensorflow python examples/benchmark_peers.py
    KERAS_BACKEND=torch python examples/benchmark_peers.py

The same work for all: 3 hidden layers of 1024 ReLU units on inputs the size of
MNIST's, Adam, cross-entropy, and the library's own KL divided by 60000. On
tensorflow the peers are TensorFlow Probability and Edward2, on torch they are
bayesian-torch, torchbnn and BLiTZ. A peer that is not installed is left out,
and --install-lines tells how to get it.

The steps take turns in one run, so that other work on the machine burdens them
alike. The ratio is to `VariationalDense` with one alpha for each weight, which
like the peers has a mean and a variance for each weight: a peer with a ratio
above 1 is slower. The libraries do not all compute the same, and a note on
each says what differs. The data is random: the time does not depend on it.

All are trained by the same loop, that of their framework: a `tf.function` with
a `GradientTape`, or `zero_grad`, `backward` and the update. Ours have the Adam
of Keras, the peers that of tf_keras or of torch. The plain layer of the
framework has a row as well: its distance from `keras.layers.Dense` is that of
the optimizers. On tensorflow all are timed without and with compilation by XLA,
and each is compared to ours of the same kind.
"""

import argparse
import functools
import importlib.metadata
import itertools
import logging
import math
import os
import sys
import textwrap
import typing
import warnings

import timing

PIXELS, CLASSES, EPOCH = 784, 10, 60_000
BASE = "VariationalDense weight"
XLA = " XLA"
# Seen to work together. --no-deps, because two of the peers ask for
# torchvision, which is not needed here.
INSTALL_LINES = {
    "tensorflow": """\
python -m venv peers-tensorflow
. peers-tensorflow/bin/activate
pip install "tensorflow==2.21.*" "tf_keras==2.21.*" "keras==3.15.*"
pip install tensorflow-probability==0.25.0 edward2==0.0.2
pip install .""",
    "torch": """\
python -m venv peers-torch
. peers-torch/bin/activate
pip install "torch==2.13.*" "keras==3.15.*"
pip install --no-deps bayesian-torch==0.5.0 torchbnn==1.2
pip install --no-deps blitz-bayesian-pytorch==0.2.8
pip install .""",
}
LOCAL = "local reparameterization"
SAMPLE = "one weight sample for the minibatch: half the matrix products of ours"
FLIPOUT = (
    "one weight sample for the minibatch with random signs for each example: "
    "as many matrix products as ours, and noise the size of the kernel"
)
NORMAL_KL = "KL from a normal prior in closed form"
PAPER_KL = "approximate KL from the log-uniform prior"
# The method of `experiments.dense_network`, the note, and the noise.
OURS = {
    "keras Dense": ("none", "no noise, no KL", {}),
    "keras GaussianDropout": (
        "gaussian_a",
        "noise of a fixed rate on the inputs of Dense; no KL",
        {},
    ),
    BASE: (
        "variational_b",
        f"{LOCAL} of a mean and an alpha for each weight; {PAPER_KL}",
        {"granularity": "weight"},
    ),
    "VariationalDense additive": (
        "variational_b",
        f"{LOCAL} of a mean and a variance for each weight; {PAPER_KL}",
        {"granularity": "weight", "parameterization": "additive"},
    ),
    "VariationalDense layer": (
        "variational_b",
        f"{LOCAL} of a mean for each weight and one alpha; {PAPER_KL}",
        {"granularity": "layer"},
    ),
}


class Row(typing.NamedTuple):
    """A model to time: `step` trains it once and returns the loss."""

    package: str
    loop: str
    step: typing.Callable[[], float]
    note: str


class Peer(typing.NamedTuple):
    """A layer of another library."""

    package: str
    layer: typing.Callable
    note: str
    # Of the layers of a model of torch, where they do not return it.
    kl: typing.Callable = lambda layers: 0.0


def our_rows(backend, widths, x, y):
    rows = {}
    for name, (method, note, noise) in OURS.items():
        package = "keras_vdrop" if noise else "keras"
        model = functools.partial(keras_model, method, noise, widths)
        if backend == "torch":
            step = keras_torch_step(model(), x, y)
            rows[name] = Row(package, "zero_grad, backward", step, note)
        else:
            rows.update(tensorflow_rows(name, package, model, note, x, y))
    return rows


def keras_model(method, noise, widths):
    import experiments
    import keras

    model = experiments.dense_network(method, (PIXELS,), widths, noise)
    # The loop divides the KL by the number of examples.
    for layer in experiments.adaptive_layers(model):
        layer.set_num_examples(1)
    return model, keras.optimizers.Adam()


def keras_torch_step(model_and_optimizer, x, y):
    import torch

    model, optimizer = model_and_optimizer
    variables = model.trainable_variables
    x = torch.from_numpy(x)

    def forward():
        return model(x, training=True), sum(model.losses)

    def update():
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    return torch_loop(model.zero_grad, forward, update, y)


def tf_keras_peers():
    import tf_keras

    return {
        "tf_keras Dense": Peer(
            "tf_keras", tf_keras.layers.Dense, "no noise, no KL"
        ),
    }


def tensorflow_probability_peers():
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


def edward2_peers():
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


def torch_peers():
    import torch

    return {
        "torch Linear": Peer("torch", torch.nn.Linear, "no noise, no KL"),
    }


def bayesian_torch_peers():
    from bayesian_torch import layers

    kl = f"{NORMAL_KL}, the mean over the weights instead of the sum"
    return {
        "bayesian-torch sample": Peer(
            "bayesian-torch",
            layers.LinearReparameterization,
            f"{SAMPLE}; random biases; {kl}",
        ),
        "bayesian-torch flipout": Peer(
            "bayesian-torch",
            layers.LinearFlipout,
            f"{FLIPOUT}; random biases; {kl}",
        ),
    }


def torchbnn_peers():
    import torchbnn

    return {
        "torchbnn BayesLinear": Peer(
            "torchbnn",
            functools.partial(torchbnn.BayesLinear, 0.0, 0.1),
            f"{SAMPLE}; random biases; {NORMAL_KL}, summed here, by default "
            "its mean over the weights",
            torchbnn.BKLLoss(reduction="sum"),
        ),
    }


def blitz_peers():
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianLinear

    return {
        "BLiTZ BayesianLinear": Peer(
            "blitz-bayesian-pytorch",
            BayesianLinear,
            f"{SAMPLE}; random biases; KL from a mixture of two normal priors, "
            "estimated with the same sample",
            kl_divergence_from_nn,
        ),
    }


def tf_keras_model(layer, widths):
    import tf_keras

    model = tf_keras.Sequential(
        [*(layer(width, activation="relu") for width in widths), layer(CLASSES)]
    )
    model.build((None, PIXELS))
    return model, tf_keras.optimizers.Adam()


def tensorflow_step(model, optimizer, x, y, compiled):
    import tensorflow as tf

    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile=compiled)
    def train(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) + sum(model.losses) / EPOCH
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return lambda: float(train(x, y))


def tensorflow_rows(name, package, model, note, x, y):
    def row(loop, compiled):
        step = tensorflow_step(*model(), x, y, compiled)
        return Row(package, loop, step, note)

    return {
        name: row("tf.function", compiled=False),
        name + XLA: row("tf.function, XLA", compiled=True),
    }


def tf_keras_rows(name, peer, widths, x, y):
    model = functools.partial(tf_keras_model, peer.layer, widths)
    return tensorflow_rows(name, peer.package, model, peer.note, x, y)


def torch_step(layer, kl, widths, x, y):
    import torch
    from torch.nn import functional

    sizes = itertools.pairwise((PIXELS, *widths, CLASSES))
    layers = torch.nn.ModuleList(layer(*size) for size in sizes)
    optimizer = torch.optim.Adam(layers.parameters())
    x = torch.from_numpy(x)

    def forward():
        outputs, total = x, 0.0
        for number, layer in enumerate(layers):
            outputs = layer(functional.relu(outputs) if number else outputs)
            # bayesian-torch returns the KL beside the outputs.
            if isinstance(outputs, tuple):
                outputs, own = outputs
                total = total + own
        return outputs, total + kl(layers)

    return torch_loop(optimizer.zero_grad, forward, optimizer.step, y)


def torch_loop(zero_grad, forward, update, y):
    import torch
    from torch.nn import functional

    y = torch.from_numpy(y)

    def step():
        zero_grad()
        logits, divergence = forward()
        loss = functional.cross_entropy(logits, y) + divergence / EPOCH
        loss.backward()
        update()
        return loss.item()

    return step


def torch_rows(name, peer, widths, x, y):
    step = torch_step(peer.layer, peer.kl, widths, x, y)
    return {name: Row(peer.package, "zero_grad, backward", step, peer.note)}


# Functions that import a library, and the one that makes rows of its layers.
PEERS = {
    "tensorflow": (
        (tf_keras_peers, tensorflow_probability_peers, edward2_peers),
        tf_keras_rows,
    ),
    "torch": (
        (torch_peers, bayesian_torch_peers, torchbnn_peers, blitz_peers),
        torch_rows,
    ),
}


def peer_rows(backend, widths, x, y):
    """Of the libraries that are installed."""
    libraries, rows_of = PEERS[backend]
    rows, missing = {}, False
    for library in libraries:
        try:
            peers = library()
        except ImportError as error:
            reason = " ".join(str(error).split())
            print(
                f"Without {library.__name__.removesuffix('_peers')}: {reason}"
            )
            missing = True
            continue
        for name, peer in peers.items():
            rows.update(rows_of(name, peer, widths, x, y))
    if missing:
        show_install_lines(backend)
    return rows


def show_install_lines(backend):
    print(f"\nFor all the peers on {backend}, in the folder of the project:\n")
    print(textwrap.indent(INSTALL_LINES[backend], 4 * " ") + "\n")


def tables(seconds):
    """Comparisons by their base: of steps as they are, and of those by XLA."""
    found = {}
    for suffix in ("", XLA):
        part = {
            name: own
            for name, own in seconds.items()
            if name.endswith(XLA) == bool(suffix)
        }
        if part:
            found[BASE + suffix] = timing.compare(part, BASE + suffix)
    return found


def store(compared, rows, options):
    import experiments

    results, versions = experiments.Results(options.out), experiments.versions()
    for base, table in compared.items():
        for name, columns in table.items():
            package = rows[name].package
            version = versions.get(package)
            version = version or importlib.metadata.version(package)
            results.append(
                {
                    "model": name,
                    "library": f"{package} {version}",
                    "loop": rows[name].loop,
                    **columns,
                    "ratio_to": base,
                    "note": rows[name].note,
                    "batch_size": options.batch_size,
                    "widths": " ".join(map(str, options.widths)),
                    "threads": options.threads,
                    **versions,
                }
            )


def show_notes(rows):
    print()
    for note, names in itertools.groupby(rows, lambda name: rows[name].note):
        text = f"{', '.join(names)}: {note}."
        print(textwrap.fill(text, 80, subsequent_indent="  "))


def check(rows):
    """Each step trains: a loss that is no number would make the time void."""
    for name, row in rows.items():
        loss = row.step()
        if not math.isfinite(loss):
            sys.exit(f"The loss of {name} is {loss}.")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--rounds", type=int, default=30)
    option("--batch-size", type=int, default=128)
    option("--widths", nargs="+", type=int, default=[1024, 1024, 1024])
    option("--threads", type=int, default=timing.cores())
    option("--out", default="benchmark_peers.csv")
    option(
        "--install-lines",
        action="store_true",
        help="print how to install the peers, and do nothing else",
    )
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds needs 2 at least, for quartiles")
    return options


def main():
    options = parse_arguments()
    if options.install_lines:
        for backend in INSTALL_LINES:
            show_install_lines(backend)
        return
    timing.limit_threads(options.threads)
    # Each model compiles a step of its own, of which tensorflow would warn.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Edward2 is made for the Keras of tf_keras, and takes it from tensorflow.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import keras
    import numpy as np

    backend = keras.backend.backend()
    if backend not in PEERS:
        print(f"There is no peer on {backend}, only on {' and '.join(PEERS)}.")
        return
    generator = np.random.default_rng(0)
    x = generator.random((options.batch_size, PIXELS), dtype="float32")
    y = generator.integers(CLASSES, size=options.batch_size)
    rows = our_rows(backend, options.widths, x, y)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        rows.update(peer_rows(backend, options.widths, x, y))
        check(rows)
    steps = {name: row.step for name, row in rows.items()}
    compared = tables(timing.alternate(steps, options.rounds))
    store(compared, rows, options)
    for base, table in compared.items():
        timing.show(table, base)
    show_notes(rows)


if __name__ == "__main__":
    main()
