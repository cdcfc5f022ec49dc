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
from keras.src import testing
from torch_params import WithKLWeight

import keras_vdrop
from keras_vdrop.layers import VariationalLayer

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
    [
        stand_in(keras_vdrop.VariationalConv1D),
        stand_in(keras_vdrop.VariationalConv2D),
        stand_in(keras_vdrop.VariationalConv3D),
        stand_in(keras_vdrop.VariationalDense),
        stand_in(keras_vdrop.VariationalEinsumDense),
        stand_in(keras_vdrop.VariationalEmbedding),
        stand_in(keras_vdrop.VariationalGroupQueryAttention),
        stand_in(keras_vdrop.VariationalMultiHeadAttention),
        stand_in(keras_vdrop.VariationalReversibleEmbedding),
    ]
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
dense_test = load("keras.src.layers.core.dense_test")
conv_test = load("keras.src.layers.convolutional.conv_test")
einsum_dense_test = load("keras.src.layers.core.einsum_dense_test")
embedding_test = load("keras.src.layers.core.embedding_test")
reversible_embedding_test = load(
    "keras.src.layers.core.reversible_embedding_test"
)
multi_head_attention_test = load(
    "keras.src.layers.attention.multi_head_attention_test"
)
grouped_query_attention_test = load(
    "keras.src.layers.attention.grouped_query_attention_test"
)
MODULES = (
    dense_test,
    conv_test,
    einsum_dense_test,
    embedding_test,
    reversible_embedding_test,
    multi_head_attention_test,
    grouped_query_attention_test,
)


class WithNoiseWeights(WithKLWeight):
    """Mixin: expects `log_alpha`, the state of the seed and the KL besides."""

    def random_variables(self, init_kwargs):
        """How many the layer has."""
        return 1

    def run_layer_test(self, layer_cls, init_kwargs, **kwargs):
        self.assertTrue(issubclass(layer_cls, VariationalLayer))
        for expected in (
            "expected_num_trainable_weights",
            "expected_num_non_trainable_weights",
            "expected_num_losses",
        ):
            if kwargs.get(expected) is not None:
                kwargs[expected] += self.random_variables(init_kwargs)
        super().run_layer_test(layer_cls, init_kwargs, **kwargs)


class DenseTest(WithNoiseWeights, dense_test.DenseTest):
    @pytest.mark.skipif(
        not backend.SUPPORTS_SPARSE_TENSORS,
        reason="Backend does not support sparse tensors.",
    )
    def test_dense_sparse(self):
        # The shipped test imports it on jax too.
        pytest.importorskip("tensorflow")
        super().test_dense_sparse()


class ConvBasicTest(WithNoiseWeights, conv_test.ConvBasicTest):
    pass


class ConvCorrectnessTest(WithNoiseWeights, conv_test.ConvCorrectnessTest):
    pass


class EinsumDenseTest(WithNoiseWeights, einsum_dense_test.EinsumDenseTest):
    pass


class EmbeddingTest(WithNoiseWeights, embedding_test.EmbeddingTest):
    pass


class ReversibleEmbeddingTest(
    WithNoiseWeights, reversible_embedding_test.ReversibleEmbeddingTest
):
    def random_variables(self, init_kwargs):
        return 1 if init_kwargs.get("tie_weights", True) else 2


class MultiHeadAttentionTest(
    WithNoiseWeights, multi_head_attention_test.MultiHeadAttentionTest
):
    def random_variables(self, init_kwargs):
        return 5 if init_kwargs.get("use_gate") else 4


class GroupedQueryAttentionTest(
    WithNoiseWeights, grouped_query_attention_test.GroupedQueryAttentionTest
):
    def random_variables(self, init_kwargs):
        return 5 if init_kwargs.get("use_gate") else 4


class ShippedTest(testing.TestCase):
    """A version of Keras with other tests must not go unnoticed."""

    # With the numbers of their tests.
    SUITES = {
        DenseTest: 13,
        ConvBasicTest: 14,
        ConvCorrectnessTest: 18,
        EinsumDenseTest: 25,
        EmbeddingTest: 11,
        ReversibleEmbeddingTest: 3,
        MultiHeadAttentionTest: 20,
        GroupedQueryAttentionTest: 10,
    }

    def test_every_suite_runs(self):
        shipped = [cls for module in MODULES for cls in suites(module)]
        self.assertEqual(shipped, [cls.__bases__[1] for cls in self.SUITES])

    def test_number_of_tests(self):
        for cls, number in self.SUITES.items():
            self.assertGreaterEqual(len(names_of_tests(cls)), number, cls)
