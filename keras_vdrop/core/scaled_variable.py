"""A variable that holds its value in another scale."""

from typing import Any

import keras
import numpy as np

from keras_vdrop import backend


class ScaledVariable:
    """Reads and assigns the value that a variable stands for.

    The variable itself is what an optimizer moves.

    Args:
        variable: A `keras.Variable`.
        scale: Has the functions `read` and `write`, from the variable to the
            value and back.
    """

    def __init__(self, variable: Any, scale: Any):
        self.variable = variable
        self.scale = scale

    @property
    def value(self) -> Any:
        return self.scale.read(self.variable)

    @property
    def shape(self) -> Any:
        return self.variable.shape

    @property
    def dtype(self) -> Any:
        return self.variable.dtype

    @property
    def ndim(self) -> int:
        return self.variable.ndim

    def numpy(self) -> Any:
        return backend.to_numpy([self.value])[0]

    def assign(self, value: Any) -> Any:
        value = keras.ops.convert_to_tensor(value, self.dtype)
        return self.variable.assign(self.scale.write(value))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.numpy(), dtype)

    # How `keras.ops` takes it, on jax and on tensorflow.
    def __jax_array__(self) -> Any:
        return self.value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        return keras.ops.convert_to_tensor(self.value, dtype)

    def __repr__(self) -> str:
        return f"<{self.variable.name} {self.numpy()}>"
