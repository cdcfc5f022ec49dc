"""A table of the first of many predictions."""

from typing import Any

import numpy as np

from keras_vdrop.core import notebook
from keras_vdrop.models.likelihoods import CLASSES
from keras_vdrop.models.statistics import entropy

EXAMPLES = 8
OUTPUTS = 4


def prediction_table(outputs: list[dict], num_samples: int) -> str:
    """The first examples in HTML, a table for each output of the model.

    Args:
        outputs: The statistics of each output by name.
        num_samples: Integer.
    """
    return "".join(_table(_columns(output), num_samples) for output in outputs)


def _columns(output: dict[str, Any]) -> dict[str, Any]:
    columns = {"mean": output["mean"], "std": output["std"]}
    if output["likelihood"] in CLASSES:
        total, expected = entropy(output["mean"]), output["expected_entropy"]
        columns["entropy"] = total
        columns["mutual information"] = np.maximum(total - expected, 0.0)
    elif output["likelihood"] == "gaussian":
        columns["std by weights"] = output["weights_std"]
        columns["std by data"] = output["data_std"]
    return columns


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
