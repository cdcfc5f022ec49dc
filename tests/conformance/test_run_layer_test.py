"""Keras's own check of a layer, `run_layer_test`, for every layer."""

import inspect

import keras
import pytest
from absl.testing import parameterized
from keras import ops
from keras.src import backend
from keras.src import testing
from torch_params import WithKLWeight

import keras_vdrop
from keras_vdrop import Variational
from keras_vdrop import VariationalConv1D
from keras_vdrop import VariationalConv1DTranspose
from keras_vdrop import VariationalConv2D
from keras_vdrop import VariationalConv2DTranspose
from keras_vdrop import VariationalConv3D
from keras_vdrop import VariationalConv3DTranspose
from keras_vdrop import VariationalConvLSTM1D
from keras_vdrop import VariationalConvLSTM2D
from keras_vdrop import VariationalConvLSTM3D
from keras_vdrop import VariationalDense
from keras_vdrop import VariationalDepthwiseConv1D
from keras_vdrop import VariationalDepthwiseConv2D
from keras_vdrop import VariationalDropout
from keras_vdrop import VariationalEinsumDense
from keras_vdrop import VariationalEmbedding
from keras_vdrop import VariationalGroupQueryAttention
from keras_vdrop import VariationalGRU
from keras_vdrop import VariationalLSTM
from keras_vdrop import VariationalMultiHeadAttention
from keras_vdrop import VariationalReversibleEmbedding
from keras_vdrop import VariationalSeparableConv1D
from keras_vdrop import VariationalSeparableConv2D
from keras_vdrop import VariationalSimpleRNN

pytestmark = pytest.mark.slow


@keras.saving.register_keras_serializable(package="conformance")
def unbounded(log_alpha):
    """A divergence that holds for every alpha."""
    return ops.softplus(-log_alpha)


# `kernel_regularizer`, `bias_regularizer` and `activity_regularizer` are a
# loss each.
KERAS_ARGUMENTS = {
    "activation": "tanh",
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": "l2",
    "bias_regularizer": "l1",
    "activity_regularizer": "l2",
    "kernel_constraint": "unit_norm",
    "bias_constraint": "non_neg",
}
NOISE_ARGUMENTS = {
    "rate": 0.2,
    "max_alpha": 0.5,
    "kl": "lower_bound",
    "num_examples": 10,
    "kl_downscale": 3.0,
    "seed": 1,
}
# These exclude some of the values above.
UNBOUNDED = {
    "rate": 0.8,
    "max_alpha": None,
    "kl": unbounded,
    "num_examples": 10,
}
FIXED = {"rate": 0.9, "adaptive": False}
ADDITIVE = {
    "parameterization": "additive",
    "granularity": "weight",
    "estimator": "example",
}

EINSUM_ARGUMENTS = {
    name: value
    for name, value in KERAS_ARGUMENTS.items()
    if name != "activity_regularizer"
}
ATTENTION_ARGUMENTS = {
    name: value
    for name, value in KERAS_ARGUMENTS.items()
    if name != "activation"
}
SEQUENCES = {"query_shape": (2, 4, 3), "value_shape": (2, 5, 3)}
EMBEDDING_ARGUMENTS = {
    "embeddings_initializer": "he_normal",
    "embeddings_regularizer": "l2",
    "embeddings_constraint": "unit_norm",
    "mask_zero": True,
}
DEPTHWISE_ARGUMENTS = {
    name.replace("kernel", "depthwise"): value
    for name, value in KERAS_ARGUMENTS.items()
}
SEPARABLE_ARGUMENTS = {
    **DEPTHWISE_ARGUMENTS,
    **{
        name.replace("kernel", "pointwise"): value
        for name, value in KERAS_ARGUMENTS.items()
    },
}
# tensorflow has no transposed convolution with another one on a CPU.
DILATION = [1] if backend.backend() == "tensorflow" else [2]
# These need more than `run_layer_test` can do: tests/layers/test_recurrent.py,
# tests/layers/test_embedding.py, tests/layers/test_attention.py.
ELSEWHERE = {
    (VariationalEmbedding, "weights"),
    # It has one value.
    (Variational, "noise"),
    (VariationalMultiHeadAttention, "flash_attention"),
    (VariationalGroupQueryAttention, "flash_attention"),
} | {
    (layer_cls, argument)
    for layer_cls in (
        VariationalConvLSTM1D,
        VariationalConvLSTM2D,
        VariationalConvLSTM3D,
        VariationalGRU,
        VariationalLSTM,
        VariationalSimpleRNN,
    )
    for argument in ("stateful", "return_state")
}
RECURRENT_ARGUMENTS = {
    **KERAS_ARGUMENTS,
    "activation": "relu",
    "recurrent_initializer": "glorot_uniform",
    "recurrent_regularizer": "l2",
    "recurrent_constraint": "unit_norm",
    "dropout": 0.1,
    "recurrent_dropout": 0.1,
    "go_backwards": True,
    "return_sequences": True,
    "granularity": "input",
    **NOISE_ARGUMENTS,
}
SAMPLED = {
    "noise": "independent",
    "estimator": "batch",
    "granularity": "weight",
    "parameterization": "additive",
    "num_examples": 10,
}

# Layer, arguments, shapes of inputs and outputs, and the numbers of trainable
# weights, non-trainable weights and losses. What is channels-first is grouped,
# for then TensorFlow can convolve it in float16 on a CPU too.
CASES = {
    "dense": (
        VariationalDense,
        {"units": 4, "num_examples": 10},
        ((2, 3), (2, 4)),
        (3, 1, 1),
    ),
    "dense_additive": (
        VariationalDense,
        {
            "units": 4,
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 5, 3), (2, 5, 4)),
        (3, 1, 4),
    ),
    "dense_correlated": (
        VariationalDense,
        {
            "units": 4,
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            "estimator": "batch",
            **UNBOUNDED,
        },
        ((2, 3), (2, 4)),
        (2, 1, 1),
    ),
    "dense_input": (
        VariationalDense,
        {"units": 4, "granularity": "input", "num_examples": 10},
        ((2, 3), (2, 4)),
        (3, 1, 1),
    ),
    "dense_fixed": (
        VariationalDense,
        {"units": 4, "granularity": "output", "dtype": "bfloat16", **FIXED},
        ((2, 3), (2, 4)),
        (2, 2, 0),
    ),
    "conv1d": (
        VariationalConv1D,
        {"filters": 4, "kernel_size": 2, "num_examples": 10},
        ((2, 6, 3), (2, 5, 4)),
        (3, 1, 1),
    ),
    "conv1d_causal": (
        VariationalConv1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "causal",
            "dilation_rate": 2,
            "groups": 2,
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 6, 2), (2, 6, 4)),
        (3, 1, 4),
    ),
    "conv1d_channels_first": (
        VariationalConv1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "data_format": "channels_first",
            "groups": 2,
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 2, 6), (2, 4, 3)),
        (1, 2, 0),
    ),
    "conv2d": (
        VariationalConv2D,
        {"filters": 4, "kernel_size": 2, "num_examples": 10},
        ((2, 4, 5, 3), (2, 3, 4, 4)),
        (3, 1, 1),
    ),
    "conv2d_same": (
        VariationalConv2D,
        {
            "filters": 4,
            "kernel_size": (2, 3),
            "padding": "same",
            "dilation_rate": (2, 1),
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 5, 3), (2, 4, 5, 4)),
        (3, 1, 4),
    ),
    "conv2d_channels_first": (
        VariationalConv2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": (2, 1),
            "data_format": "channels_first",
            "groups": 2,
            "use_bias": False,
            "noise": "correlated",
            **UNBOUNDED,
        },
        ((2, 2, 4, 6), (2, 4, 2, 5)),
        (2, 1, 1),
    ),
    "conv2d_fixed": (
        VariationalConv2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "data_format": "channels_first",
            "groups": 2,
            "granularity": "output",
            **FIXED,
        },
        ((2, 2, 4, 6), (2, 4, 3, 5)),
        (2, 2, 0),
    ),
    "conv3d": (
        VariationalConv3D,
        {"filters": 4, "kernel_size": 2, "num_examples": 10},
        ((2, 3, 4, 2, 3), (2, 2, 3, 1, 4)),
        (3, 1, 1),
    ),
    "conv3d_same": (
        VariationalConv3D,
        {
            "filters": 4,
            "kernel_size": (1, 2, 2),
            "padding": "same",
            "dilation_rate": (1, 2, 1),
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 3, 4, 2, 3), (2, 3, 4, 2, 4)),
        (3, 1, 4),
    ),
    "conv3d_channels_first": (
        VariationalConv3D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": (1, 2, 1),
            "data_format": "channels_first",
            "groups": 2,
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 2, 3, 4, 3), (2, 4, 2, 2, 2)),
        (1, 2, 0),
    ),
    "dropout": (
        VariationalDropout,
        {"num_examples": 10},
        ((2, 3), (2, 3)),
        (1, 1, 1),
    ),
    "dropout_input": (
        VariationalDropout,
        {
            "granularity": "input",
            "axis": 1,
            "activity_regularizer": "l2",
            **NOISE_ARGUMENTS,
        },
        ((2, 3, 4), (2, 3, 4)),
        (1, 1, 2),
    ),
    "dropout_unbounded": (
        VariationalDropout,
        {"axis": -2, **UNBOUNDED},
        ((2, 3, 4), (2, 3, 4)),
        (1, 1, 1),
    ),
    "dropout_fixed": (
        VariationalDropout,
        {"granularity": "input", **FIXED},
        ((2, 3), (2, 3)),
        (0, 2, 0),
    ),
    "depthwise": (
        VariationalDepthwiseConv2D,
        {
            "kernel_size": (2, 1),
            "strides": 2,
            "padding": "same",
            "depth_multiplier": 2,
            "data_format": "channels_last",
            **ADDITIVE,
            **DEPTHWISE_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 4, 3), (2, 2, 2, 6)),
        (3, 1, 4),
    ),
    "depthwise_fixed": (
        VariationalDepthwiseConv2D,
        {
            "kernel_size": 2,
            "dilation_rate": 2,
            "use_bias": False,
            "noise": "correlated",
            "data_format": "channels_last",
            **FIXED,
        },
        ((2, 4, 4, 3), (2, 2, 2, 3)),
        (1, 2, 0),
    ),
    "conv1d_transpose": (
        VariationalConv1DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": DILATION * 1,
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 3), (2, 4, 4)),
        (3, 1, 4),
    ),
    "conv1d_transpose_strides": (
        VariationalConv1DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "output_padding": 1,
            "data_format": "channels_last",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 4, 2), (2, 9, 4)),
        (1, 2, 0),
    ),
    "conv2d_transpose": (
        VariationalConv2DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": DILATION * 2,
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 3, 3), (2, 4, 3, 4)),
        (3, 1, 4),
    ),
    "conv2d_transpose_strides": (
        VariationalConv2DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "output_padding": 1,
            "data_format": "channels_last",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 3, 4, 2), (2, 7, 9, 4)),
        (1, 2, 0),
    ),
    "conv3d_transpose": (
        VariationalConv3DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": DILATION * 3,
            **ADDITIVE,
            **KERAS_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 2, 3, 2, 3), (2, 2, 3, 2, 4)),
        (3, 1, 4),
    ),
    "conv3d_transpose_strides": (
        VariationalConv3DTranspose,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "output_padding": 1,
            "data_format": "channels_last",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 3, 2, 2, 2), (2, 7, 5, 5, 4)),
        (1, 2, 0),
    ),
    "depthwise_conv1d": (
        VariationalDepthwiseConv1D,
        {
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "depth_multiplier": 2,
            **ADDITIVE,
            **DEPTHWISE_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 3), (2, 4, 6)),
        (3, 1, 4),
    ),
    "depthwise_conv1d_channels_first": (
        VariationalDepthwiseConv1D,
        {
            "kernel_size": 2,
            "strides": 2,
            "data_format": "channels_first",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 3, 4), (2, 3, 2)),
        (1, 2, 0),
    ),
    "separable_conv1d": (
        VariationalSeparableConv1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "depth_multiplier": 2,
            **ADDITIVE,
            **SEPARABLE_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 6, 3), (2, 6, 4)),
        (5, 2, 6),
    ),
    "separable_conv1d_channels_first": (
        VariationalSeparableConv1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "data_format": "channels_first",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 2, 6), (2, 4, 3)),
        (2, 4, 0),
    ),
    "separable_conv2d": (
        VariationalSeparableConv2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "depth_multiplier": 2,
            **ADDITIVE,
            **SEPARABLE_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 4, 5, 3), (2, 4, 5, 4)),
        (5, 2, 6),
    ),
    "separable_conv2d_channels_first": (
        VariationalSeparableConv2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "data_format": "channels_first",
            "use_bias": False,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 2, 4, 6), (2, 4, 2, 3)),
        (2, 4, 0),
    ),
    "einsum": (
        VariationalEinsumDense,
        {
            "equation": "abc,cde->abde",
            "output_shape": (5, 4, 2),
            "bias_axes": "e",
            **ADDITIVE,
            **EINSUM_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 5, 3), (2, 5, 4, 2)),
        (3, 1, 3),
    ),
    "einsum_fixed": (
        VariationalEinsumDense,
        {
            "equation": "ab,bc->ac",
            "output_shape": 4,
            "noise": "correlated",
            "granularity": "input",
            **FIXED,
        },
        ((2, 3), (2, 4)),
        (1, 2, 0),
    ),
    "embedding": (
        VariationalEmbedding,
        {
            "input_dim": 5,
            "output_dim": 4,
            **ADDITIVE,
            **EMBEDDING_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 3), (2, 3, 4)),
        (2, 1, 2),
    ),
    "embedding_fixed": (
        VariationalEmbedding,
        {"input_dim": 5, "output_dim": 4, "noise": "correlated", **FIXED},
        ((2, 3), (2, 3, 4)),
        (1, 2, 0),
    ),
    "reversible_embedding": (
        VariationalReversibleEmbedding,
        {
            "input_dim": 5,
            "output_dim": 4,
            "tie_weights": False,
            "reverse_dtype": "float32",
            "logit_soft_cap": 5.0,
            **ADDITIVE,
            **EMBEDDING_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        ((2, 3), (2, 3, 4)),
        (4, 2, 3),
    ),
    "reversible_embedding_fixed": (
        VariationalReversibleEmbedding,
        {"input_dim": 5, "output_dim": 4, "noise": "correlated", **FIXED},
        ((2, 3), (2, 3, 4)),
        (1, 2, 0),
    ),
    "attention": (
        VariationalMultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 2,
            "value_dim": 3,
            "dropout": 0.1,
            "output_shape": (4,),
            "attention_axes": (1,),
            "sliding_window": 2,
            "use_gate": True,
            **ADDITIVE,
            **ATTENTION_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        (SEQUENCES, (2, 4, 4)),
        (15, 5, 20),
    ),
    "attention_fixed": (
        VariationalMultiHeadAttention,
        {
            "num_heads": 2,
            "key_dim": 2,
            "use_bias": False,
            "noise": "correlated",
            **FIXED,
        },
        (SEQUENCES, (2, 4, 3)),
        (4, 8, 0),
    ),
    "attention_grouped": (
        VariationalGroupQueryAttention,
        {
            "head_dim": 2,
            "num_query_heads": 2,
            "num_key_value_heads": 1,
            "dropout": 0.1,
            "sliding_window": 2,
            "use_gate": True,
            **ADDITIVE,
            **ATTENTION_ARGUMENTS,
            **NOISE_ARGUMENTS,
        },
        (SEQUENCES, (2, 4, 3)),
        (15, 5, 21),
    ),
    "attention_grouped_fixed": (
        VariationalGroupQueryAttention,
        {
            "head_dim": 2,
            "num_query_heads": 2,
            "num_key_value_heads": 1,
            "use_bias": False,
            "noise": "correlated",
            **FIXED,
        },
        (SEQUENCES, (2, 4, 3)),
        (4, 8, 0),
    ),
    "any_layer": (
        Variational,
        {
            "layer": keras.layers.Dense(4, kernel_regularizer="l2"),
            "weights": ["bias", "kernel"],
            **ADDITIVE,
            **NOISE_ARGUMENTS,
        },
        ((2, 3), (2, 4)),
        (4, 2, 3),
    ),
    "any_layer_fixed": (
        Variational,
        {"layer": keras.layers.Conv1D(4, 2), **FIXED},
        ((2, 5, 3), (2, 4, 4)),
        (2, 2, 0),
    ),
    "lstm": (
        VariationalLSTM,
        {
            "units": 4,
            "recurrent_activation": "tanh",
            "unit_forget_bias": False,
            "use_cudnn": False,
            **RECURRENT_ARGUMENTS,
        },
        ((2, 5, 3), (2, 5, 4)),
        (5, 2, 6),
    ),
    "lstm_additive": (
        VariationalLSTM,
        {"units": 4, "use_bias": False, "unroll": True, **SAMPLED},
        ((2, 5, 3), (2, 4)),
        (4, 2, 2),
    ),
    "lstm_fixed": (
        VariationalLSTM,
        {"units": 4, **FIXED},
        ((2, 5, 3), (2, 4)),
        (3, 4, 0),
    ),
    "gru": (
        VariationalGRU,
        {
            "units": 4,
            "recurrent_activation": "tanh",
            "reset_after": False,
            "use_cudnn": False,
            **RECURRENT_ARGUMENTS,
        },
        ((2, 5, 3), (2, 5, 4)),
        (5, 2, 6),
    ),
    "gru_additive": (
        VariationalGRU,
        {"units": 4, "use_bias": False, "unroll": True, **SAMPLED},
        ((2, 5, 3), (2, 4)),
        (4, 2, 2),
    ),
    "gru_fixed": (
        VariationalGRU,
        {"units": 4, **FIXED},
        ((2, 5, 3), (2, 4)),
        (3, 4, 0),
    ),
    "simple_rnn": (
        VariationalSimpleRNN,
        {"units": 4, **RECURRENT_ARGUMENTS},
        ((2, 5, 3), (2, 5, 4)),
        (5, 2, 6),
    ),
    "simple_rnn_additive": (
        VariationalSimpleRNN,
        {"units": 4, "use_bias": False, "unroll": True, **SAMPLED},
        ((2, 5, 3), (2, 4)),
        (4, 2, 2),
    ),
    "simple_rnn_fixed": (
        VariationalSimpleRNN,
        {"units": 4, **FIXED},
        ((2, 5, 3), (2, 4)),
        (3, 4, 0),
    ),
    "conv_lstm1d": (
        VariationalConvLSTM1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "data_format": "channels_last",
            "recurrent_activation": "tanh",
            "unit_forget_bias": False,
            **RECURRENT_ARGUMENTS,
        },
        ((2, 2, 4, 3), (2, 2, 4, 4)),
        (5, 2, 6),
    ),
    "conv_lstm1d_additive": (
        VariationalConvLSTM1D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "use_bias": False,
            **SAMPLED,
        },
        ((2, 2, 4, 3), (2, 2, 4)),
        (4, 2, 2),
    ),
    "conv_lstm1d_fixed": (
        VariationalConvLSTM1D,
        {"filters": 4, "kernel_size": 2, **FIXED},
        ((2, 2, 4, 3), (2, 3, 4)),
        (3, 4, 0),
    ),
    "conv_lstm2d": (
        VariationalConvLSTM2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "data_format": "channels_last",
            "recurrent_activation": "tanh",
            "unit_forget_bias": False,
            **RECURRENT_ARGUMENTS,
        },
        ((2, 2, 4, 3, 3), (2, 2, 4, 3, 4)),
        (5, 2, 6),
    ),
    "conv_lstm2d_additive": (
        VariationalConvLSTM2D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "use_bias": False,
            **SAMPLED,
        },
        ((2, 2, 4, 4, 3), (2, 2, 2, 4)),
        (4, 2, 2),
    ),
    "conv_lstm2d_fixed": (
        VariationalConvLSTM2D,
        {"filters": 4, "kernel_size": 2, **FIXED},
        ((2, 2, 4, 4, 3), (2, 3, 3, 4)),
        (3, 4, 0),
    ),
    "conv_lstm3d": (
        VariationalConvLSTM3D,
        {
            "filters": 4,
            "kernel_size": 2,
            "padding": "same",
            "dilation_rate": 2,
            "data_format": "channels_last",
            "recurrent_activation": "tanh",
            "unit_forget_bias": False,
            **RECURRENT_ARGUMENTS,
        },
        ((2, 2, 2, 3, 2, 3), (2, 2, 2, 3, 2, 4)),
        (5, 2, 6),
    ),
    "conv_lstm3d_additive": (
        VariationalConvLSTM3D,
        {
            "filters": 4,
            "kernel_size": 2,
            "strides": 2,
            "use_bias": False,
            **SAMPLED,
        },
        ((2, 2, 4, 4, 4, 3), (2, 2, 2, 2, 4)),
        (4, 2, 2),
    ),
    "conv_lstm3d_fixed": (
        VariationalConvLSTM3D,
        {"filters": 4, "kernel_size": 2, **FIXED},
        ((2, 2, 4, 4, 4, 3), (2, 3, 3, 3, 4)),
        (3, 4, 0),
    ),
}
RECURRENT = ("conv_lstm", "gru", "lstm", "simple_rnn")


# What else a case needs.
INPUTS = {
    "embedding": {"input_dtype": "int32"},
    "reversible_embedding": {"input_dtype": "int32"},
    # The layer inside has a precision of its own.
    "any_layer": {"run_mixed_precision_check": False},
}


def in_both_modes(*cases):
    return parameterized.named_parameters(
        (f"{case}_training_{training}", case, training)
        for case in cases
        for training in (False, True)
    )


class RunLayerTest(WithKLWeight, testing.TestCase):
    def run_case(self, case, training, **kwargs):
        layer_cls, arguments, shapes, counts = CASES[case]
        self.run_layer_test(
            layer_cls,
            arguments,
            input_shape=shapes[0],
            call_kwargs={"training": training},
            expected_output_shape=shapes[1],
            expected_output_dtype=arguments.get("dtype", "float32"),
            expected_num_trainable_weights=counts[0],
            expected_num_non_trainable_weights=counts[1],
            expected_num_seed_generators=int(
                case.startswith(RECURRENT) or bool(arguments.get("dropout"))
            ),
            expected_num_losses=counts[2],
            supports_masking=arguments.get(
                "mask_zero",
                case.startswith(("attention", "dense", "dropout", *RECURRENT))
                or case == "any_layer",
            ),
            **INPUTS.get(case.partition("_fixed")[0], {}),
            # It has `training=True` in both modes: once is enough.
            run_training_check=training and not case.startswith("attention"),
            **kwargs,
        )

    @in_both_modes(*CASES)
    def test_layer(self, case, training):
        self.run_case(case, training)

    @in_both_modes("dense_input", "dense_correlated")
    @pytest.mark.skipif(
        not backend.SUPPORTS_SPARSE_TENSORS,
        reason="Backend does not support sparse tensors.",
    )
    def test_sparse_inputs(self, case, training):
        self.run_case(case, training, input_sparse=True)

    def test_integer_inputs(self):
        # In the other mode the inputs are passed on, as integers.
        self.run_case("dropout", training=True, input_dtype="uint8")

    def test_config_has_every_argument(self):
        # Keras compares a config with that of the layer made from it, which
        # would lack an argument as well.
        for layer_cls, arguments, *_ in CASES.values():
            config = layer_cls(**arguments).get_config()
            # Keras's own LSTM leaves it out.
            arguments = {**arguments, "use_cudnn": None, "layer": None}
            del arguments["use_cudnn"], arguments["layer"]
            self.assertContainsSubset(arguments, config)

    def test_every_argument_of_every_layer_has_a_case(self):
        tested = {
            (layer_cls, argument)
            for layer_cls, arguments, *_ in CASES.values()
            for argument, parameter in parameters(layer_cls).items()
            if arguments.get(argument, parameter.default) != parameter.default
        }
        every = {
            (layer_cls, argument)
            for layer_cls in map(vars(keras_vdrop).get, keras_vdrop.__all__)
            if inspect.isclass(layer_cls) and issubclass(layer_cls, keras.Layer)
            for argument in parameters(layer_cls)
        }
        self.assertEqual(every - tested, ELSEWHERE)


def parameters(layer_cls):
    found = dict(inspect.signature(layer_cls).parameters)
    del found["kwargs"]
    return found
