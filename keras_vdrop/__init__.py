"""Variational dropout for Keras 3 (Kingma, Salimans, Welling 2015)."""

from keras_vdrop import callbacks
from keras_vdrop import divergence
from keras_vdrop import layers
from keras_vdrop import metrics
from keras_vdrop.conversion import to_deterministic
from keras_vdrop.conversion import to_variational
from keras_vdrop.gradients import gradient_variance
from keras_vdrop.insight import plot_rates
from keras_vdrop.insight import summary
from keras_vdrop.layers import VariationalConv1D
from keras_vdrop.layers import VariationalConv2D
from keras_vdrop.layers import VariationalConv3D
from keras_vdrop.layers import VariationalDense
from keras_vdrop.layers import VariationalDropout
from keras_vdrop.objective import set_num_examples
from keras_vdrop.prediction import predict
from keras_vdrop.reliability import plot_reliability

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
    "plot_rates",
    "plot_reliability",
    "predict",
    "set_num_examples",
    "summary",
    "to_deterministic",
    "to_variational",
]

__version__ = "0.1.0"
