"""Histograms for TensorBoard, written without tensorflow."""

import os
import time
from typing import Any

import numpy as np

from keras_vdrop.diagnostics.measures import Histogram

# What `histogram_pb` makes.
HISTOGRAM = Histogram(30, is_whole=False)


class HistogramWriter:
    """An event file for TensorBoard, written without tensorflow.

    TensorBoard's own `EventFileWriter` imports tensorflow where it is
    installed, whatever the backend.
    """

    def __init__(self, folder: str):
        self._event, self._histogram, record_writer = require()
        os.makedirs(folder, exist_ok=True)
        # TensorBoard knows the files by this name and reads them in its order.
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        self._records = record_writer(open(os.path.join(folder, name), "wb"))
        self._write(file_version="brain.Event:2")

    def add(
        self, tag: str, counts: Any, ends: tuple[float, float], step: int
    ) -> None:
        """Adds how many values are in each of some bins between two ends."""
        edges = np.linspace(*ends, len(counts) + 1)
        # A histogram of nothing has the right form.
        summary = self._histogram(tag, [], buckets=len(counts))
        rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
        summary.value[0].tensor.tensor_content = rows.tobytes()
        self._write(step=step, summary=summary)

    def close(self) -> None:
        self._records.close()

    def _write(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        self._records.write(event.SerializeToString())
        self._records.flush()


def require() -> tuple[Any, Any, Any]:
    """The parts of the package tensorboard that are needed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ImportError(
            "`DropoutRateLogger` writes to its `log_dir` with tensorboard. "
            "Install it: pip install tensorboard"
        ) from error
    return Event, histogram_pb, RecordWriter
