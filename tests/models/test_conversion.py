"""Conversion: the same function before and after, on smaller models too."""

import json

import keras
import numpy as np
import pytest
from backends import run_python
from cases import KERNEL_LAYERS
from cases import POSTERIORS
from cases import alpha_of_weights
from cases import build
from cases import every_kernel_layer
from cases import set_log_alpha
from keras import layers

import keras_vdrop
from keras_vdrop import to_deterministic
from keras_vdrop import to_variational
from keras_vdrop import variational_layers
from keras_vdrop.models.traversal import every_layer

JAX = keras.backend.backend() == "jax"
SPARSE = {"granularity": "weight", "kl": "exact", "max_alpha": None}


def dense(units, **arguments):
    return keras_vdrop.VariationalDense(units, **{**SPARSE, **arguments})


def conv(filters, size, **arguments):
    arguments = {"data_format": "channels_last", **SPARSE, **arguments}
    return keras_vdrop.VariationalConv2D(filters, size, **arguments)


def randomize(model, seed=0):
    """Weights that differ, biases, statistics and positive variances too."""
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        if variable.name == "seed_state":
            continue
        value = generator.uniform(-1, 1, variable.shape)
        positive = "variance" in variable.name and "log" not in variable.name
        variable.assign(np.abs(value) + 0.1 if positive else value)
    return model


def inputs_for(model, seed=0):
    generator = np.random.default_rng(seed)
    found = [
        generator.normal(size=(3, *[size or 6 for size in x.shape[1:]]))
        for x in model.inputs
    ]
    found = [x.astype("float32") for x in found]
    return found if len(found) > 1 else found[0]


def outputs_of(model, x=None):
    x = inputs_for(model) if x is None else x
    outputs = model(x, training=False)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [keras.ops.convert_to_numpy(y) for y in outputs]


def assert_same_outputs(model, other, tolerance=0.0):
    pairs = zip(outputs_of(model), outputs_of(other), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_same_model(model, other):
    """Class, config and weights."""
    assert type(model) is type(other)
    assert json.dumps(model.get_config()) == json.dumps(other.get_config())
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def layer_types(model):
    return [type(layer).__name__ for layer in every_layer(model)]


# Models of every structure.


def sequential():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            conv(3, 2, padding="same", activation="relu"),
            layers.BatchNormalization(),
            keras_vdrop.VariationalDropout(0.3),
            layers.Flatten(),
            dense(4),
        ],
        name="some_name",
    )


def sequential_without_input():
    model = keras.Sequential([dense(4, activation="tanh"), dense(2)])
    model(np.ones((2, 3)))
    return model


def functional():
    x, y = keras.Input((4,), name="x"), keras.Input((5,), name="y")
    h = keras.ops.tanh(dense(4)(x)) + dense(4, name="from_y")(y)
    h = layers.LayerNormalization()(h)
    z = layers.Concatenate()([h, keras_vdrop.VariationalDropout()(x)])
    return keras.Model([x, y], [dense(2)(z), h])


def shared():
    x, y = keras.Input((4,)), keras.Input((4,))
    layer = dense(4, activation="tanh")
    return keras.Model([x, y], dense(2)(layer(layer(x)) + layer(y)))


def nested():
    inner = keras.Sequential([keras.Input((4,)), dense(3), dense(4)])
    x = keras.Input((4,))
    deep = keras.Model(x, layers.BatchNormalization()(inner(x)))
    z = keras.Input((4,))
    return keras.Model(z, dense(2)(deep(deep(z)) + z))


def wrapped():
    inner = keras.Sequential([dense(3, activation="relu"), dense(2)])
    return keras.Sequential(
        [
            keras.Input((5, 4)),
            layers.TimeDistributed(dense(4, name="inside")),
            layers.TimeDistributed(inner),
            layers.Bidirectional(layers.SimpleRNN(3)),
            dense(2),
        ]
    )


STRUCTURES = {
    model.__name__: model
    for model in (
        sequential,
        sequential_without_input,
        functional,
        shared,
        nested,
        wrapped,
    )
}
every_structure = pytest.mark.parametrize(
    "structure", STRUCTURES.values(), ids=STRUCTURES
)


@every_structure
def test_deterministic_model_is_plain_and_the_same(structure):
    model = randomize(structure())
    plain = to_deterministic(model)
    assert not variational_layers(plain)
    assert [x.name for x in every_layer(plain)] == [
        x.name for x in every_layer(model)
    ]
    assert_same_outputs(model, plain)
    noise = sum(len(layer.weights) for layer in variational_layers(model))
    noise -= sum(
        1 + layer.use_bias
        for layer in variational_layers(model)
        if not isinstance(layer, keras_vdrop.VariationalDropout)
    )
    assert len(plain.weights) == len(model.weights) - noise


@every_structure
def test_round_trip_is_exact(structure):
    plain = to_deterministic(randomize(structure()))
    variational = to_variational(plain, verbose=0, rate=0.1)
    assert "Dense" not in layer_types(variational)
    assert_same_outputs(plain, variational)
    assert_same_model(plain, to_deterministic(variational))


@pytest.mark.parametrize(
    "case, posterior",
    [
        *[(case, POSTERIORS["additive"]) for case in KERNEL_LAYERS],
        *[("dense", posterior) for posterior in POSTERIORS.values()],
    ],
)
def test_every_layer(case, posterior):
    regularizer = "depthwise" if "depthwise" in case else "kernel"
    arguments = {"activation": "tanh", f"{regularizer}_regularizer": "l2"}
    layer, x = build(case, **posterior, **arguments)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    plain = to_deterministic(model).layers[0]
    assert type(plain) is layer.keras_class()
    config = layer.get_config()
    assert plain.get_config().items() <= config.items()
    assert plain.name == layer.name
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(plain(x)),
        keras.ops.convert_to_numpy(layer(x)),
    )


def test_deterministic_model_shares_nothing_with_the_variational():
    model = randomize(sequential())
    before = model.get_weights()
    plain = to_deterministic(model)
    plain.set_weights([w + 1 for w in plain.get_weights()])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shared_layers_stay_shared():
    for model in (shared(), nested()):
        plain = to_deterministic(model)
        assert len(every_layer(plain)) == len(every_layer(model))


LOAD_WITHOUT_KERAS_VDROP = """
import sys

sys.modules["keras_vdrop"] = None
import keras
import numpy as np

_, path, x, out = sys.argv
np.save(out, keras.models.load_model(path).predict(np.load(x), verbose=0))
"""


def test_file_loads_without_keras_vdrop(tmp_path):
    model = randomize(sequential())
    x = inputs_for(model)
    to_deterministic(model).save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    paths = [tmp_path / name for name in ("model.keras", "x.npy", "y.npy")]
    run_python(LOAD_WITHOUT_KERAS_VDROP, *paths)
    # One compiled program and one that is not.
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), outputs_of(model)[0], rtol=1e-5, atol=1e-5
    )


def test_state_that_is_more_than_weights():
    normalization = layers.Normalization()
    normalization.adapt(np.arange(12.0).reshape(4, 3))
    model = keras.Sequential([keras.Input((3,)), normalization, dense(2)])
    assert_same_outputs(model, to_deterministic(model))


class Scaled(keras.Layer):
    """A layer of the user's, not registered, with a layer of its own."""

    def __init__(self, scale=2.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale
        self.dense = layers.Dense(3, name="own")

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.scale * self.dense(inputs)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


def test_layers_of_the_user():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            Scaled(3.0),
            layers.Lambda(lambda x: x + 1),
            dense(2),
        ]
    )
    randomize(model)
    plain = to_deterministic(model)
    assert plain.layers[0].scale == 3.0
    assert_same_outputs(model, plain)
    again = to_variational(plain, verbose=0)
    assert type(again.layers[0].dense) is keras_vdrop.VariationalDense
    assert_same_outputs(model, again)


def test_half_precision():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            dense(4, dtype="mixed_bfloat16", activation="relu"),
            keras_vdrop.VariationalDropout(dtype="bfloat16"),
            dense(2, dtype="float16"),
        ]
    )
    randomize(model)
    plain = to_deterministic(model)
    for a, b in zip(plain.layers, model.layers, strict=True):
        assert a.dtype_policy.name == b.dtype_policy.name
    assert_same_outputs(model, plain)


def test_training_as_a_call_argument():
    x = keras.Input((3,))
    h = keras_vdrop.VariationalDropout()(dense(3)(x, training=False))
    model = keras.Model(x, dense(2)(h, training=True))
    plain = to_deterministic(model)
    assert layer_types(plain)[1:] == [
        "InputLayer",
        "Dense",
        "Identity",
        "Dense",
    ]
    outputs_of(plain)


def test_frozen_layers_and_compiled_models():
    model = functional()
    model.get_layer("from_y").trainable = False
    model.compile("adam", [lambda a, b: 0.0, "mse"])
    plain = to_deterministic(model)
    assert not plain.compiled
    assert not plain.get_layer("from_y").trainable
    assert len(plain.trainable_weights) == len(plain.weights) - 2
    assert not to_variational(plain, verbose=0).get_layer("from_y").trainable


def test_unbuilt_model():
    model = keras.Sequential([dense(3), keras_vdrop.VariationalDense(2)])
    plain = to_deterministic(model)
    assert layer_types(plain)[1:] == ["Dense", "Dense"]
    assert layer_types(to_variational(plain, verbose=0))[1:] == [
        "VariationalDense",
        "VariationalDense",
    ]
    with pytest.raises(ValueError, match="Expected a built model"):
        to_deterministic(model, prune=3.0)


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = dense(2)

    def call(self, inputs):
        return self.layer(inputs)


class FunctionalInside(keras.Model):
    def __init__(self, units):
        x = keras.Input((3,))
        super().__init__(x, dense(units)(x))
        self.units = units


def shared_across_models():
    layer = dense(4)
    x = keras.Input((4,))
    models = [keras.Sequential([keras.Input((4,)), layer]) for _ in range(2)]
    return keras.Model(x, models[0](x) + models[1](x))


def test_models_that_cannot_be_converted():
    subclassed = Subclassed()
    subclassed(np.ones((1, 3)))
    for convert in (to_deterministic, to_variational):
        for model in (dense(2), "model"):
            with pytest.raises(ValueError, match="a keras.Model with a config"):
                convert(model)
        with pytest.raises(ValueError, match="a built model"):
            convert(Subclassed())
    inside = keras.Sequential([keras.Input((3,)), subclassed])
    with pytest.raises(ValueError, match="has to make a `keras.layers.Dense`"):
        to_deterministic(inside)
    with pytest.raises(ValueError, match="share no layers"):
        to_deterministic(shared_across_models())


@pytest.mark.parametrize("value", ["3", True, float("nan"), float("inf"), [3]])
def test_bad_threshold(value):
    with pytest.raises(ValueError, match="argument `prune`. Expected a finite"):
        to_deterministic(sequential(), prune=value)


# To variational.


def plain_model():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 2, name="a"),
            layers.DepthwiseConv2D(2, name="b"),
            layers.BatchNormalization(name="c"),
            layers.Flatten(),
            layers.Dense(4, name="d"),
            layers.EinsumDense("bi,ij->bj", 3, name="e"),
            layers.Dense(2, name="f"),
        ]
    )


def test_arguments_and_filter():
    def choose(layer):
        chosen = {"a": False, "f": {"rate": 0.1, "seed": 9}}
        return chosen.get(layer.name, True)

    model = to_variational(
        plain_model(),
        choose,
        verbose=0,
        rate=0.2,
        noise="correlated",
        granularity="input",
        num_examples=50,
        seed=3,
    )
    assert [type(x).__name__ for x in model.layers] == [
        "Conv2D",
        "VariationalDepthwiseConv2D",
        "BatchNormalization",
        "Flatten",
        "VariationalDense",
        "VariationalEinsumDense",
        "VariationalDense",
    ]
    _, first, _, last = variational_layers(model)
    assert (first.rate, last.rate) == (0.2, 0.1)
    assert first.noise == last.noise == "correlated"
    np.testing.assert_allclose(first.dropout_rates(), 0.2, rtol=1e-5)
    assert first.num_examples == 50
    assert float(keras.ops.convert_to_numpy(first.kl_weight)) > 0
    assert first.seed not in (None, 3) and last.seed == 9


def test_report_of_what_is_left(capsys):
    to_variational(plain_model(), lambda layer: layer.name != "d")
    assert capsys.readouterr().out.splitlines() == [
        "4 layers replaced: 1 Conv2D, 1 DepthwiseConv2D, 1 EinsumDense, "
        "1 Dense",
        "2 layers with weights left alone:",
        "  1 BatchNormalization (no variational form): c",
        "  1 Dense (left out by `filter`): d",
    ]
    to_variational(plain_model(), verbose=0)
    assert capsys.readouterr().out == ""


class OtherDense(layers.Dense):
    """A layer of the user's that may do anything."""


def test_subclasses_are_left(capsys):
    model = keras.Sequential(
        [keras.Input((3,)), OtherDense(3, name="a"), layers.Dense(2)]
    )
    found = to_variational(model)
    assert type(found.layers[0]) is OtherDense
    line = "  1 OtherDense (a subclass of Dense): a"
    assert line in capsys.readouterr().out.splitlines()


def test_filter_tells_layers_of_one_name_apart():
    parts = [
        keras.Sequential([keras.Input((3,)), layers.Dense(3, name="same")])
        for _ in range(2)
    ]
    model = keras.Sequential([keras.Input((3,)), *parts])
    chosen = parts[1].layers[0]
    found = to_variational(model, lambda x: x is chosen, verbose=0)
    assert layer_types(found).count("VariationalDense") == 1
    assert type(found.layers[1].layers[0]).__name__ == "VariationalDense"


def test_variational_layers_keep_their_noise():
    model = keras.Sequential(
        [keras.Input((3,)), dense(3), layers.Dense(2), layers.Dense(1)]
    )
    randomize(model)
    found = to_variational(model, verbose=0)
    for name in ("log_alpha", "kl_weight"):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(getattr(model.layers[0], name)),
            keras.ops.convert_to_numpy(getattr(found.layers[0], name)),
        )


def test_converted_model_trains():
    plain = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model = to_variational(plain, verbose=0, num_examples=8)
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
    assert not np.array_equal(model.get_weights()[0], plain.get_weights()[0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filter": "dense"}, "argument `filter`. Expected a function"),
        ({"filter": lambda layer: None}, "It returned None for layer 'a'"),
        ({"filter": lambda layer: {"units": 3}}, r"\['units'\]"),
        (
            {"filter": lambda layer: False},
            "a variational form and that",
        ),
        ({"units": 3}, r"Received: layer_arguments=\['units'\]"),
        ({"name": "a"}, "What the plain layer has is kept"),
        ({"rate": 2.0}, "argument `rate`"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        to_variational(plain_model(), **arguments)


# Every new shape is compiled on jax, so there is less of this there.
@pytest.mark.parametrize(
    "name", ["ResNet50"] if JAX else ["ResNet50", "MobileNetV2"]
)
def test_applications(name, capsys):
    application = getattr(keras.applications, name)
    model = application(weights=None, input_shape=(32, 32, 3), classes=10)
    variational = to_variational(model)
    counts = {"ResNet50": (53, 53), "MobileNetV2": (35, 52)}[name]
    printed = capsys.readouterr().out
    assert f"{counts[0]} Conv2D" in printed and "1 Dense" in printed
    assert f"{counts[1]} BatchNormalization" in printed
    assert not {"Conv2D", "Dense"} & set(layer_types(variational))
    if not JAX:
        assert_same_outputs(model, variational)
    assert_same_model(model, to_deterministic(variational))


# Pruning.


def set_noise(layer, keep):
    """Log alpha above or below 3, for each weight or what shares an alpha."""
    set_log_alpha(layer, np.where(keep, 0.0, 9.0))


def zeroed(model):
    """The plain model with weights set to zero, by numpy."""
    plain = to_deterministic(model)
    pairs = zip(every_layer(model), every_layer(plain), strict=True)
    for layer, other in pairs:
        if layer in variational_layers(model) and hasattr(layer, "kernel"):
            keep = np.log(alpha_of_weights(layer)) < 3
            kernel = keras.ops.convert_to_numpy(layer.kernel)
            other.kernel.assign(kernel * keep)
    return plain


def units_of(model):
    return [
        layer.kernel.shape[-1]
        for layer in every_layer(model)
        if type(layer) in (layers.Dense, layers.Conv2D)
    ]


def prune(model):
    """The pruned model, whose outputs are those of the zeroed one."""
    pruned = to_deterministic(model, prune=3.0, verbose=0)
    assert_same_outputs(zeroed(model), pruned, 1e-5)
    return pruned


@every_kernel_layer
@pytest.mark.parametrize(
    "posterior",
    [
        {"granularity": "input"},
        {"granularity": "output"},
        {"granularity": "weight", "parameterization": "additive"},
        {"noise": "correlated", "granularity": "input"},
    ],
    ids=["input", "output", "additive", "correlated"],
)
def test_weights_are_zeroed(case, posterior):
    layer, x = build(case, **posterior, kl="exact", max_alpha=None)
    shape = tuple(layer.log_alpha.shape)
    set_noise(layer, np.arange(np.prod(shape)).reshape(shape) % 3 > 0)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    pruned = to_deterministic(model, prune=3.0, verbose=0)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    np.testing.assert_array_equal(
        pruned.get_weights()[0], kernel * (np.log(alpha_of_weights(layer)) < 3)
    )
    assert 0 < np.count_nonzero(pruned.get_weights()[0]) < kernel.size


def test_units_that_read_nothing_go():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            dense(4, activation="sigmoid"),
            layers.Dropout(0.5),
            layers.Activation("tanh"),
            dense(5, activation="relu"),
            dense(2),
        ]
    )
    randomize(model)
    set_noise(model.layers[0], [True, False, True, False])
    pruned = prune(model)
    assert units_of(pruned) == [2, 5, 2]
    assert not np.allclose(
        pruned.layers[3].get_weights()[1], model.layers[3].get_weights()[1]
    )


def test_units_that_nothing_reads_go_and_what_they_read():
    model = keras.Sequential([keras.Input((3,)), dense(4), dense(5), dense(2)])
    randomize(model)
    keep = np.ones((4, 5), bool)
    keep[2, :4] = False
    set_noise(model.layers[1], keep)
    set_noise(model.layers[2], np.array([[1, 1, 0, 1, 0]], bool).T)
    # Unit 4 of the second layer goes, the only one that reads unit 2.
    assert units_of(prune(model)) == [3, 3, 2]


def test_a_unit_that_reads_only_constants_is_one():
    model = keras.Sequential(
        [keras.Input((3,)), dense(2, activation="tanh"), dense(3), dense(2)]
    )
    randomize(model)
    set_noise(model.layers[0], [True, False])
    set_noise(model.layers[1], [[1, 1, 0], [1, 1, 1]])
    assert units_of(prune(model)) == [1, 2, 2]


@pytest.mark.parametrize(
    "padding, data_format",
    [
        ("valid", "channels_last"),
        ("same", "channels_last"),
        ("valid", "channels_first"),
    ],
)
def test_constants_and_padding(padding, data_format):
    first = data_format == "channels_first"
    model = keras.Sequential(
        [
            keras.Input((2, 7, 8) if first else (7, 8, 2)),
            conv(4, 2, activation="relu", data_format=data_format),
            layers.BatchNormalization(axis=1 if first else -1, center=False),
            layers.MaxPooling2D(2, 1, data_format=data_format),
            conv(3, 2, padding=padding, data_format=data_format),
            layers.Flatten(data_format=data_format),
            dense(2),
        ]
    )
    randomize(model)
    # No means, so that what is zero stays zero.
    model.layers[1].moving_mean.assign(np.zeros(4))
    model.layers[0].bias.assign([0.5, 0.5, -0.5, 0.5])
    set_noise(model.layers[0], [True, False, False, True])
    set_noise(model.layers[3], [True, False, True])
    # Unit 1 is a constant other than zero, unit 2 is zero.
    found = units_of(prune(model))
    assert found == ([2, 2, 2] if padding == "valid" else [3, 2, 2])


def test_without_bias_a_constant_stays():
    model = keras.Sequential(
        [keras.Input((3,)), dense(3), dense(2, use_bias=False)]
    )
    randomize(model)
    model.layers[0].bias.assign([0.5, 0.5, 0.0])
    set_noise(model.layers[0], [True, False, False])
    assert units_of(prune(model)) == [2, 2]


@pytest.mark.parametrize("pooling", ["Average", "Max"])
def test_global_pooling_and_unknown_positions(pooling):
    for size, expected in ((None, [4, 3]), (6, [2, 3])):
        pool = getattr(layers, f"Global{pooling}Pooling2D")
        model = keras.Sequential(
            [
                keras.Input((size, size, 2)),
                conv(4, 2),
                pool(data_format="channels_last"),
                dense(3),
            ]
        )
        randomize(model)
        set_noise(model.layers[0], [True, False, True, False])
        assert units_of(prune(model)) == expected


def test_unknown_positions_between_convolutions():
    model = keras.Sequential(
        [keras.Input((None, None, 2)), conv(3, 2), layers.ReLU(), conv(2, 2)]
    )
    randomize(model)
    model.layers[0].bias.assign([0.5, 0.5, -0.5])
    set_noise(model.layers[0], [True, False, False])
    assert units_of(prune(model)) == [2, 2]


def residual(x):
    return dense(2)(dense(3)(x) + x)


def softmax(x):
    return dense(2)(dense(3, activation="softmax")(x))


def softmax_layer(x):
    return dense(2)(layers.Softmax()(dense(3)(x)))


def normalized(x):
    return dense(2)(layers.LayerNormalization()(dense(3)(x)))


def also_an_output(x):
    h = dense(3)(x)
    return [h, dense(2)(h)]


def reader_called_twice(x):
    reader = dense(2)
    return reader(dense(3)(x)) + reader(x)


def producer_called_twice(x):
    producer = dense(3)
    return dense(2)(producer(producer(x)))


def operation(x):
    return dense(2)(keras.ops.flip(dense(3)(x), axis=-1))


@pytest.mark.parametrize(
    "graph",
    [
        residual,
        softmax,
        softmax_layer,
        normalized,
        also_an_output,
        reader_called_twice,
        producer_called_twice,
        operation,
    ],
    ids=lambda graph: graph.__name__,
)
def test_units_that_have_to_stay(graph):
    x = keras.Input((3,))
    model = randomize(keras.Model(x, graph(x)))
    for layer in variational_layers(model):
        if layer.units == 3:
            set_noise(layer, [True, False, True])
    assert units_of(prune(model)) == units_of(to_deterministic(model))


def test_units_that_pooling_mixes():
    first, last = "channels_first", "channels_last"
    model = keras.Sequential(
        [
            keras.Input((2, 4, 4)),
            conv(3, 2, data_format=first),
            layers.GlobalMaxPooling2D(data_format=last),
            dense(2),
        ]
    )
    randomize(model)
    assert units_of(prune(model)) == [3, 2]


@every_structure
def test_every_structure_can_be_pruned(structure):
    model = randomize(structure())
    generator = np.random.default_rng(1)
    for layer in variational_layers(model):
        if hasattr(layer, "kernel"):
            keep = generator.random(tuple(layer.kernel.shape)) < 0.3
            set_noise(layer, keep)
    prune(model)


def test_nothing_left():
    model = keras.Sequential([keras.Input((3,)), dense(3), dense(4), dense(2)])
    randomize(model)
    for layer in model.layers:
        set_noise(layer, False)
    assert units_of(prune(model)) == [1, 1, 2]


def test_nothing_to_prune():
    model = randomize(sequential())
    for layer in variational_layers(model):
        layer.log_alpha.assign(np.zeros(layer.log_alpha.shape))
    assert_same_model(
        to_deterministic(model), to_deterministic(model, prune=3.0, verbose=0)
    )


def test_report_of_what_was_pruned(capsys):
    model = keras.Sequential(
        [keras.Input((3,)), dense(4, name="first"), dense(2, name="second")]
    )
    randomize(model)
    set_noise(model.layers[0], [True, False, True, False])
    set_noise(model.layers[1], True)
    to_deterministic(model, prune=3.0)
    assert capsys.readouterr().out.splitlines() == [
        "layer   weights  pruned  units  removed",
        "first        12       6      4        2",
        "second        8       0      2        0",
        "Parameters: 26 before, 14 after, of which 14 are not zero.",
    ]


ACTIVATIONS = ["relu", "sigmoid", "linear", "softmax", "gelu", "tanh"]


def random_model(generator):
    """A chain of random layers, with a branch now and then."""
    inputs = x = keras.Input((9, 9, 2))
    outputs = []
    last = {"data_format": "channels_last"}
    for _ in range(generator.integers(2, 4)):
        x = conv(
            int(generator.integers(1, 6)),
            int(generator.integers(1, 3)),
            padding=str(generator.choice(["same", "valid"])),
            activation=str(generator.choice(ACTIVATIONS)),
            use_bias=bool(generator.random() < 0.8),
        )(x)
        choice = generator.integers(7)
        if choice == 0:
            x = layers.BatchNormalization()(x)
        elif choice == 1:
            padding = str(generator.choice(["same", "valid"]))
            x = layers.MaxPooling2D(2, padding=padding, **last)(x)
        elif choice == 2:
            padding = str(generator.choice(["same", "valid"]))
            x = layers.AveragePooling2D(2, padding=padding, **last)(x)
        elif choice == 3:
            outputs.append(layers.GlobalMaxPooling2D(**last)(x))
        elif choice == 4:
            x = layers.ReLU()(x) + keras.ops.tanh(x)
    flat = [layers.Flatten(**last), layers.GlobalAveragePooling2D(**last)]
    x = flat[generator.integers(2)](x)
    for _ in range(generator.integers(1, 4)):
        activation = str(generator.choice(ACTIVATIONS))
        x = dense(int(generator.integers(1, 7)), activation=activation)(x)
    return keras.Model(inputs, [*outputs, x])


@pytest.mark.parametrize("seed", range(3 if JAX else 12))
def test_random_models(seed):
    generator = np.random.default_rng(seed)
    model = randomize(random_model(generator), seed)
    for layer in variational_layers(model):
        shape = tuple(layer.kernel.shape)
        keep = generator.random(shape) < 0.7
        keep &= generator.random(shape[-1]) < 0.6
        keep &= generator.random(shape[-2:-1])[:, None] < 0.7
        set_noise(layer, keep)
    prune(model)


# Files for other programs.


def exported(tmp_path, name, **arguments):
    model = randomize(sequential())
    noise = np.ones((2, 2, 2, 3), bool)
    noise[..., 1] = False
    set_noise(model.layers[0], noise)
    small = to_deterministic(model, prune=3.0, precision=1.0, verbose=0)
    # As who has only the small file.
    keras_vdrop.save_compressed(small, tmp_path / "small.kvz")
    plain = keras_vdrop.load_compressed(tmp_path / "small.kvz")
    x = inputs_for(plain)[:1]
    # Before: Keras exports no model to ONNX that was never called.
    expected = outputs_of(plain, x)[0]
    plain.export(tmp_path / name, verbose=False, **arguments)
    return str(tmp_path / name), x, expected


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-5)


def test_saved_model(tmp_path):
    if keras.backend.backend() == "torch":
        pytest.skip("Keras 3.15 exports none from torch 2.13")
    tf = pytest.importorskip("tensorflow")
    path, x, expected = exported(tmp_path, "model")
    loaded = tf.saved_model.load(path)
    assert_close(loaded.serve(x), expected)


def test_litert(tmp_path):
    if keras.backend.backend() == "jax":
        pytest.skip("Keras exports none from jax")
    if keras.backend.backend() == "torch":
        pytest.importorskip("litert_torch")
    tf = pytest.importorskip("tensorflow")
    path, x, expected = exported(tmp_path, "model.tflite", format="litert")
    interpreter = tf.lite.Interpreter(model_path=path)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    output = interpreter.get_output_details()[0]["index"]
    assert_close(interpreter.get_tensor(output), expected)


def test_onnx(tmp_path):
    tools = {"tensorflow": "tf2onnx", "jax": "jax2onnx", "torch": "onnxscript"}
    pytest.importorskip("onnx")
    pytest.importorskip(tools[keras.backend.backend()])
    onnxruntime = pytest.importorskip("onnxruntime")
    path, x, expected = exported(tmp_path, "model.onnx", format="onnx")
    session = onnxruntime.InferenceSession(path)
    [found] = session.run(None, {session.get_inputs()[0].name: x})
    assert_close(found, expected)


def test_torch_program(tmp_path):
    if keras.backend.backend() != "torch":
        pytest.skip("a format of torch")
    import torch

    path, x, expected = exported(tmp_path, "model.pt2", format="torch")
    found = torch.export.load(path).module()(torch.tensor(x))
    assert_close(found.detach(), expected)
