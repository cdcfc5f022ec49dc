"""The peers on torch, and the loop that trains them."""

import functools
import itertools

import torch
from torch.nn import functional

from peers import CLASSES
from peers import EXAMPLES
from peers import FLIPOUT
from peers import NO_NOISE
from peers import NORMAL_KL
from peers import PIXELS
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


LIBRARIES = (torch_itself, bayesian_torch, torchbnn, blitz)


def peer_rows(name, peer, widths, x, y):
    step = torch_step(peer.layer, peer.kl, widths, x, y)
    return {name: Row(peer.package, LOOP, step, peer.note)}


def keras_rows(name, package, build, note, x, y):
    return {name: Row(package, LOOP, keras_step(*build(), x, y), note)}


def torch_step(layer, kl, widths, x, y):
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

    return training_step(optimizer.zero_grad, forward, optimizer.step, y)


def keras_step(model, optimizer, x, y):
    variables = model.trainable_variables
    x = torch.from_numpy(x)

    def forward():
        return model(x, training=True), sum(model.losses)

    def update():
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    return training_step(model.zero_grad, forward, update, y)


def training_step(zero_grad, forward, update, y):
    y = torch.from_numpy(y)

    def step():
        zero_grad()
        logits, divergence = forward()
        loss = functional.cross_entropy(logits, y) + divergence / EXAMPLES
        loss.backward()
        update()
        return loss.item()

    return step
