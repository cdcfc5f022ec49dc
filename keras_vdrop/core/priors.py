"""Priors of the weights, and the KL of a posterior from them.

A prior is a function of the posterior. Most depend on alpha alone: these are
the functions of `keras_vdrop.divergence`, for the log-uniform prior and for
automatic relevance determination. `Normal` depends on mean and variance.
"""

import math
from collections.abc import Callable
from typing import Any
from typing import Protocol

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import divergence
from keras_vdrop.core import validation

__all__ = ["Normal", "Prior", "ScaleInvariant"]


class Posterior(Protocol):
    """What a prior may ask of a posterior."""

    # How many random variables there are.
    terms: int

    def log_alpha(self) -> Any:
        """One value for each alpha."""

    def of_log_alpha(self, function: Callable[..., Any]) -> Any:
        """A function of log alpha, elementwise. It costs less than `log_alpha`
        followed by the function.
        """

    def mean(self) -> Any:
        """One value for each weight."""

    def log_variance(self) -> Any:
        """One value for each weight, or a shape that broadcasts to that."""


class Prior:
    """Base class of the priors.

    A prior of your own overrides `kl`, and `get_config` if it has arguments.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> class Small(keras_vdrop.priors.Prior):
    ...     def kl(self, posterior):
    ...         return -0.5 * keras.ops.sum(posterior.log_alpha())
    >>> layer = keras_vdrop.VariationalDense(4, kl=Small(), rate=0.5)
    >>> layer.build((None, 3))
    >>> layer.kl() == 0.0
    True
    """

    # The largest alpha for which the KL holds.
    max_alpha: float = math.inf
    # Whether there is a KL for noise that all the weights of an input share.
    takes_correlated: bool = True
    # Whether the KL depends on the means, so that it matters at a fixed rate.
    depends_on_mean: bool = False

    def kl(self, posterior: Posterior) -> Any:
        """The KL of a posterior from this prior in nats, a scalar tensor."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Prior":
        return cls(**config)


class ScaleInvariant(Prior):
    """A prior whose KL depends on alpha alone.

    Args:
        divergence: Function that maps log alpha, elementwise, to the KL of
            one weight in nats. Its attribute `max_alpha`, if it has one, is
            the largest alpha for which it holds.

    Example:

    >>> import keras_vdrop
    >>> prior = keras_vdrop.priors.ScaleInvariant(keras_vdrop.divergence.exact)
    >>> layer = keras_vdrop.VariationalDense(4, kl=prior, max_alpha=None)
    >>> layer.prior is prior
    True
    """

    def __init__(self, divergence: Callable[[Any], Any]):
        self.divergence = divergence
        self.max_alpha = getattr(divergence, "max_alpha", math.inf)

    def kl(self, posterior: Posterior) -> Any:
        found = posterior.of_log_alpha(self.divergence)
        # All alphas stand for equally many random variables.
        share = posterior.terms / math.prod(found.shape)
        return share * backend.total(found)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class Normal(Prior):
    """The prior `N(0, scale**2)` of each weight.

    `KL = 0.5 * ((mean**2 + variance) / scale**2 - 1
    - log(variance / scale**2))`, summed over all weights. With
    `parameterization="additive"` a layer with this prior is the classic
    Bayesian layer (Blundell et al. 2015) with local reparameterization.

    Args:
        scale: Float above 0, the standard deviation of the prior.

    Example:

    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalDense(
    ...     4,
    ...     granularity="weight",
    ...     parameterization="additive",
    ...     kl=keras_vdrop.priors.Normal(scale=0.1),
    ...     max_alpha=None,
    ... )

    Reference:

    - [Blundell et al., 2015](https://arxiv.org/abs/1505.05424)
    """

    takes_correlated = False
    depends_on_mean = True

    def __init__(self, scale: float = 1.0):
        self.scale = validation.check_positive("scale", scale)

    def kl(self, posterior: Posterior) -> Any:
        mean = posterior.mean()
        log_ratio = posterior.log_variance() - 2.0 * math.log(self.scale)
        squares = ops.square(mean / self.scale) + ops.exp(log_ratio)
        return 0.5 * backend.total(squares - 1.0 - log_ratio)

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normal) and self.scale == other.scale

    def __hash__(self) -> int:
        return hash((Normal, self.scale))

    def __repr__(self) -> str:
        return f"Normal(scale={self.scale})"


DIVERGENCES = {
    function.__name__: function
    for function in (
        divergence.polynomial,
        divergence.lower_bound,
        divergence.exact,
        divergence.sigmoid,
        divergence.ard,
    )
}
NAMES = (*DIVERGENCES, "normal")


def get(identifier: Any) -> Prior:
    """The prior of the argument `kl` of a layer.

    Args:
        identifier: A name, a prior, a function of log alpha, the name under
            which Keras knows one of these, or a config made by `serialize`.
    """
    found = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    elif identifier == "normal":
        found = Normal()
    elif isinstance(identifier, str):
        found = DIVERGENCES.get(
            identifier, keras.saving.get_registered_object(identifier)
        )
    if isinstance(found, Prior):
        return found
    if not callable(found) or isinstance(found, type):
        raise validation.invalid(
            "kl",
            f"one of {NAMES}, a prior of `keras_vdrop.priors`, a function of "
            "log alpha, or the name of a registered one",
            identifier,
        )
    return ScaleInvariant(found)


def serialize(prior: Prior) -> Any:
    """The inverse of `get`: a name, or the config of an object of yours."""
    if not isinstance(prior, ScaleInvariant):
        return keras.saving.serialize_keras_object(prior)
    name = getattr(prior.divergence, "__name__", "")
    if DIVERGENCES.get(name) is prior.divergence:
        return name
    return keras.saving.serialize_keras_object(prior.divergence)
