"""The noise of one variable of a layer: alpha, its KL and its seed."""

import math
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import posteriors
from keras_vdrop.core import validation
from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.counting import is_pending
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.hooks import InitialNoise
from keras_vdrop.core.hooks import NumExamplesCheck
from keras_vdrop.core.hooks import noise_variable
from keras_vdrop.core.hooks import unknown_num_examples
from keras_vdrop.core.sampled import SampledWeight
from keras_vdrop.core.scaled_variable import ScaledVariable
from keras_vdrop.core.seeds import InitialState
from keras_vdrop.core.seeds import NoiseGenerator


class RandomWeight(SampledWeight):
    """A sublayer that makes one variable of its owner random.

    It has the variable of the noise, the limit of alpha, the KL, its weight in
    the loss and the generator of the noise. Keras saves, loads, clones and
    counts it as any layer. The mean of the weight is the variable of the owner
    and stays there.

    The KL reaches `model.losses` as the regularizer of the variable of the
    noise, once for each layer however often the layer is called.

    Args:
        arguments: The arguments of the noise.
        owner: String, the name of the owner, for messages.
    """

    def __init__(self, arguments: NoiseArguments, owner: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.owner = owner
        self.rate = arguments.rate
        self.granularity = arguments.granularity
        self.adaptive = arguments.adaptive
        self.prior = arguments.prior
        self.num_examples = arguments.num_examples
        self.kl_downscale = arguments.kl_downscale
        self.kl_share = arguments.kl_share
        self.seed = arguments.seed
        # Noise of the same seed and another salt is other noise.
        self.salt = self.name
        self.posterior_class = arguments.posterior
        self.limit = arguments.limit
        self.speed = arguments.speed
        self.natural = arguments.natural
        # Hidden from the tracking of Keras: the mean is a weight of the owner,
        # and `kl_weight` belongs to the training and not to the weights.
        self._untracked = types.SimpleNamespace(mean=None, kl_weight=None)
        self._posterior: posteriors.Independent | None = None
        self.num_examples_check = NumExamplesCheck(self)

    def attach(self, mean: Any, axes: Axes) -> None:
        """Makes a variable random, or a scale of 1 if it is `None`."""
        self._untracked.mean = mean
        self._posterior = self.posterior_class(
            axes, self.granularity, self.limit, self.speed, self.natural
        )
        self.build(axes.kernel_shape)

    def build(self, kernel_shape: Sequence[int]) -> None:
        del kernel_shape
        dtype = at_least_float32(self.variable_dtype)
        self.variable = noise_variable(self, dtype)
        # A weight, unlike the state of Keras's generators: a training that is
        # resumed goes on with the noise it would have had.
        self.seed_state = self.add_weight(
            name="seed_state",
            shape=(3,),
            initializer=InitialState(self.seed, salt=self.salt),
            dtype=backend.SEED_DTYPE,
            trainable=False,
        )
        self._untracked.kl_weight = keras.Variable(
            keras.initializers.Constant(self._kl_weight_value()),
            shape=(),
            dtype=dtype,
            trainable=False,
            autocast=False,
            name="kl_weight",
        )

    def unscaled(self) -> Any:
        """The variable of the noise, in the scale of its name."""
        if self.speed == 1:
            return self.variable
        return ScaledVariable(self.variable, self.posterior)

    def reset_noise(self) -> None:
        """Gives the noise its initial rate, for the mean of now."""
        if self.built:
            shape, dtype = self.variable.shape, self.variable.dtype
            self.variable.assign(InitialNoise(self)(shape, dtype))

    @property
    def variables(self) -> list:
        found = super().variables
        if self._untracked.kl_weight is not None:
            found.append(self._untracked.kl_weight)
        return found

    @property
    def posterior(self) -> posteriors.Independent:
        if self._posterior is None:
            raise ValueError(
                f"Layer '{self.owner}' has no noise before it is built. Call "
                "it, or its model, on some data first, or give the model a "
                "`keras.Input`."
            )
        return self._posterior

    @property
    def axes(self) -> Axes:
        return self.posterior.axes

    @property
    def generator(self) -> NoiseGenerator:
        return NoiseGenerator(self.seed_state)

    @property
    def kl_weight(self) -> Any:
        """The variable by which the KL is multiplied in the loss."""
        return self._untracked.kl_weight

    @property
    def mean_variable(self) -> Any:
        """The variable of the owner that this makes random, or `None`."""
        return self._untracked.mean

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        # Keras asks each layer without sublayers (3.15, models/model.py).
        raise NotImplementedError(
            f"Layer '{self.owner}' does not support quantization, because its "
            "kernel is the mean of a posterior. Convert the model with "
            "`keras_vdrop.to_deterministic` first."
        )

    @property
    def terms(self) -> int:
        return self.posterior.terms

    def mean(self) -> Any:
        """The mean of each weight, in float32 at least."""
        if self.mean_variable is None:
            return ops.ones(self.axes.kernel_shape, self.variable.dtype)
        return ops.cast(self.kept_mean(), self.variable.dtype)

    def log_alpha(self) -> Any:
        """Log alpha in the shape of its granularity, within the limit.

        It is infinite for pruned weights.
        """
        log_alpha = self.posterior.to_log_alpha(
            self.variable, self.mean_variable
        )
        log_alpha = self.unless_pruned(log_alpha, math.inf)
        limit = self.posterior.log_limit
        if limit is None:
            return log_alpha
        return backend.hard_limit(log_alpha, limit)

    def of_log_alpha(self, function: Callable) -> Any:
        """A function of log alpha, elementwise, with log alpha limited.

        It is zero for pruned weights.
        """
        found = self.posterior.of_log_alpha(
            function, self.kept_noise(), self.kept_mean()
        )
        return self.unless_pruned(found, 0.0)

    def log_alpha_variable(self) -> Any:
        """Log alpha without the limit, to be assigned where it is one."""
        if self.posterior.variable_name == "log_alpha":
            return self.unscaled()
        return self.posterior.to_log_alpha(self.variable, self.mean_variable)

    def log_variance(self) -> Any:
        """The logarithm of the variance of each weight."""
        return self.posterior.log_variance(self.kept_noise(), self.mean())

    def variance(self, dtype: str) -> posteriors.Variance:
        """The variance of the weights, in factors."""
        return self.posterior.variance(
            self.kept_noise(), self.kept_mean(), dtype
        )

    def kl_tensor(self) -> Any:
        """The KL in nats, a scalar tensor."""
        return self.prior.kl(self)

    def kl_loss(self) -> Any:
        """The KL as the loss has it."""
        if self.num_examples is None and not is_pending(self.variable):
            raise unknown_num_examples(self)
        loss = ops.multiply(self.kl_weight, self.kl_tensor())
        # Keras's losses are of this dtype, and tensorflow adds no others.
        return ops.cast(loss, keras.config.floatx())

    def _kl_weight_value(self) -> float:
        if self.num_examples is None:
            return 0.0
        return self.kl_share / (self.num_examples * self.kl_downscale)

    def scale_kl(self, share: float) -> None:
        """Sets `kl_weight` to a share of its full value, built or not."""
        self.kl_share = share
        if self.built:
            self.kl_weight.assign(self._kl_weight_value())

    def set_num_examples(
        self, num_examples: Any, kl_downscale: Any = 1.0
    ) -> None:
        """Weighs the KL by `1 / (num_examples * kl_downscale)` from now on."""
        num_examples = validation.check_count("num_examples", num_examples)
        kl_downscale = validation.check_positive("kl_downscale", kl_downscale)
        self.num_examples = num_examples
        self.kl_downscale = kl_downscale
        self.scale_kl(1.0)
