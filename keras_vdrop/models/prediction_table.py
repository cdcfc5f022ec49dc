"""A table of the first of many predictions."""

from typing import Any

import keras
import numpy as np

from keras_vdrop.core import notebook

EXAMPLES = 8
OUTPUTS = 4


def prediction_table(found: Any, is_classifier: bool) -> str:
    """The first examples in HTML, a table for each output of the model.

    Args:
        found: `Predictions`.
        is_classifier: Boolean, whether it has entropies.
    """
    columns = {"mean": found.mean, "std": found.std}
    if is_classifier:
        columns["entropy"] = found.entropy
        columns["mutual information"] = found.mutual_information
    parts = [keras.tree.flatten(column) for column in columns.values()]
    return "".join(
        _table(dict(zip(columns, arrays, strict=True)), found.num_samples)
        for arrays in zip(*parts, strict=True)
    )


def _table(columns: dict[str, Any], num_samples: int) -> str:
    shape = np.shape(columns["mean"])
    count = shape[0] if shape else 0
    rows = [
        [str(i), *[_cell(column[i]) for column in columns.values()]]
        for i in range(min(count, EXAMPLES))
    ]
    if count > EXAMPLES:
        rows.append(["…"])
    caption = f"Predictions of shape {shape}, {num_samples} samples"
    return notebook.table(caption, ["example", *columns], rows)


def _cell(values: Any) -> str:
    flat = np.ravel(values)
    shown = ", ".join(f"{value:.3g}" for value in flat[:OUTPUTS])
    return shown + ", …" * (flat.size > OUTPUTS)
