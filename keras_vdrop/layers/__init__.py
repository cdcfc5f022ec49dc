"""The variational layers."""

from keras_vdrop.layers.attention.group_query_attention import (
    VariationalGroupQueryAttention,
)
from keras_vdrop.layers.attention.multi_head_attention import (
    VariationalMultiHeadAttention,
)
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.convolutional.conv1d import VariationalConv1D
from keras_vdrop.layers.convolutional.conv1d_transpose import (
    VariationalConv1DTranspose,
)
from keras_vdrop.layers.convolutional.conv2d import VariationalConv2D
from keras_vdrop.layers.convolutional.conv2d_transpose import (
    VariationalConv2DTranspose,
)
from keras_vdrop.layers.convolutional.conv3d import VariationalConv3D
from keras_vdrop.layers.convolutional.conv3d_transpose import (
    VariationalConv3DTranspose,
)
from keras_vdrop.layers.convolutional.depthwise_conv1d import (
    VariationalDepthwiseConv1D,
)
from keras_vdrop.layers.convolutional.depthwise_conv2d import (
    VariationalDepthwiseConv2D,
)
from keras_vdrop.layers.convolutional.separable_conv1d import (
    VariationalSeparableConv1D,
)
from keras_vdrop.layers.convolutional.separable_conv2d import (
    VariationalSeparableConv2D,
)
from keras_vdrop.layers.core.dense import VariationalDense
from keras_vdrop.layers.core.einsum_dense import VariationalEinsumDense
from keras_vdrop.layers.core.embedding import VariationalEmbedding
from keras_vdrop.layers.core.reversible_embedding import (
    VariationalReversibleEmbedding,
)
from keras_vdrop.layers.dropout import VariationalDropout
from keras_vdrop.layers.observation_noise import ObservationNoise
from keras_vdrop.layers.recurrent.conv_lstm1d import VariationalConvLSTM1D
from keras_vdrop.layers.recurrent.conv_lstm2d import VariationalConvLSTM2D
from keras_vdrop.layers.recurrent.conv_lstm3d import VariationalConvLSTM3D
from keras_vdrop.layers.recurrent.gru import VariationalGRU
from keras_vdrop.layers.recurrent.gru_cell import VariationalGRUCell
from keras_vdrop.layers.recurrent.lstm import VariationalLSTM
from keras_vdrop.layers.recurrent.lstm import VariationalLSTMCell
from keras_vdrop.layers.recurrent.simple_rnn import VariationalSimpleRNN
from keras_vdrop.layers.recurrent.simple_rnn import VariationalSimpleRNNCell
from keras_vdrop.layers.variational import Variational

__all__ = [
    "ObservationNoise",
    "Variational",
    "VariationalConv1D",
    "VariationalConv1DTranspose",
    "VariationalConv2D",
    "VariationalConv2DTranspose",
    "VariationalConv3D",
    "VariationalConv3DTranspose",
    "VariationalConvLSTM1D",
    "VariationalConvLSTM2D",
    "VariationalConvLSTM3D",
    "VariationalDense",
    "VariationalDepthwiseConv1D",
    "VariationalDepthwiseConv2D",
    "VariationalDropout",
    "VariationalEinsumDense",
    "VariationalEmbedding",
    "VariationalGRU",
    "VariationalGRUCell",
    "VariationalGroupQueryAttention",
    "VariationalLSTM",
    "VariationalLSTMCell",
    "VariationalLayer",
    "VariationalMultiHeadAttention",
    "VariationalReversibleEmbedding",
    "VariationalSeparableConv1D",
    "VariationalSeparableConv2D",
    "VariationalSimpleRNN",
    "VariationalSimpleRNNCell",
]
