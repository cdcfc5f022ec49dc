"""The variational layers."""

from keras_vdrop.layers.conv import VariationalConv1D
from keras_vdrop.layers.conv import VariationalConv2D
from keras_vdrop.layers.conv import VariationalConv3D
from keras_vdrop.layers.dense import VariationalDense
from keras_vdrop.layers.dropout import VariationalDropout

__all__ = [
    "VariationalConv1D",
    "VariationalConv2D",
    "VariationalConv3D",
    "VariationalDense",
    "VariationalDropout",
]
