"""The variational form of `keras.layers.Embedding`."""

from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import estimators
from keras_vdrop.core import validation
from keras_vdrop.layers.base import VariationalLayer

# A table has an input for each token and an output for each feature.
LOOKUP = "... t, t f -> ... f"


class VariationalTable(VariationalLayer):
    """Mixin: a layer that looks up the rows of a random table."""

    axes = {"embeddings": LOOKUP}
    estimators = ("local", "batch", "example")

    def __init__(self: Any, *args: Any, weights: Any = None, **kwargs: Any):
        # `Embedding.__init__` would build the layer before it has noise.
        super().__init__(*args, **kwargs)
        if weights is not None:
            self.build()
            if isinstance(weights, list) and len(weights) == 1:
                (weights,) = weights
            self.embeddings.assign(weights)

    def check_noise(self) -> None:
        if self.estimator not in self.estimators:
            raise validation.invalid(
                "estimator",
                f"one of {self.estimators} for an embedding",
                self.estimator,
                "A lookup has no product that another estimator could save: "
                "'local' draws noise for each position at less cost.",
            )

    def build(self: Any, input_shape: Any = None) -> None:
        if not self.built:
            super().build(input_shape)

    def look_up(self: Any, tokens: Any) -> Any:
        """Rows of the table, with noise of its own for each position."""
        if tokens.dtype not in ("int32", "int64"):
            tokens = ops.cast(tokens, "int32")
        rows = backend.on_values(self.embeddings_noise.sample_of_rows, tokens)
        return ops.cast(rows, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vdrop")
class VariationalEmbedding(VariationalTable, keras.layers.Embedding):
    """An `Embedding` layer that learns its own dropout rates.

    While it trains, its table is random, `w ~ N(theta, alpha * theta**2)`.
    Each position draws its row anew, which costs no more than the lookup: the
    covariance between positions with the same token is left out. Outside
    training it is `keras.layers.Embedding` with the table `theta`.

    A row of zeros stays zero, whatever its alpha. The posterior with
    `parameterization="additive"` is the exception, since there a variance
    does not depend on the mean.

    Args:
        input_dim: Positive integer, the number of tokens.
        output_dim: Positive integer, the number of features.
        embeddings_initializer, embeddings_regularizer: As in
            `keras.layers.Embedding`. The KL is added to the loss besides.
        embeddings_constraint: As in `keras.layers.Embedding`.
        mask_zero: As in `keras.layers.Embedding`. The token 0 has a row with
            noise too, which nothing behind the mask sees. It counts in the
            KL.
        weights: As in `keras.layers.Embedding`: the initial table.
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
            position; `"batch"`, one sample of the table for the whole
            minibatch; `"example"`, one for each example, which is slow and
            needs memory for a table for each of them.
        num_examples: Positive integer, the size of the training set, by which
            the KL is divided in the loss. `keras_vdrop.set_num_examples` sets
            it for a whole model.
        kl_downscale: Float, divides the KL further.
        seed: Integer, the seed of the noise, or `None` for a random one.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        inputs: Tensor of integers.
        training: Boolean, whether the table is random.

    Input shape:
        `(batch_size, ...)`.

    Output shape:
        `(batch_size, ..., output_dim)`.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> layer = keras_vdrop.VariationalEmbedding(
    ...     5, 2, rate=0.2, granularity="input"
    ... )
    >>> layer(np.array([[3, 1, 3]])).shape == (1, 3, 2)
    True
    >>> layer.dropout_rates().round(2)
    array([0.2, 0.2, 0.2, 0.2, 0.2], dtype=float32)

    Reference:

    - [Kingma, Salimans, Welling, 2015](https://arxiv.org/abs/1506.02557)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
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
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            weights=weights,
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

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not self.is_noisy(training):
            return self.plain_call(inputs)
        if self.estimator == "local":
            return self.look_up(inputs)
        return estimators.ESTIMATORS[self.estimator](self, inputs)

    def compute_output_spec(
        self, inputs: Any, training: bool | None = None
    ) -> Any:
        return super().compute_output_spec(inputs)
