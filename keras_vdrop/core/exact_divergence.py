"""The divergence from the log-uniform prior without approximation.

With `t = 1 / (2 * alpha)` and Dawson's function `D`,

    KL = t * 2F2(1, 1; 3/2, 2; -t) = 2 * (integral of D from 0 to sqrt(t)),
    derivative with respect to log alpha = -sqrt(t) * D(sqrt(t)).

With `s = sigmoid(-(log_alpha + SHIFT))` both are smooth functions of
`z = 2 * s - 1`, which polynomials stand for:

    KL = s * VALUE(z) + 0.5 * softplus(-(log_alpha + SHIFT))
    derivative = -s * SLOPE(z)

In float32 the value is right to 4e-7 * max(1, KL) and the derivative to
a relative 3e-6, in float64 to 1e-10. tests/core/exact_fit.py computes the
coefficients.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vdrop.backend import plus
from keras_vdrop.backend import softplus
from keras_vdrop.backend import times
from keras_vdrop.backend import with_gradient

SHIFT = 2.9
VALUE_FLOAT32 = (
    3.416362021,
    -2.278864405,
    1.598184862,
    -1.017442912,
    0.4593365273,
    0.002871342591,
    -0.1931250908,
    0.07688269511,
    0.07986033152,
    -0.05317951586,
    -0.03146989694,
    0.02432081643,
    0.006987158029,
    -0.005542140682,
)
SLOPE_FLOAT32 = (
    1.068748547,
    -1.249439968,
    1.551830335,
    -1.986966336,
    2.27096126,
    -1.729338095,
    0.1693186596,
    1.044677583,
    -0.5240089738,
    -0.5617083124,
    0.4107133009,
    0.2419278399,
    -0.1987356925,
    -0.05269432243,
    0.04471362516,
)
VALUE_FLOAT64 = (
    3.4163622499971744,
    -2.2788638832333019,
    1.5981554102975546,
    -1.0174565387194014,
    0.4599510419007945,
    0.0029533953970584496,
    -0.19801084938080049,
    0.076719536208083972,
    0.099195415104084389,
    -0.052382809366437216,
    -0.074579677369168484,
    0.017719269492067875,
    0.064738812241834309,
    0.018822093036082586,
    -0.047180507147980749,
    -0.047493743785141068,
    0.019623121928618478,
    0.055847200908055943,
    0.0053396382866293651,
    -0.042531434792377192,
    -0.015046189246578134,
    0.02113774657771466,
    0.010917057905749213,
    -0.0062528310645804481,
    -0.0039327181956033954,
    0.00083636835245574112,
    0.00059424740872368045,
)
SLOPE_FLOAT64 = (
    1.0687491834304117,
    -1.2494576537324393,
    1.5517567638585092,
    -1.9860596415685063,
    2.272272998354897,
    -1.7424200650001072,
    0.1606333619468085,
    1.1279325686854618,
    -0.49279668435075363,
    -0.84288421234711208,
    0.32086795504118337,
    0.79042596161450018,
    0.052227947447398192,
    -0.66628352743689945,
    -0.5153501687033839,
    0.25558258328566352,
    0.84597854145828477,
    0.41355791454186663,
    -0.81276732669178298,
    -1.0071665554982117,
    0.43455442553476853,
    1.154692112338598,
    -0.015606050700063955,
    -0.83811655835413623,
    -0.16928562947623652,
    0.3909336363643639,
    0.13212531860560051,
    -0.10761840494602488,
    -0.046508132763548746,
    0.013345499699969371,
    0.0066838393737601309,
)


def _gradient(upstream: Any, log_alpha: Any) -> tuple[Any]:
    sigma = ops.sigmoid(_argument(log_alpha))
    slope = horner(_powers(log_alpha, SLOPE_FLOAT32, SLOPE_FLOAT64), _z(sigma))
    return (times(times(times(slope, sigma), -1.0), upstream),)


@with_gradient(_gradient)
def exact_divergence(log_alpha: Any) -> Any:
    """The KL of one weight, elementwise, of a tensor of float32 or float64."""
    x = _argument(log_alpha)
    sigma = ops.sigmoid(x)
    value = horner(_powers(log_alpha, VALUE_FLOAT32, VALUE_FLOAT64), _z(sigma))
    return plus(times(value, sigma), softplus(x), 0.5)


def _argument(log_alpha: Any) -> Any:
    return -SHIFT - log_alpha


def _z(sigma: Any) -> Any:
    return plus(sigma * 2.0, -1.0)


def _powers(log_alpha: Any, short: Sequence, long: Sequence) -> Sequence[float]:
    dtype = keras.backend.standardize_dtype(log_alpha.dtype)
    return long if dtype == "float64" else short


def horner(powers: Sequence[float], z: Any) -> Any:
    """`powers[0] + powers[1] * z + ...`"""
    value = plus(z * powers[-1], powers[-2])
    for power in reversed(powers[:-2]):
        value = plus(times(value, z), power)
    return value
