"""KL divergence of a dropout posterior from its prior, for one weight.

Each function maps `log_alpha`, elementwise, to the divergence in nats of
`q(w) = N(theta, alpha * theta**2)` from its prior: for `ard` the normal prior
whose variance fits best, for the others the scale-invariant log-uniform prior
(Kingma, Salimans, Welling 2015, appendix C). That prior is improper, so the
divergence is known up to a constant. The paper's two functions hold for
`alpha <= 1` and are 0 there; the others hold for every alpha and vanish as it
grows.

A function that holds only up to some alpha says so in its attribute
`max_alpha`, and layers refuse to train beyond it.
"""

import math
from typing import Any

from keras import ops

from keras_vdrop.backend import at_most
from keras_vdrop.backend import horner
from keras_vdrop.backend import plus
from keras_vdrop.backend import times
from keras_vdrop.backend import times_rest
from keras_vdrop.backend import with_gradient
from keras_vdrop.backend import zero_where
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.exact_divergence import exact_divergence

__all__ = ["ard", "exact", "lower_bound", "polynomial", "sigmoid"]

# Kingma, Salimans, Welling 2015, appendix C: the cubic in alpha that stands
# for -E[log|epsilon|], epsilon ~ N(1, alpha).
C1 = 1.16145124
C2 = -1.50204118
C3 = 0.58629921

# Molchanov, Ashukha, Vetrov 2017, equation 14.
K1 = 0.63576
K2 = 1.87320
K3 = 1.48695


def polynomial(log_alpha: Any) -> Any:
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
    log_alpha = _as_float(log_alpha)
    return _polynomial(log_alpha, ops.exp(log_alpha))


def _polynomial_gradient(upstream: Any, alpha: Any) -> tuple[Any, None]:
    # The derivative with respect to log alpha. It already includes the path
    # through alpha, so that argument gets none.
    slope = horner((-0.5, -C1, -2 * C2, -3 * C3), alpha)
    return times(slope, upstream), None


@with_gradient(_polynomial_gradient, kept_from=1)
def _polynomial(log_alpha: Any, alpha: Any) -> Any:
    # The cubic minus its value at 1, divided by alpha - 1: the KL is exactly
    # 0 at alpha = 1.
    quotient = horner((C1 + C2 + C3, C2 + C3, C3), alpha)
    return plus(times_rest(quotient, alpha), log_alpha, -0.5)


def _limited_polynomial_gradient(
    upstream: Any, alpha: Any, limit: float, max_alpha: float
) -> tuple[Any, None]:
    del limit
    slope, _ = _polynomial_gradient(upstream, at_most(alpha, max_alpha))
    return zero_where(alpha > max_alpha, slope), None


@with_gradient(_limited_polynomial_gradient, kept_from=1)
def _limited_polynomial(
    log_alpha: Any, alpha: Any, limit: float, max_alpha: float
) -> Any:
    return _polynomial(at_most(log_alpha, limit), at_most(alpha, max_alpha))


def limited_polynomial(log_alpha: Any, limit: float) -> Any:
    """`polynomial` of at most a limit, without a gradient beyond.

    The exponential is that of log alpha itself, and so the same as in the
    variance of the weights: a compiler computes it once.
    """
    return _limited_polynomial(
        log_alpha, ops.exp(log_alpha), limit=limit, max_alpha=math.exp(limit)
    )


def lower_bound(log_alpha: Any) -> Any:
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
    return -0.5 * _as_float(log_alpha)


def exact(log_alpha: Any) -> Any:
    """The divergence itself, for every alpha.

    `KL = t * 2F2(1, 1; 3/2, 2; -t)` with `t = 1 / (2 * alpha)`, which is twice
    the integral of Dawson's function from 0 to `sqrt(t)`. In float32 it is
    right to 5e-7 times the larger of 1 and the KL, in float64 to 1e-10.

    Args:
        log_alpha: Tensor, the logarithm of alpha.

    Returns:
        A tensor of the shape of `log_alpha`: the KL of one weight in nats.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> round(float(keras_vdrop.divergence.exact(np.zeros(()))), 5)
    0.42669

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """
    return exact_divergence(_as_float(log_alpha))


def sigmoid(log_alpha: Any) -> Any:
    """The approximation of sparse variational dropout, for every alpha.

    `KL = 0.5 * log(1 + 1 / alpha) + k1 * (1 - sigmoid(k2 + k3 * log(alpha)))`.

    Args:
        log_alpha: Tensor, the logarithm of alpha.

    Returns:
        A tensor of the shape of `log_alpha`: the KL of one weight in nats.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> round(float(keras_vdrop.divergence.sigmoid(np.zeros(()))), 5)
    0.43124

    Reference:

    - [Molchanov, Ashukha, Vetrov, 2017](https://arxiv.org/abs/1701.05369)
    """
    log_alpha = _as_float(log_alpha)
    return ard(log_alpha) + K1 * ops.sigmoid(-K2 - K3 * log_alpha)


def ard(log_alpha: Any) -> Any:
    """Automatic relevance determination, for every alpha.

    `KL = 0.5 * log(1 + 1 / alpha)`: the divergence from a normal prior with
    mean 0 and, for each weight, the variance that makes it smallest.

    Args:
        log_alpha: Tensor, the logarithm of alpha.

    Returns:
        A tensor of the shape of `log_alpha`: the KL of one weight in nats.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> round(float(keras_vdrop.divergence.ard(np.zeros(()))), 5)
    0.34657

    Reference:

    - [Kharitonov, Molchanov, Vetrov, 2018](https://arxiv.org/abs/1811.00596)
    """
    return 0.5 * ops.softplus(-_as_float(log_alpha))


def _as_float(log_alpha: Any) -> Any:
    """A tensor of float32 at least."""
    log_alpha = ops.convert_to_tensor(log_alpha)
    return ops.cast(log_alpha, at_least_float32(log_alpha.dtype))


polynomial.max_alpha = 1.0  # type: ignore[attr-defined]
polynomial.limited = limited_polynomial  # type: ignore[attr-defined]
lower_bound.max_alpha = 1.0  # type: ignore[attr-defined]
