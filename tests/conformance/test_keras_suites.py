"""Keras's own tests of its layers, run with the variational layers."""

import importlib.util
import inspect
import re
import types
import unittest
from unittest import mock

import keras
import pytest
from backends import KERAS
from keras.src import backend
from keras.src import layers
from torch_params import WithKLWeight

import keras_vdrop

pytestmark = pytest.mark.slow

UNSUPPORTED = re.compile("lora|quantiz|int4|int8|float8|gptq|awq")
LEFT_OUT = {
    # Loads what older versions of Keras saved, mostly of quantized layers.
    "test_legacy_load_own_variables",
}


class StandIn:
    """Mixin: a variational layer that a test may take for the Keras layer."""

    def __init__(self, *args, num_examples=10, **kwargs):
        super().__init__(*args, num_examples=num_examples, **kwargs)

    def set_weights(self, weights):
        if len(weights) == len(self.weights):
            return super().set_weights(weights)
        noise = {id(v) for x in self.random_weights for v in x.weights}
        plain = iter(weights)
        super().set_weights(
            [
                value if id(variable) in noise else next(plain)
                for variable, value in zip(
                    self.weights, self.get_weights(), strict=True
                )
            ]
        )
        assert next(plain, None) is None


def stand_in(layer_cls):
    name = layer_cls.keras_class().__name__
    cls = type(name, (StandIn, layer_cls), {})
    return name, keras.saving.register_keras_serializable("conformance")(cls)


STAND_INS = dict(
    stand_in(getattr(keras_vdrop.layers, name))
    for name in (
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
        "VariationalEinsumDense",
        "VariationalEmbedding",
        "VariationalGRU",
        "VariationalGroupQueryAttention",
        "VariationalLSTM",
        "VariationalMultiHeadAttention",
        "VariationalReversibleEmbedding",
        "VariationalSeparableConv1D",
        "VariationalSeparableConv2D",
        "VariationalSimpleRNN",
    )
)


def load(name):
    """A copy of a shipped test module in which `layers` has the stand-ins.

    The module is executed with them, because it gives layers to
    `parameterized` too. It is imported as it is before that, so that modules
    which it is the first to import see the layers of Keras.
    """
    spec = importlib.import_module(name).__spec__
    module = importlib.util.module_from_spec(spec)
    swapped = types.SimpleNamespace(**{**vars(layers), **STAND_INS})
    with mock.patch("keras.src.layers", swapped):
        spec.loader.exec_module(module)
    for cls in suites(module):
        for test in names_of_tests(cls):
            if UNSUPPORTED.search(test) or test in LEFT_OUT:
                delattr(cls, test)
    return module


def suites(module):
    return [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, unittest.TestCase)
    ]


def names_of_tests(cls):
    return unittest.defaultTestLoader.getTestCaseNames(cls)


if KERAS < (3, 15):  # Not every version ships its tests.
    pytest.importorskip("keras.src.layers.core.dense_test")


class WithNoiseWeights(WithKLWeight):
    """Mixin: expects `log_alpha`, the state of the seed and the KL besides."""

    def random_variables(self, layer_cls, init_kwargs):
        """How many the layer has."""
        layers = keras_vdrop.variational_layers(layer_cls(**init_kwargs))
        return sum(len(layer.random_weights) for layer in layers)

    def run_layer_test(self, layer_cls, init_kwargs, **kwargs):
        noise = self.random_variables(layer_cls, init_kwargs)
        self.assertGreater(noise, 0)
        for expected in (
            "expected_num_trainable_weights",
            "expected_num_non_trainable_weights",
            "expected_num_losses",
        ):
            if kwargs.get(expected) is not None:
                kwargs[expected] += noise
        # `kl_weight` is no weight.
        variables = "expected_num_non_trainable_variables"
        if kwargs.get(variables) is not None:
            kwargs[variables] += 2 * noise
        super().run_layer_test(layer_cls, init_kwargs, **kwargs)


class SparseInputs:
    """Mixin: a test of Keras's that imports tensorflow on jax too."""

    @pytest.mark.skipif(
        not backend.SUPPORTS_SPARSE_TENSORS,
        reason="Backend does not support sparse tensors.",
    )
    def test_dense_sparse(self):
        pytest.importorskip("tensorflow")
        super().test_dense_sparse()


class Projections:
    """Mixin: attention, whose projections are made when it is built."""

    def random_variables(self, layer_cls, init_kwargs):
        return 5 if init_kwargs.get("use_gate") else 4


# The shipped suites, with the numbers of their tests that we run: a version of
# Keras with other tests must not go unnoticed.
SUITES = {
    "core.dense_test": {"DenseTest": 13},
    "core.einsum_dense_test": {"EinsumDenseTest": 25},
    "core.embedding_test": {"EmbeddingTest": 11},
    "core.reversible_embedding_test": {"ReversibleEmbeddingTest": 3},
    "attention.multi_head_attention_test": {"MultiHeadAttentionTest": 20},
    "attention.grouped_query_attention_test": {"GroupedQueryAttentionTest": 10},
    "convolutional.conv_test": {
        "ConvBasicTest": 14,
        "ConvCorrectnessTest": 18,
    },
    "convolutional.conv_transpose_test": {
        "ConvTransposeBasicTest": 14,
        "ConvTransposeCorrectnessTest": 330,
    },
    "convolutional.depthwise_conv_test": {
        "DepthwiseConvBasicTest": 9,
        "DepthwiseConvCorrectnessTest": 7,
    },
    "convolutional.separable_conv_test": {
        "SeparableConvBasicTest": 8,
        "SeparableConvCorrectnessTest": 6,
    },
    "rnn.bidirectional_test": {"SimpleRNNTest": 13},
    "rnn.conv_lstm1d_test": {"ConvLSTM1DTest": 3},
    "rnn.conv_lstm2d_test": {"ConvLSTM2DTest": 3},
    "rnn.conv_lstm3d_test": {"ConvLSTM3DTest": 3},
    "rnn.gru_test": {"GRUTest": 10},
    "rnn.lstm_test": {"LSTMTest": 6},
    "rnn.simple_rnn_test": {"SimpleRNNTest": 5},
}
MIXINS = {
    "DenseTest": (SparseInputs,),
    "MultiHeadAttentionTest": (Projections,),
    "GroupedQueryAttentionTest": (Projections,),
}

# The suites of each module, all of which have to be in the table.
SHIPPED = {name: suites(load(f"keras.src.layers.{name}")) for name in SUITES}
RUN = {}
for module, found in SHIPPED.items():
    for suite in found:
        bases = (*MIXINS.get(suite.__name__, ()), WithNoiseWeights, suite)
        # Two modules have a suite of the same name.
        name = f"{module.rpartition('.')[2]}_{suite.__name__}"
        RUN[module, suite.__name__] = type(name, bases, {})
        globals()[name] = RUN[module, suite.__name__]


@pytest.mark.parametrize("module", SUITES)
def test_every_shipped_test_runs(module):
    shipped = {cls.__name__ for cls in SHIPPED[module]}
    assert shipped == SUITES[module].keys()
    for name, count in SUITES[module].items():
        assert len(names_of_tests(RUN[module, name])) >= count
