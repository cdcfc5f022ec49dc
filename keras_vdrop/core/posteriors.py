"""Posteriors of the weights of one kernel.

A posterior says what its variable means, how many random variables there are,
and which weights share their noise. It holds no variables: its methods are
functions of the variable of the noise and of the means.
"""

import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import pointwise
from keras_vdrop.core.axes import GRANULARITIES
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.validation import invalid

# How far gradient descent moves log alpha, in natural gradients and learning
# rates. The KL gives a natural gradient of about `1 / num_examples`.
NATURAL_STEP = 32.0**2


class Variance(NamedTuple):
    """The variance of the weights as a product of factors.

    `inputs * outputs * exp(log_alpha) * mean**2`, or with `weights` in place
    of the last two. A factor that is `None` is 1. Those of the inputs and of
    the outputs have the shape of their granularity, or none. `log_alpha` is
    not limited yet, to at most `limit`.
    """

    inputs: Any = None
    outputs: Any = None
    log_alpha: Any = None
    limit: float | None = None
    weights: Any = None


class Independent:
    """`w ~ N(theta, alpha * theta**2)`, each weight on its own (type B).

    Args:
        axes: The axes of the kernel.
        granularity: What has an alpha of its own.
        max_alpha: The largest alpha, or `None` for no limit.
        speed: The variable is log alpha divided by this.
        natural: Whether the gradient of an alpha is divided by the number of
            weights that share it, up to a constant.
    """

    variable_name = "log_alpha"
    # The values that it takes of the arguments of a layer, and why no others.
    takes: dict[str, tuple] = {"granularity": GRANULARITIES}
    reason = ""
    # Whether all the weights of an input share their noise.
    correlated = False
    # With more the KL, which counts every weight, drives alpha to its limit
    # before the weights are learned (docs/choosing.md).
    default_speed = 1.0

    def __init__(
        self,
        axes: Axes,
        granularity: str,
        max_alpha: float | None,
        speed: float = 1.0,
        natural: bool = False,
    ):
        self.axes = axes
        self.granularity = granularity
        self.max_alpha = max_alpha
        self.speed = speed
        # The natural gradient of an alpha is its gradient divided by the
        # Fisher information, which is half the number that share it.
        sharing = self.terms / math.prod(self.shape)
        slope = NATURAL_STEP / (speed * sharing)
        if speed == 1:
            # Log alpha itself takes no further steps than its gradient says.
            slope = min(slope, 1.0)
        self._times_speed = None
        if natural and (speed, slope) != (1, 1):
            self._times_speed = pointwise.scaled(speed, slope)

    @property
    def log_limit(self) -> float | None:
        """The logarithm of the largest alpha, or `None`."""
        return None if self.max_alpha is None else math.log(self.max_alpha)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable of the noise."""
        return self.axes.shape(self.granularity)

    @property
    def terms(self) -> int:
        """The number of random variables, each with a KL."""
        return math.prod(self.axes.kernel_shape)

    def read(self, value: Any) -> Any:
        """Log alpha, or the log variance, for a value of the variable."""
        value = backend.value_of(value)
        return self._times_speed(value) if self._times_speed else value

    def write(self, value: Any) -> Any:
        """The inverse of `read`. It is exact for a power of two."""
        return value if self.speed == 1 else value / self.speed

    def from_log_alpha(self, log_alpha: Any, mean: Any) -> Any:
        """The value of the variable for a log alpha."""
        del mean
        return self.write(log_alpha)

    def to_log_alpha(self, value: Any, mean: Any) -> Any:
        """Log alpha for a value of the variable, without the limit."""
        del mean
        return self.read(value)

    def of_log_alpha(self, function: Callable, value: Any, mean: Any) -> Any:
        """A function of log alpha, such as a KL, which is at most its limit.

        Beyond the limit there is no gradient: of a KL, which falls as alpha
        grows, it would lead further out.
        """
        log_alpha = self.to_log_alpha(value, mean)
        limit = self.log_limit
        if limit is None:
            return function(log_alpha)
        if backend.FUSES and hasattr(function, "limited"):
            return function.limited(log_alpha, limit)
        limited = backend.unless_above(
            lambda: ops.max(log_alpha),
            limit + pointwise.ROUNDING,
            lambda: backend.hard_limit(log_alpha, limit),
            lambda: log_alpha,
            made_of=self.made_of(value, mean),
        )
        return function(limited)

    def constrained(self, value: Any, mean: Any) -> Any:
        """The value of the variable, at most that of the limit."""
        assert self.log_limit is not None
        # The noise and the KL of a training step look once each.
        backend.remember_limit(self.made_of(value, mean), self.log_limit, 2)
        bound = self.from_log_alpha(self.log_limit, mean)
        return backend.at_most(ops.convert_to_tensor(value), bound)

    def made_of(self, value: Any, mean: Any) -> tuple:
        """The tensors that log alpha follows from."""
        del mean
        return (backend.value_of(value),)

    def noise_log_alpha(self, value: Any, mean: Any) -> Any:
        """The same, with a gradient that can lead back to the limit."""
        return limited(self.to_log_alpha(value, mean), self.log_limit)

    def log_variance(self, value: Any, mean: Any) -> Any:
        """Of each weight."""
        log_alpha = self.axes.over_kernel(
            self.noise_log_alpha(value, mean), self.granularity
        )
        return log_alpha + pointwise.log_square(mean)

    def scale(self, value: Any, mean: Any) -> Any:
        """What the deviation follows from, for a value that broadcasts
        against some of the means.
        """
        log_alpha = self.to_log_alpha(value, mean)
        if self.log_limit is None:
            return ops.exp(0.5 * log_alpha)
        return pointwise.limited_scale(log_alpha, limit=self.log_limit)

    def std_of_scale(self, scale: Any, mean: Any) -> Any:
        """The deviation of each weight, with the sign of its mean."""
        return ops.multiply(scale, mean)

    def variance(self, value: Any, mean: Any, dtype: str) -> Variance:
        """In factors, for local reparameterization in `dtype`."""
        if self.granularity == "weight":
            log_alpha = self.to_log_alpha(value, mean)
            return Variance(log_alpha=log_alpha, limit=self.log_limit)
        alpha = ops.cast(ops.exp(self.noise_log_alpha(value, mean)), dtype)
        if self.granularity == "input":
            return Variance(inputs=alpha)
        return Variance(outputs=alpha)

    def noise(self, normal: Callable, dtype: str) -> Any:
        """Standard normal noise that broadcasts over the kernel."""
        return normal(self.axes.kernel_shape, dtype)


class Correlated(Independent):
    """`w = theta * s`, with `s ~ N(1, alpha)` shared by all the weights of an
    input (type A).
    """

    takes = {"granularity": ("layer", "input")}
    reason = "Use `noise='independent'` for an alpha of each output or weight."
    correlated = True
    default_speed = 32.0

    @property
    def terms(self) -> int:
        return self.axes.input_count()

    def noise(self, normal: Callable, dtype: str) -> Any:
        return self.axes.spread_rows(normal(self.axes.rows(), dtype))


class Additive(Independent):
    """`w ~ N(theta, sigma**2)`, with the logarithm of sigma**2 learned."""

    variable_name = "log_variance"
    takes = {
        "noise": ("independent",),
        "granularity": ("weight",),
        "adaptive": (True,),
    }
    reason = "There is a variance to learn for each weight."

    def from_log_alpha(self, log_alpha: Any, mean: Any) -> Any:
        log_variance = pointwise.log_square(_as_float(mean))
        # The default limit of alpha is 1, and an addition of zero takes time.
        if not isinstance(log_alpha, float) or log_alpha:
            log_variance = ops.add(log_alpha, log_variance)
        return self.write(log_variance)

    def to_log_alpha(self, value: Any, mean: Any) -> Any:
        return pointwise.log_ratio(self.read(value), _as_float(mean))

    def made_of(self, value: Any, mean: Any) -> tuple:
        return backend.value_of(value), _as_float(mean)

    def log_variance(self, value: Any, mean: Any) -> Any:
        if self.max_alpha is None:
            return self.read(value)
        return super().log_variance(value, mean)

    def scale(self, value: Any, mean: Any) -> Any:
        return ops.exp(0.5 * self.log_variance(value, mean))

    def std_of_scale(self, scale: Any, mean: Any) -> Any:
        return scale

    def variance(self, value: Any, mean: Any, dtype: str) -> Variance:
        value = self.read(value)
        if self.max_alpha is None:
            return Variance(weights=ops.cast(ops.exp(value), dtype))
        variance = pointwise.limited_exp(
            value, _as_float(mean), math.log(self.max_alpha)
        )
        return Variance(weights=ops.cast(variance, dtype))


# By the arguments `parameterization` and `noise` of a layer.
POSTERIORS: dict[str, dict[str, type[Independent]]] = {
    "multiplicative": {"independent": Independent, "correlated": Correlated},
    "additive": {"independent": Additive, "correlated": Additive},
}


def choose(
    parameterization: str, noise: str, **arguments: Any
) -> type[Independent]:
    """The posterior of the arguments of a layer, refused if they disagree."""
    chosen = POSTERIORS[parameterization][noise]
    asked = {"noise": noise, **arguments}
    choice = f"parameterization={parameterization!r}"
    if parameterization == "multiplicative":
        choice = f"noise={noise!r}"
    for argument, values in chosen.takes.items():
        if asked[argument] not in values:
            expected = repr(values[0]) if len(values) == 1 else f"of {values}"
            expected = expected.replace("of (", "one of (")
            raise invalid(
                argument,
                f"{expected} with {choice}",
                asked[argument],
                chosen.reason,
            )
    return chosen


def limited(log_alpha: Any, limit: float | None) -> Any:
    """Log alpha for the noise, at most `limit`."""
    if limit is None:
        return log_alpha
    return pointwise.one_way_limit(log_alpha, limit=limit)


def _as_float(mean: Any) -> Any:
    mean = backend.value_of(mean)
    return ops.cast(mean, at_least_float32(mean.dtype))
