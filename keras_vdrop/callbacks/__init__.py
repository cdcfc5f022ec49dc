"""Callbacks for `fit`."""

from keras_vdrop.callbacks.batch_normalization_update import (
    BatchNormalizationUpdate,
)
from keras_vdrop.callbacks.count_examples import CountExamples
from keras_vdrop.callbacks.dropout_rate_logger import DropoutRateLogger
from keras_vdrop.callbacks.kl_warmup import KLWarmup

__all__ = [
    "BatchNormalizationUpdate",
    "CountExamples",
    "DropoutRateLogger",
    "KLWarmup",
]
