"""The noise of the data in a regression."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vdrop.core import validation


@keras.saving.register_keras_serializable(package="keras_vdrop")
class ObservationNoise(keras.layers.Layer):
    """Appends a learned log variance to each mean: the noise of the data.

    The last layer of a regression whose noise is the same for all examples.
    Its outputs are what `keras_vdrop.losses.GaussianNegativeLogLikelihood` and
    `keras_vdrop.predict(..., likelihood="gaussian")` take. There is one
    variance for each feature. It is a weight of the model: it is trained,
    saved and loaded as all others.

    Args:
        stddev: Float above 0, the standard deviation of the noise at first.
            With `trainable=False` it stays: the noise is known.
        **kwargs: As in `keras.layers.Layer`: `name`, `dtype`, `trainable`...

    Call arguments:
        inputs: Tensor of means.

    Input shape:
        Any with a batch axis and a known number of features on the last axis.

    Output shape:
        That of the inputs, with twice as many features: means, and then log
        variances.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((8,)),
    ...     keras_vdrop.VariationalDense(32, activation="relu"),
    ...     keras_vdrop.VariationalDense(1),
    ...     keras_vdrop.layers.ObservationNoise(stddev=0.5),
    ... ])
    >>> loss = keras_vdrop.losses.GaussianNegativeLogLikelihood()
    >>> model.compile("adam", loss)
    >>> model.output_shape
    (None, 2)
    >>> model.layers[-1].learned_stddev()
    array([0.5], dtype=float32)
    """

    def __init__(self, stddev: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.stddev = validation.check_positive("stddev", stddev)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        features = input_shape[-1] if len(input_shape) > 1 else None
        if features is None:
            raise validation.invalid(
                "input_shape",
                "a batch axis and a known number of features on the last axis",
                input_shape,
            )
        self.log_variance = self.add_weight(
            shape=(features,),
            initializer=keras.initializers.Constant(2 * math.log(self.stddev)),
            name="log_variance",
        )

    def call(self, inputs: Any) -> Any:
        log_variance = ops.cast(self.log_variance, inputs.dtype)
        log_variance = ops.broadcast_to(log_variance, ops.shape(inputs))
        return ops.concatenate([inputs, log_variance], axis=-1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], 2 * input_shape[-1])

    def learned_stddev(self) -> Any:
        """The standard deviation of each feature now, a numpy array."""
        return np.exp(0.5 * ops.convert_to_numpy(self.log_variance))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stddev": self.stddev}
