"""Computes the coefficients of `keras_vdrop.core.exact_divergence`.

    python tests/core/exact_fit.py

`chebyshev` gives the truncated series, for float64. `minimax` gives the
polynomial with the smallest largest error, by least squares whose weights grow
where the error is large (Lawson 1961), for float32.
"""

import mpmath
import numpy as np
from numpy.polynomial import chebyshev

NODES = 160


def functions(z, shift):
    """The two functions that the polynomials stand for, of 2 * z."""
    sigma = (z + 1) / 2
    log_alpha = -mpmath.log(sigma / (1 - sigma)) - shift
    t = mpmath.exp(-log_alpha) / 2
    kl = t * mpmath.hyp2f2(1, 1, mpmath.mpf(3) / 2, 2, -t)
    # Dawson's function of sqrt(t).
    root = mpmath.sqrt(t)
    dawson = mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-t) * mpmath.erfi(root)
    softplus = -mpmath.log(1 - sigma)
    return (kl - softplus / 2) / sigma, -root * dawson / sigma


def series(shift, count=60):
    """Chebyshev coefficients of both functions."""
    with mpmath.workdps(40):
        angles = [mpmath.pi * (k + 0.5) / NODES for k in range(NODES)]
        values = [functions(mpmath.cos(a), mpmath.mpf(shift)) for a in angles]
        values = np.array(values).astype("float64")
    cosines = np.cos(np.outer(np.arange(count), np.array(angles, "float64")))
    found = 2 * cosines @ values / NODES
    found[0] /= 2
    return found.T


def truncated(coefficients, degree):
    return chebyshev.cheb2poly(coefficients[: degree + 1])


def minimax(coefficients, weight, degree, rounds=400):
    """Powers of the polynomial with the smallest largest weighted error.

    Args:
        coefficients: Chebyshev series of the function.
        weight: Function of z and of the function that returns weights.
        degree: Of the polynomial.
        rounds: Of least squares.
    """
    z = np.cos(np.pi * (np.arange(6000) + 0.5) / 6000)
    values = chebyshev.chebval(z, coefficients)
    weight = weight(z, values)
    basis = chebyshev.chebvander(z, degree) * weight[:, None]
    shares, best = np.ones_like(z), (np.inf, None)
    for _ in range(rounds):
        root = np.sqrt(shares)
        found = np.linalg.lstsq(
            basis * root[:, None], values * weight * root, rcond=None
        )[0]
        error = np.abs(basis @ found - values * weight)
        if error.max() < best[0]:
            best = (error.max(), found)
        shares *= error / error.max() + 1e-3
        shares /= shares.max()
    return chebyshev.cheb2poly(best[1])


def weight_of_values(z, values):
    """Errors of the KL relative to the KL, absolute where it is below 1."""
    sigma = (z + 1) / 2
    kl = sigma * values - 0.5 * np.log1p(-sigma)
    return sigma / np.maximum(1, kl)


def weight_of_slopes(z, values):
    """Relative errors."""
    del z
    return 1 / values


def coefficients(shift):
    """The four tuples of the module, by their names."""
    value, slope = series(shift)
    found = {
        "VALUE_FLOAT32": minimax(value, weight_of_values, 11),
        "SLOPE_FLOAT32": minimax(slope, weight_of_slopes, 12),
        "VALUE_FLOAT64": truncated(value, 26),
        "SLOPE_FLOAT64": truncated(slope, 30),
    }
    # The fits are in 2 * z, which is between -1 and 1.
    return {
        name: powers * 2.0 ** np.arange(len(powers))
        for name, powers in found.items()
    }


if __name__ == "__main__":
    for name, powers in coefficients(2.9).items():
        digits = 10 if "32" in name else 17
        print(f"{name} = (")
        for power in powers:
            print(f"    {power:.{digits}g},")
        print(")")
