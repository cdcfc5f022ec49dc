"""The names that users type and that files contain.

A change here is a change for users: write it into docs/changelog.md.
"""

import importlib
import inspect
import pkgutil

import keras
import pytest

import keras_vdrop

MODULES = {
    "keras_vdrop": [
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
        "VariationalGroupQueryAttention",
        "VariationalLSTM",
        "VariationalMultiHeadAttention",
        "VariationalReversibleEmbedding",
        "VariationalSeparableConv1D",
        "VariationalSeparableConv2D",
        "VariationalSimpleRNN",
        "callbacks",
        "compress",
        "divergence",
        "evaluate",
        "fold_batch_normalization",
        "gradient_variance",
        "layers",
        "load_compressed",
        "losses",
        "metrics",
        "plot_least_sure",
        "plot_rates",
        "plot_reliability",
        "plot_risk_coverage",
        "predict",
        "priors",
        "prune",
        "save_compressed",
        "set_num_examples",
        "summary",
        "to_deterministic",
        "to_variational",
        "update_batch_normalization",
        "variational_layers",
    ],
    "keras_vdrop.layers": [
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
    ],
    "keras_vdrop.callbacks": [
        "BatchNormalizationUpdate",
        "CountExamples",
        "DropoutRateLogger",
        "KLWarmup",
    ],
    "keras_vdrop.losses": ["GaussianNegativeLogLikelihood"],
    "keras_vdrop.metrics": [
        "AreaUnderRiskCoverage",
        "BrierScore",
        "ExpectedCalibrationError",
        "IntervalCoverage",
        "IntervalScore",
        "NegativeLogLikelihood",
    ],
    "keras_vdrop.priors": ["Normal", "Prior", "ScaleInvariant"],
    "keras_vdrop.divergence": [
        "ard",
        "exact",
        "lower_bound",
        "polynomial",
        "sigmoid",
    ],
}

# What a file names. A class that is renamed cannot be loaded any more.
REGISTERED = [
    "AreaUnderRiskCoverage",
    "BrierScore",
    "Converted",
    "ExpectedCalibrationError",
    "GaussianNegativeLogLikelihood",
    "IntervalCoverage",
    "IntervalScore",
    "NegativeLogLikelihood",
    "Normal",
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
    "VariationalMultiHeadAttention",
    "VariationalReversibleEmbedding",
    "VariationalSeparableConv1D",
    "VariationalSeparableConv2D",
    "VariationalSimpleRNN",
    "VariationalSimpleRNNCell",
]

# The names in the README of 0.1.0.
OF_0_1_0 = [
    "VariationalConv1D",
    "VariationalConv2D",
    "VariationalConv3D",
    "VariationalDense",
    "VariationalDropout",
    "callbacks.DropoutRateLogger",
    "callbacks.KLWarmup",
    "gradient_variance",
    "metrics",
    "plot_rates",
    "plot_reliability",
    "predict",
    "set_num_examples",
    "summary",
    "to_deterministic",
    "to_variational",
]
ARGUMENTS_OF_0_1_0 = {
    "rate": [0.05],
    "noise": [None, "independent", "correlated"],
    "granularity": ["layer", "input", "output", "weight"],
    "adaptive": [True, False],
    "max_alpha": [1.0],
    "kl": ["polynomial", "lower_bound", "exact", "sigmoid", "ard"],
    "parameterization": ["multiplicative", "additive"],
    "estimator": ["local", "batch", "example"],
    "num_examples": [None],
    "kl_downscale": [1.0],
    "seed": [None],
}
# The only granularity that additive noise has.
WITH = {"additive": {"granularity": "weight"}}


def find(path):
    """What a dotted name stands for, as a user would reach it."""
    found = keras_vdrop
    for name in path.split(".")[path.startswith("keras_vdrop") :]:
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module):
    assert sorted(find(module).__all__) == MODULES[module]
    for name in MODULES[module]:
        assert hasattr(find(module), name)


def test_registered_names():
    found = []
    for module in pkgutil.walk_packages(
        keras_vdrop.__path__, prefix="keras_vdrop."
    ):
        # A backend that is not installed cannot be imported.
        if module.name.startswith("keras_vdrop.backend."):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__ == module.name:
                name = keras.saving.get_registered_name(value)
                if ">" in name:
                    found.append(name)
                    # A model that was converted has a class made of this one.
                    known = keras.saving.get_registered_object(name)
                    assert issubclass(known, value)
    assert sorted(found) == [f"keras_vdrop>{name}" for name in REGISTERED]


@pytest.mark.parametrize("name", OF_0_1_0)
def test_names_of_0_1_0(name):
    assert find(name) is not None


@pytest.mark.parametrize("argument", ARGUMENTS_OF_0_1_0)
def test_arguments_of_0_1_0(argument):
    values = ARGUMENTS_OF_0_1_0[argument]
    parameters = inspect.signature(keras_vdrop.VariationalDense).parameters
    assert parameters[argument].default == values[0]
    for value in values:
        arguments = {argument: value, **WITH.get(value, {})}
        assert keras_vdrop.VariationalDense(2, **arguments)
    if argument != "kl":  # A method of the layer.
        layer = keras_vdrop.VariationalDense(2)
        expected = "correlated" if argument == "noise" else values[0]
        assert getattr(layer, argument) == expected


def test_attributes_of_0_1_0():
    layer = keras_vdrop.VariationalDense(2)
    layer.build((None, 3))
    layer.log_alpha.assign(-2.0)
    assert float(layer.log_alpha.numpy()) == -2.0
    assert isinstance(layer.kl_weight, keras.Variable)
    assert layer.dropout_rates().shape == ()
    assert layer.kl() > 0
