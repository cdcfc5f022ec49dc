"""KL divergence of a dropout posterior from its prior, for one weight.

Each function maps `log_alpha`, elementwise, to the divergence in nats of
`q(w) = N(theta, alpha * theta**2)` from the scale-invariant log-uniform prior
(Kingma, Salimans, Welling 2015, appendix C). The prior is improper, so the
divergence is known up to a constant: it is chosen to be 0 at `alpha = 1`.

A function that holds only up to some alpha says so in its attribute
`max_alpha`, and layers refuse to train beyond it.
"""

import keras
from keras import ops

from keras_vdrop.validation import invalid

# Kingma, Salimans, Welling 2015, appendix C: the cubic in alpha that stands
# for -E[log|epsilon|], epsilon ~ N(1, alpha).
C1 = 1.16145124
C2 = -1.50204118
C3 = 0.58629921


def polynomial(log_alpha):
    """The paper's approximation, for `alpha <= 1`.

    `KL = -(0.5 * log(alpha) + c1 * alpha + c2 * alpha**2 + c3 * alpha**3) + c`
    with `c = c1 + c2 + c3`, so that it is 0 at `alpha = 1`.

    Args:
        log_alpha: Tensor, the logarithm of alpha.

    Returns:
        A tensor of the shape of `log_alpha`: the KL of one weight in nats.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> float(keras_vdrop.divergence.polynomial(np.zeros(())))
    0.0

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """
    log_alpha = ops.convert_to_tensor(log_alpha)
    alpha = ops.exp(log_alpha)
    # The cubic minus its value at 1, divided by alpha - 1: nothing cancels,
    # and the KL is exactly 0 at alpha = 1.
    quotient = (C1 + C2 + C3) + alpha * ((C2 + C3) + alpha * C3)
    return -0.5 * log_alpha - ops.expm1(log_alpha) * quotient


def lower_bound(log_alpha):
    """`-0.5 * log(alpha)`, for `alpha <= 1`.

    What remains of the divergence when the paper's intractable term, which is
    never negative, is left out of the bound.

    Args:
        log_alpha: Tensor, the logarithm of alpha.

    Returns:
        A tensor of the shape of `log_alpha`: the KL of one weight in nats.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> float(keras_vdrop.divergence.lower_bound(np.array(-2.0)))
    1.0

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """
    return -0.5 * ops.convert_to_tensor(log_alpha)


polynomial.max_alpha = 1.0
lower_bound.max_alpha = 1.0

BUILT_IN = {
    function.__name__: function for function in (polynomial, lower_bound)
}


def get(identifier):
    """The divergence of a name, of a config or of a callable.

    Args:
        identifier: The name of a function of this module or of one registered
            with `keras.saving.register_keras_serializable`, a config made by
            `serialize`, or a callable of `log_alpha`.

    Returns:
        A callable of `log_alpha`.
    """
    found = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    elif isinstance(identifier, str):
        found = BUILT_IN.get(
            identifier, keras.saving.get_registered_object(identifier)
        )
    if not callable(found):
        raise invalid(
            "kl",
            f"one of {tuple(BUILT_IN)}, the name of a registered function, or "
            "a callable of log alpha",
            identifier,
        )
    return found


def serialize(divergence):
    """The inverse of `get`: a name, or the config of a user's own function."""
    name = getattr(divergence, "__name__", None)
    if BUILT_IN.get(name) is divergence:
        return name
    return keras.saving.serialize_keras_object(divergence)
