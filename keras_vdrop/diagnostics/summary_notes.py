"""What stands below the table of `summary`."""

import math
from typing import Any

import keras

from keras_vdrop.diagnostics.report import NoiseReport
from keras_vdrop.models.batch_normalization import batch_normalizations
from keras_vdrop.models.compressed import to_bytes
from keras_vdrop.models.conversion import to_deterministic

BATCH_NORMALIZATION = (
    "Warning: batch normalization has averaged outputs with noise, which "
    "`predict` has not. `update_batch_normalization(model, x)` helps."
)


def notes_of(
    model: keras.Layer,
    reports: list[NoiseReport],
    threshold: float,
    precision: float | None,
) -> list[str]:
    """What stands below the table, a paragraph each."""
    weights = sum(found.weights for found in reports)
    notes = [
        f"Weights with noise: {weights:,}",
        f"Prunable: weights with log alpha above {threshold:g}",
    ]
    kernels = [x for x in reports if x.weights and x.kl is not None]
    if kernels:
        code_length = sum(x.kl or 0.0 for x in kernels) / math.log(2) / 8
        notes.append(f"Code length: KL / log(2) = {code_length:,.0f} bytes")
    if precision is not None:
        size = _file_size(model, threshold, precision)
        notes.append(
            f"File, pruned and rounded with precision {precision:g}: "
            f"{size:,} bytes"
        )
    if any(found.shape is None for found in reports):
        notes.append(
            "A layer that is not built has no rates: call the model on some "
            "data first."
        )
    still = [found.name for found in reports if not found.has_moved]
    if still:
        notes.append(
            f"Rates where they began: {', '.join(still)}. Train longer, or "
            "raise the learning rate or `rate_speed`."
        )
    limited = [
        f"{found.name} ({found.at_limit:.0%})"
        for found in reports
        if found.at_limit > 0.5
    ]
    if limited:
        notes.append(
            f"Rates at the limit of `max_alpha`: {', '.join(limited)}. If the "
            "model underfits, raise `kl_downscale` in `set_num_examples`."
        )
    if batch_normalizations(model):
        notes.append(BATCH_NORMALIZATION)
    return notes


def _file_size(model: Any, threshold: float, precision: float) -> int:
    small = to_deterministic(model, threshold, 0, precision=precision)
    return len(to_bytes(small))
