"""The variational layers."""

from keras_vdrop.layers.attention.group_query_attention import (
    VariationalGroupQueryAttention,
)
from keras_vdrop.layers.attention.multi_head_attention import (
    VariationalMultiHeadAttention,
)
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.convolutional.conv1d import VariationalConv1D
from keras_vdrop.layers.convolutional.conv2d import VariationalConv2D
from keras_vdrop.layers.convolutional.conv3d import VariationalConv3D
from keras_vdrop.layers.convolutional.depthwise_conv2d import (
    VariationalDepthwiseConv2D,
)
from keras_vdrop.layers.core.dense import VariationalDense
from keras_vdrop.layers.core.einsum_dense import VariationalEinsumDense
from keras_vdrop.layers.core.embedding import VariationalEmbedding
from keras_vdrop.layers.core.reversible_embedding import (
    VariationalReversibleEmbedding,
)
from keras_vdrop.layers.dropout import VariationalDropout
from keras_vdrop.layers.recurrent.lstm import VariationalLSTM
from keras_vdrop.layers.recurrent.lstm import VariationalLSTMCell
from keras_vdrop.layers.variational import Variational

__all__ = [
    "Variational",
    "VariationalConv1D",
    "VariationalConv2D",
    "VariationalConv3D",
    "VariationalDense",
    "VariationalDepthwiseConv2D",
    "VariationalDropout",
    "VariationalEinsumDense",
    "VariationalEmbedding",
    "VariationalGroupQueryAttention",
    "VariationalLSTM",
    "VariationalLSTMCell",
    "VariationalLayer",
    "VariationalMultiHeadAttention",
    "VariationalReversibleEmbedding",
]
