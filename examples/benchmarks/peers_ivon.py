"""IVON (Shen et al. 2024), an optimizer that learns a variance of each weight.

It needs torch and `pip install --no-deps ivon-opt==0.1.3`.
"""

from torch.nn import functional

INSTALL_LINE = "pip install --no-deps ivon-opt==0.1.3"


def ivon_optimizer(
    parameters,
    num_examples,
    learning_rate=0.1,
    initial_hessian=0.1,
    weight_decay=1e-4,
):
    """Returns IVON, as its authors advise to use it.

    The effective sample size is the number of training examples. The precision
    of the normal prior is that number times the weight decay. Schedulers of
    torch can change the learning rate.

    Args:
        parameters: Those of a torch module.
        num_examples: Size of the training set.
        learning_rate: Of natural gradient descent, so larger than Adam's.
        initial_hessian: The variance of a weight begins at
            `1 / (num_examples * (initial_hessian + weight_decay))`.
        weight_decay: Part of the prior.
    """
    from ivon import IVON

    return IVON(
        parameters,
        lr=learning_rate,
        ess=float(num_examples),
        hess_init=initial_hessian,
        weight_decay=weight_decay,
    )


def ivon_step(model, optimizer, x, y):
    """Trains a torch classifier once, with one sample of its weights.

    Returns the loss, a tensor.
    """
    with optimizer.sampled_params(train=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    return loss.detach()


def ivon_samples(model, optimizer, x, number):
    """Yields the outputs for samples of the weights."""
    for _ in range(number):
        with optimizer.sampled_params():
            yield model(x)
