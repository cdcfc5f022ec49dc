"""Arguments: readable, serializable, and refused when they are wrong."""

import inspect
import json
import re

import keras
import numpy as np
import pytest

import keras_vdrop

LAYERS = {
    name: getattr(keras_vdrop.layers, name)
    for name in keras_vdrop.layers.__all__
    if name not in ("ObservationNoise", "VariationalLayer")
}
REQUIRED = {
    "VariationalDense": {"units": 4},
    "VariationalConv1D": {"filters": 4, "kernel_size": 2},
    "VariationalConv2D": {"filters": 4, "kernel_size": 2},
    "VariationalConv3D": {"filters": 4, "kernel_size": 2},
    "VariationalConv1DTranspose": {"filters": 4, "kernel_size": 2},
    "VariationalConv2DTranspose": {"filters": 4, "kernel_size": 2},
    "VariationalConv3DTranspose": {"filters": 4, "kernel_size": 2},
    "VariationalDepthwiseConv1D": {"kernel_size": 2},
    "VariationalDepthwiseConv2D": {"kernel_size": 2},
    "VariationalSeparableConv1D": {"filters": 4, "kernel_size": 2},
    "VariationalSeparableConv2D": {"filters": 4, "kernel_size": 2},
    "VariationalEinsumDense": {"equation": "ab,bc->ac", "output_shape": 4},
    "VariationalEmbedding": {"input_dim": 5, "output_dim": 4},
    "VariationalReversibleEmbedding": {"input_dim": 5, "output_dim": 4},
    "VariationalMultiHeadAttention": {"num_heads": 2, "key_dim": 4},
    "VariationalGroupQueryAttention": {
        "head_dim": 4,
        "num_query_heads": 2,
        "num_key_value_heads": 1,
    },
    "VariationalLSTM": {"units": 4},
    "VariationalLSTMCell": {"units": 4},
    "VariationalGRU": {"units": 4},
    "VariationalGRUCell": {"units": 4},
    "VariationalSimpleRNN": {"units": 4},
    "VariationalSimpleRNNCell": {"units": 4},
    "VariationalConvLSTM1D": {"filters": 4, "kernel_size": 2},
    "VariationalConvLSTM2D": {"filters": 4, "kernel_size": 2},
    "VariationalConvLSTM3D": {"filters": 4, "kernel_size": 2},
    "VariationalDropout": {},
    "Variational": {"layer": keras.layers.Dense(4)},
}
# The shape of a batch of inputs, without its size.
INPUTS = {
    "VariationalDense": (3,),
    "VariationalConv1D": (4, 3),
    "VariationalConv2D": (4, 4, 3),
    "VariationalConv3D": (4, 4, 4, 3),
    "VariationalConv1DTranspose": (4, 3),
    "VariationalConv2DTranspose": (4, 4, 3),
    "VariationalConv3DTranspose": (4, 4, 4, 3),
    "VariationalDepthwiseConv1D": (4, 3),
    "VariationalDepthwiseConv2D": (4, 4, 3),
    "VariationalSeparableConv1D": (4, 3),
    "VariationalSeparableConv2D": (4, 4, 3),
    "VariationalEinsumDense": (3,),
    "VariationalLSTM": (5, 3),
    "VariationalLSTMCell": (3,),
    "VariationalGRU": (5, 3),
    "VariationalGRUCell": (3,),
    "VariationalSimpleRNN": (5, 3),
    "VariationalSimpleRNNCell": (3,),
    "VariationalConvLSTM1D": (5, 4, 3),
    "VariationalConvLSTM2D": (5, 4, 4, 3),
    "VariationalConvLSTM3D": (5, 4, 4, 4, 3),
}
KERNEL_LAYERS = list(INPUTS)
RECURRENT = re.compile("LSTM|GRU|RNN")
LINEAR_LAYERS = [name for name in INPUTS if not RECURRENT.search(name)]
every_layer = pytest.mark.parametrize("name", LAYERS)


def make(name, /, **arguments):
    return LAYERS[name](**REQUIRED[name], **arguments)


ARGUMENTS = {
    "rate": 0.3,
    "granularity": "layer",
    "adaptive": False,
    "max_alpha": 0.9,
    "num_examples": 12,
    "kl_downscale": 2.0,
    "seed": 5,
}


@every_layer
def test_arguments_are_attributes(name):
    layer = make(name, **ARGUMENTS, kl="lower_bound")
    for argument, value in ARGUMENTS.items():
        assert getattr(layer, argument) == value
    assert layer.prior.divergence is keras_vdrop.divergence.lower_bound
    # Those that have several positions for a weight, or know no inputs.
    one_for_weights = "Conv" in name and "LSTM" not in name
    one_for_weights |= name == "Variational"
    noise = "independent" if one_for_weights else "correlated"
    assert layer.noise == noise
    assert layer.estimator == ("batch" if name == "Variational" else "local")
    if name != "Variational":  # It knows no inputs.
        assert make(name, granularity="input").granularity == "input"


@every_layer
def test_config(name):
    layer = make(name, **ARGUMENTS, kl="lower_bound", name="mine")
    config = layer.get_config()
    assert config["kl"] == "lower_bound"
    again = LAYERS[name].from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config


@every_layer
def test_numpy_numbers_are_taken(name):
    layer = make(
        name,
        rate=np.float32(0.25),
        max_alpha=np.float64(0.5),
        num_examples=np.int64(3),
        kl_downscale=2,
    )
    json.dumps(layer.get_config())
    assert layer.rate == 0.25 and layer.num_examples == 3


BAD = [
    ("rate", 0, r"a float in \(0, 1\)"),
    ("rate", 1.5, r"a float in \(0, 1\)"),
    ("rate", float("nan"), r"a float in \(0, 1\)"),
    ("rate", "half", r"a float in \(0, 1\)"),
    ("rate", None, r"a float in \(0, 1\)"),
    ("rate", True, r"a float in \(0, 1\)"),
    ("rate", 0.6, "at most max_alpha=1.0"),
    ("granularity", "neuron", "'layer', 'input'"),
    ("granularity", None, "'layer', 'input'"),
    ("adaptive", "yes", "a bool"),
    ("max_alpha", 0, "a finite float above 0"),
    ("max_alpha", float("inf"), "a finite float above 0"),
    ("max_alpha", None, "at most 1.0, where kl='polynomial'"),
    ("max_alpha", 2.0, "at most 1.0, where kl='polynomial'"),
    ("kl", "gaussian", "polynomial"),
    ("kl", 1.0, "polynomial"),
    ("num_examples", 0, "a positive integer"),
    ("num_examples", -5, "a positive integer"),
    ("num_examples", 1.5, "a positive integer"),
    ("num_examples", True, "a positive integer"),
    ("kl_downscale", 0, "a finite float above 0"),
    ("kl_downscale", -1.0, "a finite float above 0"),
    ("seed", 0.5, "an integer or None"),
    ("seed", "a", "an integer or None"),
]


@every_layer
@pytest.mark.parametrize("argument, value, expected", BAD)
def test_bad_arguments_are_refused(name, argument, value, expected):
    pattern = f"Invalid value for argument `{argument}`. Expected .*{expected}"
    with pytest.raises(ValueError, match=pattern) as refused:
        make(name, **{argument: value})
    assert f"Received: {argument}={value!r}" in str(refused.value)


@pytest.mark.parametrize("name", KERNEL_LAYERS)
@pytest.mark.parametrize(
    "arguments, argument",
    [
        ({"noise": "correlated", "kl": "normal"}, "kl"),
        ({"noise": "additive"}, "noise"),
        ({"estimator": "global"}, "estimator"),
        ({"noise": "correlated", "granularity": "output"}, "granularity"),
        ({"noise": "correlated", "granularity": "weight"}, "granularity"),
    ],
)
def test_bad_noise_is_refused(name, arguments, argument):
    with pytest.raises(ValueError, match=f"argument `{argument}`"):
        make(name, **arguments)


@pytest.mark.parametrize("axis", [0, -3, 3, 1.0, None, True])
def test_bad_axis_is_refused(axis):
    with pytest.raises(ValueError, match="argument `axis`"):
        keras_vdrop.VariationalDropout(axis=axis).build((None, 2, 3))


def test_unknown_size_of_axis_is_refused():
    with pytest.raises(ValueError, match="argument `axis`.*known size"):
        keras_vdrop.VariationalDropout().build((None, None))


def test_fixed_rate_has_no_bound():
    layer = keras_vdrop.VariationalDense(3, rate=0.9, adaptive=False)
    layer.build((None, 2))
    np.testing.assert_allclose(layer.dropout_rates(), 0.9, rtol=1e-6)


def test_normal_prior_refuses_a_fixed_rate():
    with pytest.raises(ValueError, match="argument `adaptive`.*kernel_regul"):
        keras_vdrop.VariationalDense(3, kl="normal", adaptive=False)


@pytest.mark.parametrize("name", KERNEL_LAYERS)
def test_lora_and_quantization_are_refused(name):
    way_out = "keras.layers.*VariationalDropout"
    refused = [{"dtype": "int8_from_float32"}]
    if "lora_rank" in inspect.signature(LAYERS[name].keras_class()).parameters:
        refused.append({"lora_rank": 2})
    for arguments in refused:
        with pytest.raises(NotImplementedError, match=way_out):
            make(name, **arguments)
    channels = {"data_format": "channels_last"} if "Conv" in name else {}
    layer = make(name, **channels)
    layer.build((None, *INPUTS[name]))
    before = layer.get_config(), layer.get_weights()
    with pytest.raises(NotImplementedError, match=way_out):
        layer.enable_lora(2)
    with pytest.raises(NotImplementedError, match=way_out):
        layer.quantize("int8")
    with pytest.raises(NotImplementedError, match=way_out):
        layer.dtype_policy = "int8_from_float32"
    assert layer.get_config() == before[0]
    for found, expected in zip(layer.get_weights(), before[1], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_quantizing_a_model_leaves_the_layer_as_it_is():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4),
            keras_vdrop.VariationalDense(2),
        ]
    )
    with pytest.warns(UserWarning, match="does not support quantization"):
        model.quantize("int8")
    assert model.layers[0].quantization_mode == "int8"
    assert model.layers[1].quantization_mode is None
    assert model.predict(np.ones((2, 3)), verbose=0).shape == (2, 2)


@pytest.mark.parametrize("name", KERNEL_LAYERS)
def test_positional_arguments_are_those_of_keras(name):
    ours = inspect.signature(LAYERS[name]).parameters.values()
    plain = inspect.signature(LAYERS[name].keras_class()).parameters.values()
    positional = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [p for p in plain if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [
        (p.name, p.default) for p in expected[: len(positional)]
    ]
    left_out = {p.name for p in expected[len(positional) :]}
    assert left_out <= {
        "lora_rank",
        "lora_alpha",
        "gptq_unpacked_column_size",
        "quantization_config",
    }


def test_signature_of_a_subclass_with_its_own_init():
    class Mine(keras_vdrop.VariationalDense):
        def __init__(self, other, **kwargs):
            super().__init__(3, **kwargs)

    assert list(inspect.signature(Mine).parameters) == ["other", "kwargs"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"granularity": "output"},
        {"granularity": "weight"},
        {"granularity": "weight", "parameterization": "additive"},
        {"kl": "normal"},
    ],
)
def test_noise_follows_from_the_other_arguments(arguments):
    assert keras_vdrop.VariationalDense(2, **arguments).noise == "independent"
    layer = keras_vdrop.VariationalDense(2, granularity="input")
    assert layer.noise == "correlated"
    assert layer.get_config()["noise"] == "correlated"
