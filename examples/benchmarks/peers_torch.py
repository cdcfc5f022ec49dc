"""The peers on torch, and the loop that trains them."""

import contextlib
import functools
import itertools

import torch
from torch.nn import functional

from peers import CLASSES
from peers import EXAMPLES
from peers import FLIPOUT
from peers import NO_NOISE
from peers import NORMAL_KL
from peers import SAMPLE
from peers import Peer
from peers import Row

NAME = "torch"
LOOP = "zero_grad, backward"


def torch_itself():
    return {"torch Linear": Peer("torch", torch.nn.Linear, NO_NOISE)}


def bayesian_torch():
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


def torchbnn():
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


def blitz():
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


def ivon():
    from peers_ivon import ivon_optimizer

    return {
        "IVON": Peer(
            "ivon-opt",
            torch.nn.Linear,
            f"an optimizer that learns a variance of each weight; {SAMPLE}",
            optimizer=functools.partial(ivon_optimizer, num_examples=EXAMPLES),
        ),
    }


LIBRARIES = (torch_itself, bayesian_torch, torchbnn, blitz)
OPTIMIZERS = (ivon,)


def peer_rows(name, peer, sizes):
    pairs = itertools.pairwise((*sizes, CLASSES))
    layers = torch.nn.ModuleList(peer.layer(*pair) for pair in pairs)
    make = peer.optimizer or torch.optim.Adam
    optimizer = make(layers.parameters())

    def forward(x):
        outputs, total = x, 0.0
        for number, layer in enumerate(layers):
            outputs = layer(functional.relu(outputs) if number else outputs)
            # bayesian-torch returns the KL beside the outputs.
            if isinstance(outputs, tuple):
                outputs, own = outputs
                total = total + own
        return outputs, total + peer.kl(layers)

    def set_learning_rate(rate):
        for group in optimizer.param_groups:
            # That of IVON is 100 times as large.
            group["lr"] = rate * group.setdefault("first", group["lr"]) / 1e-3

    return {
        name: row(
            peer.package,
            forward,
            means_of(layers[0]),
            optimizer.zero_grad,
            optimizer.step,
            set_learning_rate,
            peer.note,
            getattr(optimizer, "sampled_params", None),
        )
    }


def means_of(layer):
    """Returns the matrix of weights, or of their means if there are some."""
    matrices = {name: x for name, x in layer.named_parameters() if x.ndim == 2}
    means = [x for name, x in matrices.items() if "mu" in name]
    # BLiTZ has them twice, and trains the second.
    return means[-1] if means else matrices["weight"]


def keras_rows(name, package, build, note):
    model, optimizer = build()
    variables = model.trainable_variables

    def update():
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    return {
        name: row(
            package,
            lambda x: (model(x, training=True), sum(model.losses)),
            variables[0].value,
            model.zero_grad,
            update,
            lambda rate: optimizer.learning_rate.assign(rate),
            note,
        )
    }


def row(
    package, forward, weights, zero_grad, update, set_rate, note, sampled=None
):
    """Returns a `Row`.

    Args:
        forward: Function of images that returns logits and the KL.
        weights: The weights of the first layer, or their means.
        zero_grad, update: Functions before and behind the gradients.
        sampled: Scope in which the weights are samples, where an optimizer
            makes them so.
    """

    def scope(**arguments):
        return sampled(**arguments) if sampled else contextlib.nullcontext()

    def backward(x, y):
        zero_grad()
        logits, divergence = forward(torch.as_tensor(x))
        loss = functional.cross_entropy(logits, torch.as_tensor(y).long())
        loss = loss + divergence / EXAMPLES
        loss.backward()
        return loss

    def step(x, y):
        with scope(train=True) if sampled else scope():
            loss = backward(x, y)
        update()
        return loss.item()

    def logits(x):
        with torch.no_grad(), scope():
            return forward(torch.as_tensor(x))[0].numpy()

    def gradient(x, y):
        with scope():
            backward(x, y)
            return weights.grad.numpy().copy()

    return Row(package, LOOP, step, logits, gradient, set_rate, note)
