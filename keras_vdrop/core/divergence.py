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
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vdrop.backend import at_most
from keras_vdrop.backend import plus
from keras_vdrop.backend import times
from keras_vdrop.backend import times_rest
from keras_vdrop.backend import with_gradient
from keras_vdrop.backend import zero_where
from keras_vdrop.core.dtypes import at_least_float32

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

# Powers of tanh((log_alpha + SHIFT) / 2) in `exact`: truncated Chebyshev
# series, which tests/core/test_divergence.py computes from the hypergeometric
# function. The shorter one is as good as float32 can tell.
SHIFT = 2.75
EXACT_FLOAT32 = (
    1.178609617,
    -0.2109737196,
    -0.2840627992,
    -0.377258306,
    -0.4019580191,
    -0.2204806072,
    0.1131720896,
    0.2482511036,
    0.03561434015,
    -0.1279111227,
    -0.002372454326,
    0.08527862096,
    -0.003216906335,
    -0.03891260842,
    -0.0004587489445,
    0.00682524178,
    -0.000145720856,
)
EXACT_FLOAT64 = (
    1.1786095801438862,
    -0.21097442528433463,
    -0.28405655183070027,
    -0.37722331051604575,
    -0.40213560256176636,
    -0.22098307576141516,
    0.11514919997321091,
    0.25140872725896767,
    0.024332052356163176,
    -0.13757922491953266,
    0.034874722691024812,
    0.096666402905610507,
    -0.077814340946599206,
    -0.022753543512049702,
    0.087041031029362656,
    -0.076153766639929744,
    -0.041277745704978268,
    0.14912960499411355,
    -0.043968920365131407,
    -0.15924988133433209,
    0.10280095119798362,
    0.11059217919989219,
    -0.097792659304745027,
    -0.049778982317751273,
    0.053825414881719397,
    0.013347359722060027,
    -0.016662059100681172,
    -0.0016294865268320337,
    0.002256350275516057,
)


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
    slope = _horner((-0.5, -C1, -2 * C2, -3 * C3), alpha)
    return times(slope, upstream), None


@with_gradient(_polynomial_gradient, kept_from=1)
def _polynomial(log_alpha: Any, alpha: Any) -> Any:
    # The cubic minus its value at 1, divided by alpha - 1: the KL is exactly
    # 0 at alpha = 1.
    quotient = _horner((C1 + C2 + C3, C2 + C3, C3), alpha)
    return plus(times_rest(quotient, alpha), log_alpha, -0.5)


def _limited_polynomial_gradient(
    upstream: Any, alpha: Any, limit: Any, max_alpha: Any
) -> tuple[Any, None, None, None]:
    del limit
    slope, _ = _polynomial_gradient(upstream, at_most(alpha, max_alpha))
    return zero_where(alpha > max_alpha, slope), None, None, None


@with_gradient(_limited_polynomial_gradient, kept_from=1)
def _limited_polynomial(
    log_alpha: Any, alpha: Any, limit: Any, max_alpha: Any
) -> Any:
    return _polynomial(at_most(log_alpha, limit), at_most(alpha, max_alpha))


def limited_polynomial(log_alpha: Any, limit: float) -> Any:
    """`polynomial` of at most a limit, without a gradient beyond.

    The exponential is that of log alpha itself, and so the same as in the
    variance of the weights: a compiler computes it once.
    """
    limits = (ops.cast(x, log_alpha.dtype) for x in (limit, math.exp(limit)))
    return _limited_polynomial(log_alpha, ops.exp(log_alpha), *limits)


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
    the integral of Dawson's function from 0 to `sqrt(t)`. It is computed as
    `0.5 * log(1 + h / alpha)`, where `log(h)` is a smooth function that falls
    from 1.27 to 0 as alpha grows, and is a polynomial here: one expression, to
    rounding in float32 and to 1e-10 in float64.

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
    return _exact(_as_float(log_alpha))


def _exact_gradient(upstream: Any, log_alpha: Any) -> tuple[Any]:
    z, powers = _series(log_alpha)
    log_h = _horner(powers, z)
    weight = ops.sigmoid(plus(log_h, log_alpha, -1.0))
    slope = _horner([n * power for n, power in enumerate(powers)][1:], z)
    # The chain rule: the derivative of z is (1 - z**2) / 2.
    slope = times_rest(times(slope, 0.5), times(z, z))
    return (times(times(plus(slope, -1.0), times(weight, 0.5)), upstream),)


@with_gradient(_exact_gradient)
def _exact(log_alpha: Any) -> Any:
    z, powers = _series(log_alpha)
    log_h = _horner(powers, z)
    return times(ops.softplus(plus(log_h, log_alpha, -1.0)), 0.5)


def _series(log_alpha: Any) -> tuple[Any, Sequence[float]]:
    """The argument of the polynomial for log(h), and its coefficients."""
    dtype = keras.backend.standardize_dtype(log_alpha.dtype)
    # tanh((log_alpha + SHIFT) / 2): `ops.tanh` is never float64 on jax.
    z = plus(times(ops.sigmoid(log_alpha + SHIFT), 2.0), -1.0)
    return z, EXACT_FLOAT64 if dtype == "float64" else EXACT_FLOAT32


def _horner(powers: Sequence[float], z: Any) -> Any:
    """`powers[0] + powers[1] * z + ...`"""
    value = plus(z * powers[-1], powers[-2])
    for power in reversed(powers[:-2]):
        value = plus(times(value, z), power)
    return value


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
