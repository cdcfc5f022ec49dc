"""The variational form of `keras.layers.ReversibleEmbedding`."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.core import estimators
from keras_vdrop.core.axes import Axes
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.posteriors import Variance
from keras_vdrop.layers.core.embedding import LOOKUP
from keras_vdrop.layers.core.embedding import VariationalTable

PROJECTION = "... f, f t -> ... t"
TIED_PROJECTION = "... f, t f -> ... t"


class _Absent(keras.layers.Embedding):
    """In place of a layer that this version of Keras does not have."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise NotImplementedError(
            f"Keras {keras.__version__} has no "
            "`keras.layers.ReversibleEmbedding`. Install a newer one: "
            "pip install --upgrade keras"
        )


# Keras 3.10 does not have it, Keras 3.12 does.
_Base: Any = getattr(keras.layers, "ReversibleEmbedding", _Absent)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalReversibleEmbedding(VariationalTable, _Base):
    """A `ReversibleEmbedding` layer that learns its own dropout rates.

    While it trains, its table is random, `w ~ N(theta, alpha * theta**2)`. A
    lookup draws the row of each position. The projection back to the tokens
    is a linear map: its outputs are drawn from the normal distribution with
    the mean and the variance that the table gives them. A tied table has one
    posterior and one KL; the lookup and the projection draw noise of their
    own. Outside training the layer is `keras.layers.ReversibleEmbedding` with
    the table `theta`.

    Inputs are tokens and outputs are features, also where a tied table
    projects features to tokens. The second table of a layer with
    `tie_weights=False` is a map of its own: its inputs are features and its
    outputs are tokens.

    Args:
        input_dim: Positive integer, the number of tokens.
        output_dim: Positive integer, the number of features.
        tie_weights: As in `keras.layers.ReversibleEmbedding`.
        embeddings_initializer, embeddings_regularizer: As in
            `keras.layers.ReversibleEmbedding`. The KL is added to the loss
            besides.
        embeddings_constraint: As in `keras.layers.ReversibleEmbedding`.
        mask_zero: As in `keras_vdrop.VariationalEmbedding`.
        reverse_dtype, logit_soft_cap: As in
            `keras.layers.ReversibleEmbedding`.
        rate: Float in (0, 1), the initial dropout rate p; the noise has
            variance `alpha = p / (1 - p)`.
        noise: `"correlated"`, noise on each token, which all its features
            share (the paper's type A), or `"independent"`, noise of its own on
            each weight (type B). By default correlated, and independent where
            `granularity`, `kl` or `parameterization` ask for that.
        granularity: What has an alpha of its own: the `"layer"`, each
            `"input"`, each `"output"` or each `"weight"`. Inputs are tokens,
            outputs are features. `"correlated"` noise takes `"layer"` or
            `"input"`.
        adaptive: Boolean, whether alpha is learned. With `False` the layer is
            Gaussian dropout with a fixed rate, and there is no KL.
        max_alpha: Float, the largest alpha that may be learned, or `None` for
            no limit. The paper's is 1, a dropout rate of 0.5.
        rate_speed: Float, a power of two, or `None` for 32 with correlated
            and 1 with independent noise. With 1 the variable is log alpha, as
            in the paper. Otherwise it is `log(alpha) / rate_speed`, so that a
            step of Adam moves log alpha by `rate_speed` times the learning
            rate, and its gradient is divided by the number of random
            variables that share the alpha, so that SGD can follow it.
        kl: Name of a function of `keras_vdrop.divergence`, `"normal"`, a prior
            of `keras_vdrop.priors`, or a function of log alpha: the KL of one
            weight.
        parameterization: What is learned beside the table: alpha with
            `"multiplicative"`, or with `"additive"` the variance of each
            weight, from which alpha follows. `"additive"` takes
            `noise="independent"` and `granularity="weight"`; its gradients
            have less variance where alpha is large.
        estimator: How noise is drawn: `"local"`, for the outputs of each
            position (local reparameterization); `"batch"`, one sample of the
            table for the whole minibatch; `"example"`, one for each example,
            which is slow and needs memory for a table for each of them.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        inputs: Tensor of integers, or of features with `reverse=True`.
        reverse: Boolean, whether to project features to tokens.
        training: Boolean, whether the table is random.

    Input shape:
        `(batch_size, ...)`, or with `reverse=True`
        `(batch_size, ..., output_dim)`.

    Output shape:
        `(batch_size, ..., output_dim)`, or with `reverse=True`
        `(batch_size, ..., input_dim)`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalReversibleEmbedding(5, 2)
    >>> features = layer(np.array([[3, 1, 3]]))
    >>> layer(features, reverse=True).shape == (1, 3, 5)
    True
    >>> round(float(layer.dropout_rates()), 2)
    0.05

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    - [Press, Wolf, 2016](https://arxiv.org/abs/1608.05859)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tie_weights: bool = True,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        reverse_dtype: Any = None,
        logit_soft_cap: float | None = None,
        *,
        rate: float = 0.05,
        noise: str | None = None,
        granularity: str = "layer",
        adaptive: bool = True,
        max_alpha: float | None = 1.0,
        rate_speed: float | None = None,
        kl: Any = "polynomial",
        parameterization: str = "multiplicative",
        estimator: str = "local",
        num_examples: int | None = None,
        kl_downscale: float = 1.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            input_dim=input_dim,
            output_dim=output_dim,
            tie_weights=tie_weights,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            reverse_dtype=reverse_dtype,
            logit_soft_cap=logit_soft_cap,
            rate=rate,
            noise=noise,
            granularity=granularity,
            adaptive=adaptive,
            max_alpha=max_alpha,
            rate_speed=rate_speed,
            kl=kl,
            parameterization=parameterization,
            estimator=estimator,
            num_examples=num_examples,
            kl_downscale=kl_downscale,
            seed=seed,
            **kwargs,
        )

    def axes_by_name(self) -> dict[str, str]:
        if self.tie_weights:
            return {"embeddings": LOOKUP}
        return {"embeddings": LOOKUP, "reverse_embeddings": PROJECTION}

    def call(  # type: ignore[override]
        self, inputs: Any, reverse: bool = False, training: bool | None = None
    ) -> Any:
        if not self.is_noisy(training):
            return self.plain_call(inputs, reverse=reverse)
        if self.estimator != "local":
            estimate = estimators.ESTIMATORS[self.estimator]
            outputs = estimate(self, inputs, reverse=reverse)
        elif reverse:
            outputs = self.project(inputs)
        else:
            outputs = self.look_up(inputs)
        if reverse or not self.mask_zero:
            return outputs
        return _Mask()([outputs, ops.not_equal(inputs, 0)])

    def project(self, features: Any) -> Any:
        """From features to tokens, with noise of its own for each position."""
        if self.reverse_dtype is not None:
            features = ops.cast(features, self.reverse_dtype)
        if not self.tie_weights:
            weight = self.reverse_embeddings_noise
            logits = estimators.local_product(weight, self._product, features)
        elif self.noise == "correlated":
            logits = self._tied_product(features, self.embeddings)
            logits = ops.multiply(logits, self._token_scales(logits))
        else:
            weight = _Reversed(self.embeddings_noise)
            logits = estimators.local_product(
                weight, self._tied_product, features
            )
        cap = self.logit_soft_cap
        return logits if cap is None else ops.tanh(logits / cap) * cap

    def _product(self, features: Any, table: Any) -> Any:
        if self.reverse_dtype is not None:
            table = ops.cast(table, features.dtype)
        return ops.matmul(features, table)

    def _tied_product(self, features: Any, table: Any) -> Any:
        return self._product(features, ops.transpose(table))

    def _token_scales(self, logits: Any) -> Any:
        """All the weights of a token share their scale."""
        weight = self.embeddings_noise
        log_alpha = weight.posterior.noise_log_alpha(
            weight.variable, weight.mean_variable
        )
        dtype = at_least_float32(logits.dtype)
        noise = weight.generator.normal(ops.shape(logits), dtype)
        return ops.cast(1.0 + ops.exp(0.5 * log_alpha) * noise, logits.dtype)

    def compute_output_spec(
        self, inputs: Any, reverse: bool = False, training: bool | None = None
    ) -> Any:
        return super().compute_output_spec(inputs, reverse=reverse)


class _Reversed:
    """The noise of a table, as that of a map from its outputs to its inputs."""

    def __init__(self, weight: Any):
        self.weight = weight
        self.posterior = weight.posterior
        self.generator = weight.generator
        self.kept_mean = weight.kept_mean
        self.axes = Axes(TIED_PROJECTION, weight.axes.kernel_shape)

    def variance(self, dtype: str) -> Variance:
        found = self.weight.variance(dtype)
        if found.outputs is not None and not len(found.outputs.shape):
            return found  # Of the whole table.
        return found._replace(inputs=found.outputs, outputs=found.inputs)


class _Mask(keras.Layer):
    """Gives a tensor a mask, for which Keras has no public function."""

    def __init__(self) -> None:
        super().__init__(name="mask", autocast=False)
        self.supports_masking = True

    def call(self, pair: Any) -> Any:
        return pair[0]

    def compute_mask(self, pair: Any, previous_mask: Any) -> Any:
        return pair[1]
