"""The arguments of the noise of a layer, checked."""

import dataclasses
import math
from typing import Any

from keras_vdrop.core import estimators
from keras_vdrop.core import posteriors
from keras_vdrop.core import priors
from keras_vdrop.core import validation
from keras_vdrop.core.axes import GRANULARITIES
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.core.seeds import derived_seed


@dataclasses.dataclass
class NoiseArguments:
    """What a layer takes beyond the arguments of the Keras layer.

    A bad value is refused when this is made.
    """

    rate: float = 0.05
    # `None` is what the others allow: see `_fitting_noise`.
    noise: str | None = None
    granularity: str = "layer"
    adaptive: bool = True
    max_alpha: float | None = 1.0
    rate_speed: float | None = None
    kl: Any = "polynomial"
    parameterization: str = "multiplicative"
    estimator: str = "local"
    num_examples: int | None = None
    kl_downscale: float = 1.0
    seed: int | None = None
    # No argument: the share of the KL that counts of now.
    kl_share = 1.0
    # No argument: whether a callback has counted the examples.
    counted = False

    def __post_init__(self) -> None:
        validation.check_rate("rate", self.rate)
        self.rate = float(self.rate)
        if self.noise is not None:
            validation.check_choice(
                "noise", self.noise, ("independent", "correlated")
            )
        validation.check_choice("granularity", self.granularity, GRANULARITIES)
        validation.check_bool("adaptive", self.adaptive)
        if self.max_alpha is not None:
            self.max_alpha = validation.check_positive(
                "max_alpha", self.max_alpha
            )
        if self.rate_speed is not None:
            self.rate_speed = validation.check_power_of_two(
                "rate_speed", self.rate_speed
            )
        self.prior = priors.get(self.kl)
        validation.check_choice(
            "parameterization", self.parameterization, posteriors.POSTERIORS
        )
        validation.check_choice(
            "estimator", self.estimator, estimators.ESTIMATORS
        )
        if self.num_examples is not None:
            self.num_examples = validation.check_count(
                "num_examples", self.num_examples
            )
        self.kl_downscale = validation.check_positive(
            "kl_downscale", self.kl_downscale
        )
        self.seed = check_seed(self.seed)
        if self.noise is None:
            self.noise = self._fitting_noise()
        self.posterior = posteriors.choose(
            self.parameterization,
            self.noise,
            granularity=self.granularity,
            adaptive=self.adaptive,
        )
        self._check_prior()
        if self.adaptive:
            self._check_bounds()

    @property
    def limit(self) -> float | None:
        """The limit of alpha. A rate that is not learned has none."""
        return self.max_alpha if self.adaptive else None

    def _fitting_noise(self) -> str:
        """Correlated, unless the other arguments are for independent noise."""
        is_shared = (
            self.granularity in posteriors.Correlated.takes["granularity"]
        )
        is_plain = self.parameterization == "multiplicative"
        if is_shared and is_plain and self.prior.takes_correlated:
            return "correlated"
        return "independent"

    @property
    def speed(self) -> float:
        """How much further a step moves log alpha than the variable."""
        if self.rate_speed is None:
            return self.posterior.default_speed
        return self.rate_speed

    @property
    def natural(self) -> bool:
        """Whether the gradient of alpha is scaled, unlike the paper's."""
        return self.rate_speed != 1

    def _check_prior(self) -> None:
        name = priors.serialize(self.prior)
        if self.noise == "correlated" and not self.prior.takes_correlated:
            raise validation.invalid(
                "kl",
                "a function of alpha alone with noise='correlated'",
                self.kl,
                "All the weights of an input share one random scale, so that "
                "their joint distribution has no density and its KL from "
                "this prior is infinite. Use `noise='independent'`.",
            )
        if self.prior.depends_on_mean and not self.adaptive:
            raise validation.invalid(
                "adaptive",
                f"True with kl={name!r}, whose KL depends on the weights",
                self.adaptive,
                "A fixed rate has no KL. Use a `kernel_regularizer`.",
            )

    def _check_bounds(self) -> None:
        bound = math.inf if self.max_alpha is None else self.max_alpha
        if self.rate / (1 - self.rate) > bound:
            raise validation.invalid(
                "rate",
                f"alpha = rate / (1 - rate) of at most max_alpha={bound}",
                self.rate,
                "Lower `rate`, raise `max_alpha`, or fix the rate with "
                "`adaptive=False`.",
            )
        domain = self.prior.max_alpha
        if bound > domain:
            name = priors.serialize(self.prior)
            raise validation.invalid(
                "max_alpha",
                f"at most {domain}, where kl={name!r} ceases to hold",
                self.max_alpha,
                f"Use `max_alpha={domain}`, or `kl='exact'`, which holds for "
                "every alpha.",
            )

    def of_part(self, name: str) -> "NoiseArguments":
        """The same for a part of the layer, with a seed of its own."""
        part = dataclasses.replace(self, seed=derived_seed(self.seed, name))
        part.kl_share = self.kl_share
        return part

    def as_dict(self) -> dict[str, Any]:
        """All arguments by name, of types that JSON can hold."""
        found = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }
        return {**found, "kl": priors.serialize(self.prior)}


NAMES = tuple(field.name for field in dataclasses.fields(NoiseArguments))
