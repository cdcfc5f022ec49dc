"""Histograms for TensorBoard, written without tensorflow."""

import os
import time
from typing import Any


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

    def add(self, tag: str, values: Any, step: int) -> None:
        self._write(step=step, summary=self._histogram(tag, values))

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
