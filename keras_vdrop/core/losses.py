"""Losses that are likelihoods, as the KL needs them."""

from typing import Any

import keras
from keras import ops

from keras_vdrop.core import gaussian
from keras_vdrop.core import validation
from keras_vdrop.core.dtypes import at_least_float32

__all__ = ["GaussianNegativeLogLikelihood"]


@keras.saving.register_keras_serializable(package="keras_vdrop")
class GaussianNegativeLogLikelihood(keras.losses.Loss):
    """`-log N(y; mean, variance)` in nats, with a variance that is learned.

    The outputs of the model have twice as many features as the targets: the
    means, and then the logarithms of the variances. There are two ways to get
    them:

    - **One noise for all examples**: `keras_vdrop.layers.ObservationNoise` as
      the last layer appends a learned log variance to the means.
    - **A noise of each example**: the last layer has twice as many units.

    The loss is summed over the features, as a likelihood is, and not divided
    by their number. So it has the right weight against the KL. It is computed
    in float32 at least, and it and its gradients are finite for all finite
    outputs: a log variance beyond ±50 counts as ±50, and beyond 10,000
    standard deviations the loss grows with the logarithm of the distance.

    Args:
        reduction: As in `keras.losses.Loss`.
        name: String, the name of the loss.
        dtype: The dtype of the computation. float16 and bfloat16 become
            float32.

    Example:

    >>> import numpy as np
    >>> import keras_vdrop
    >>> loss = keras_vdrop.losses.GaussianNegativeLogLikelihood()
    >>> mean_and_log_variance = np.array([[1.0, 0.0], [2.0, 0.0]])
    >>> round(float(loss(np.array([[1.0], [3.0]]), mean_and_log_variance)), 4)
    1.1689
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "gaussian_nll",
        dtype: Any = None,
    ):
        policy = keras.dtype_policies.get(dtype or keras.config.floatx())
        wide = at_least_float32(policy.compute_dtype)
        super().__init__(reduction=reduction, name=name, dtype=wide)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = (
            ops.convert_to_tensor(y_true),
            ops.cast(ops.convert_to_tensor(y_pred), self.dtype),
        )
        features = gaussian.features_of("y_pred", y_pred.shape)
        y_true = as_targets(y_true, y_pred.shape, features)
        values = gaussian.negative_log_likelihood(
            ops.cast(y_true, self.dtype),
            y_pred[..., :features],
            y_pred[..., features:],
        )
        return ops.sum(values, axis=-1)


def as_targets(y_true: Any, shape: Any, features: int) -> Any:
    """Targets with an axis of features, one of which may be left out.

    Nothing is broadcast: a batch of numbers against a column would be.
    """
    if len(y_true.shape) == len(shape) - 1 and features == 1:
        y_true = ops.expand_dims(y_true, axis=-1)
    given = tuple(y_true.shape)
    if len(given) != len(shape) or any(
        None not in (size, other) and size != other
        for size, other in zip(given, (*shape[:-1], features), strict=True)
    ):
        raise validation.invalid(
            "y_true",
            f"targets of {features} feature(s) for outputs of shape "
            f"{tuple(shape)}, which are means and log variances",
            f"shape {given}",
        )
    return y_true
