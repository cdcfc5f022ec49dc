"""Variational dropout for Keras 3 (Kingma, Salimans, Welling 2015)."""

from keras_vdrop import callbacks
from keras_vdrop import divergence
from keras_vdrop import layers
from keras_vdrop import metrics
from keras_vdrop.gradients import gradient_variance
from keras_vdrop.layers import VariationalConv1D
from keras_vdrop.layers import VariationalConv2D
from keras_vdrop.layers import VariationalConv3D
from keras_vdrop.layers import VariationalDense
from keras_vdrop.layers import VariationalDropout
from keras_vdrop.objective import set_num_examples
from keras_vdrop.prediction import predict

__all__ = [
    "VariationalConv1D",
    "VariationalConv2D",
    "VariationalConv3D",
    "VariationalDense",
    "VariationalDropout",
    "callbacks",
    "divergence",
    "gradient_variance",
    "layers",
    "metrics",
    "predict",
    "set_num_examples",
]

__version__ = "0.1.0"
