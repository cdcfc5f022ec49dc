"""The precision of the noise."""

from typing import Any

import keras


def at_least_float32(dtype: Any) -> str:
    """float64 for float64, otherwise float32."""
    # `keras.backend.result_type` makes float32 of float64 on torch and jax.
    is_double = keras.backend.standardize_dtype(dtype) == "float64"
    return "float64" if is_double else "float32"


def variance_dtype(dtype: Any) -> str:
    """Squares leave the range of float16; bfloat16 has that of float32."""
    dtype = keras.backend.standardize_dtype(dtype)
    return "float32" if dtype == "float16" else dtype
