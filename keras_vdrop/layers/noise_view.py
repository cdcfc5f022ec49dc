"""What a user asks of a variational layer, and sets."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.core.priors import Prior
from keras_vdrop.core.random_weight import RandomWeight


class NoiseView:
    """Mixin: the noise of a layer, seen through its random weights."""

    noise_arguments: NoiseArguments
    estimators: tuple[str, ...]
    # Of the Keras layer.
    name: str
    built: bool

    def check_noise(self) -> None:
        """Refuses arguments that make no sense for this layer."""

    def weights_by_name(self) -> dict[str, RandomWeight]:
        """The noise of each random variable of the layer and of its parts."""
        raise NotImplementedError

    @property
    def random_weights(self) -> list[RandomWeight]:
        """The noise of each random variable of the layer and of its parts."""
        return list(self.weights_by_name().values())

    # The arguments, as attributes.
    @property
    def rate(self) -> float:
        return self.noise_arguments.rate

    @property
    def noise(self) -> str:
        return str(self.noise_arguments.noise)

    @property
    def granularity(self) -> str:
        return self.noise_arguments.granularity

    @property
    def adaptive(self) -> bool:
        return self.noise_arguments.adaptive

    @property
    def max_alpha(self) -> float | None:
        return self.noise_arguments.max_alpha

    @property
    def rate_speed(self) -> float | None:
        return self.noise_arguments.rate_speed

    @property
    def prior(self) -> Prior:
        return self.noise_arguments.prior

    @property
    def parameterization(self) -> str:
        return self.noise_arguments.parameterization

    @property
    def estimator(self) -> str:
        return self.noise_arguments.estimator

    @estimator.setter
    def estimator(self, name: str) -> None:
        validation.check_choice("estimator", name, self.estimators)
        arguments = self.noise_arguments
        before, arguments.estimator = arguments.estimator, name
        try:
            self.check_noise()
        except ValueError:
            arguments.estimator = before
            raise

    # What a user asks of a layer.
    @property
    def log_alpha(self) -> Any:
        """Log alpha, to be read and assigned; a tensor where it is derived."""
        return self._only(lambda weight: weight.log_alpha_variable())

    @property
    def log_variance(self) -> Any:
        """The log variance of the additive posterior, or `None`."""
        if self.parameterization == "multiplicative":
            return None
        return self._only(lambda weight: weight.unscaled())

    @property
    def kl_weight(self) -> Any:
        """The variable by which the KL is multiplied, once it is built."""
        weights = self.random_weights
        return weights[0].kl_weight if weights else None

    @property
    def num_examples(self) -> int | None:
        return self.noise_arguments.num_examples

    @property
    def kl_downscale(self) -> float:
        return self.noise_arguments.kl_downscale

    def kl(self) -> float:
        """The KL of the layer's posterior from its prior of now, in nats."""
        self._require_built("KL")
        weights = self.random_weights
        found = backend.to_numpy([weight.kl_tensor() for weight in weights])
        return sum(map(float, found))

    def dropout_rates(self) -> Any:
        """The rates `p = alpha / (1 + alpha)` of now, as a numpy array.

        A layer with several random variables has a dict of arrays by name.
        Where they are spread over processes, each has to call this, and gets
        the whole.
        """
        found = self.rates_by_name()
        return found if len(found) > 1 else next(iter(found.values()))

    def rates_by_name(self) -> dict[str, Any]:
        """The rates of each random variable, as numpy arrays."""
        self._require_built("dropout rates")
        weights = self.weights_by_name()
        rates = [ops.sigmoid(weight.log_alpha()) for weight in weights.values()]
        return dict(zip(weights, backend.to_numpy(rates), strict=True))

    def scale_kl(self, share: float) -> None:
        """Sets `kl_weight` to a share of its full value, built or not."""
        self.noise_arguments.kl_share = share
        for weight in self.random_weights:
            weight.scale_kl(share)

    def set_num_examples(
        self, num_examples: int, kl_downscale: float = 1.0
    ) -> None:
        """Weighs the KL by `1 / (num_examples * kl_downscale)` from now on."""
        arguments = self.noise_arguments
        num_examples = validation.check_count("num_examples", num_examples)
        kl_downscale = validation.check_positive("kl_downscale", kl_downscale)
        arguments.num_examples = num_examples
        arguments.kl_downscale = kl_downscale
        arguments.kl_share = 1.0
        arguments.counted = False
        for weight in self.random_weights:
            weight.set_num_examples(num_examples, kl_downscale)

    def reset_noise(self) -> None:
        """Gives the noise its initial rate, for the weights of now."""
        for weight in self.random_weights:
            weight.reset_noise()

    def _only(self, read: Callable[..., Any]) -> Any:
        """Of the one random variable, or a dict by the names of several."""
        found = {
            name: read(weight)
            for name, weight in self.weights_by_name().items()
        }
        return found if len(found) > 1 else next(iter(found.values()))

    def _require_built(self: Any, what: str) -> None:
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has no {what} before it is built. Call "
                "it, or its model, on some data first, or give the model a "
                "`keras.Input`."
            )
