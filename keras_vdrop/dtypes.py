"""The precision of the noise."""

import keras


def at_least_float32(dtype):
    """float64 for float64, otherwise float32."""
    # `keras.backend.result_type` makes float32 of float64 on torch and jax.
    is_double = keras.backend.standardize_dtype(dtype) == "float64"
    return "float64" if is_double else "float32"
