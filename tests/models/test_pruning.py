"""Units that go together: whatever goes, the outputs stay."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop

JAX = keras.backend.backend() == "jax"
LAST = {"data_format": "channels_last"}
CONVOLUTION = {"padding": "same", **LAST}


def values(tensor):
    return keras.ops.convert_to_numpy(tensor)


def change(variable, index, value=0.0):
    """Sets a part of a variable."""
    array = values(variable).copy()
    array[index] = value
    variable.assign(array)


def randomize(model, seed=0):
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        if np.issubdtype(values(variable).dtype, np.floating):
            found = generator.normal(size=tuple(variable.shape))
            # Variances have to be positive.
            is_variance = variable.path.endswith("moving_variance")
            variable.assign(abs(found) + 0.5 if is_variance else found)
    return model


def data_for(model, number=5):
    generator = np.random.default_rng(1)
    found = []
    for x in model.inputs:
        shape = (number, *(size or 7 for size in x.shape[1:]))
        if x.dtype == "int32":
            found.append(generator.integers(6, size=shape).astype("int32"))
        else:
            found.append(generator.normal(size=shape).astype("float32"))
    return found if len(found) > 1 else found[0]


def outputs_of(model):
    outputs = keras.tree.flatten(model(data_for(model), training=False))
    return [values(y) for y in outputs]


def prune(model):
    """The smaller model, whose outputs are those of the model with zeros."""
    pruned = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    pairs = zip(outputs_of(model), outputs_of(pruned), strict=True)
    for expected, found in pairs:
        scale = max(1.0, abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale)
    return pruned


def inverted_residual(x, name, channels, stride=1):
    """The block of MobileNetV2."""
    y = layers.Conv2D(6, 1, use_bias=False, name=f"{name}_expand", **LAST)(x)
    y = layers.BatchNormalization(name=f"{name}_expand_norm")(y)
    y = layers.ReLU(6.0)(y)
    padding = "same"
    if stride == 2:
        y = layers.ZeroPadding2D(((0, 1), (0, 1)), **LAST)(y)
        padding = "valid"
    y = layers.DepthwiseConv2D(
        3, stride, padding, use_bias=False, name=f"{name}_depthwise", **LAST
    )(y)
    y = layers.BatchNormalization(name=f"{name}_depthwise_norm")(y)
    y = layers.ReLU(6.0)(y)
    y = layers.Conv2D(
        channels, 1, use_bias=False, name=f"{name}_project", **LAST
    )(y)
    y = layers.BatchNormalization(name=f"{name}_project_norm")(y)
    return y if stride == 2 else layers.Add()([x, y])


def mobilenet():
    x = keras.Input((8, 8, 2))
    y = layers.Conv2D(4, 3, name="stem", **CONVOLUTION)(x)
    y = inverted_residual(y, "one", 4)
    y = inverted_residual(y, "two", 4)
    y = inverted_residual(y, "three", 5, stride=2)
    y = layers.GlobalAveragePooling2D(**LAST)(y)
    return keras.Model(x, layers.Dense(3, name="scores")(y))


def sizes_of(model):
    return {
        layer.name: layer.weights[0].shape[-1]
        for layer in model.layers
        if isinstance(layer, (layers.Conv2D, layers.Dense))
    }


def test_a_depthwise_convolution_goes_with_its_unit():
    model = randomize(mobilenet())
    change(model.get_layer("one_project").kernel, np.s_[:, :, [1, 4]])
    pruned = prune(model)
    expected = {**sizes_of(model), "one_expand": 4}
    assert sizes_of(pruned) == expected
    assert pruned.get_layer("one_depthwise").kernel.shape == (3, 3, 4, 1)
    assert pruned.get_layer("one_depthwise_norm").gamma.shape == (4,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50"])
def test_every_convolution_of_an_application_can_lose_units(name):
    arguments = {"weights": None, "input_shape": (32, 32, 3), "classes": 3}
    if name == "MobileNetV2":
        arguments["alpha"] = 0.35
    model = getattr(keras.applications, name)(**arguments)
    generator = np.random.default_rng(0)
    for layer in model.layers:
        if type(layer) is layers.Conv2D:
            # The second half of the channels neither reads nor is read.
            kernel = values(layer.kernel).copy()
            kernel[..., kernel.shape[-1] // 2 :] = 0
            if kernel.shape[-2] > 3:
                kernel[:, :, kernel.shape[-2] // 2 :] = 0
            layer.kernel.assign(kernel)
        if type(layer) is layers.BatchNormalization:
            size = layer.gamma.shape
            layer.gamma.assign(generator.uniform(0.5, 1.5, size))
            layer.beta.assign(generator.normal(size=size))
    scores = model.layers[-1].kernel
    change(scores, np.s_[scores.shape[0] // 2 :])
    before, after = sizes_of(model), sizes_of(prune(model))
    for layer in model.layers:
        if type(layer) is layers.Conv2D:
            assert after[layer.name] <= before[layer.name] // 2


def test_a_depthwise_kernel_of_zeros_ends_its_unit():
    model = randomize(mobilenet())
    change(model.get_layer("three_depthwise").kernel, np.s_[:, :, 2])
    # Without a shift it is zero behind ReLU, whatever comes in.
    change(model.get_layer("three_depthwise_norm").beta, 2, -9.0)
    change(model.get_layer("three_depthwise_norm").moving_mean, 2)
    assert sizes_of(prune(model)) == {**sizes_of(model), "three_expand": 5}


def test_branches_that_are_added_go_together():
    model = randomize(mobilenet())
    readers = [f"{name}_expand" for name in ("one", "two", "three")]
    for name in readers:
        change(model.get_layer(name).kernel, np.s_[:, :, 3])
    expected = {**sizes_of(model), "stem": 3}
    assert sizes_of(prune(model)) == {
        **expected,
        "one_project": 3,
        "two_project": 3,
    }
    # One that is still read somewhere stays on all branches.
    change(model.get_layer("two_expand").kernel, np.s_[:, :, 3], 0.5)
    assert sizes_of(prune(model)) == sizes_of(model)


def test_a_loop_that_nothing_else_reads_goes():
    # The block reads unit 0 for unit 0 alone.
    x = keras.Input((3,))
    h = layers.Dense(2, name="stem")(x)
    y = layers.Dense(2, activation="relu", name="inner")(h)
    h = h + layers.Dense(2, name="outer")(y)
    model = randomize(keras.Model(x, layers.Dense(1, name="scores")(h)))
    change(model.get_layer("inner").kernel, (0, 1))
    change(model.get_layer("outer").kernel, (0, 1))
    change(model.get_layer("scores").kernel, 0)
    assert sizes_of(prune(model)) == {
        "stem": 1,
        "inner": 1,
        "outer": 1,
        "scores": 1,
    }


def test_constants_are_folded_into_every_reader():
    x = keras.Input((3,))
    h = layers.Dense(3, activation="relu", name="h")(x)
    outputs = [layers.Dense(2, name=f"out_{n}")(h) for n in range(2)]
    model = randomize(keras.Model(x, outputs))
    change(model.get_layer("h").kernel, np.s_[:, 1])
    change(model.get_layer("h").bias, 1, 2.0)
    assert sizes_of(prune(model))["h"] == 2


def test_a_number_that_is_added_is_no_branch():
    x = keras.Input((3,))
    h = layers.Dense(3, activation="relu", name="h")(x) + 1.5
    model = randomize(keras.Model(x, layers.Dense(2)(h)))
    change(model.get_layer("h").kernel, np.s_[:, 1])
    change(model.get_layer("h").bias, 1, -2.0)
    prune(model)


def test_noise_that_inference_has_makes_no_constant():
    x = keras.Input((3,))
    h = layers.Dense(3, name="h")(x)
    h = layers.Dropout(0.5)(h, training=True)
    model = randomize(keras.Model(x, layers.Dense(2)(h)))
    change(model.get_layer("h").kernel, np.s_[:, 1])
    pruned = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    assert sizes_of(pruned)["h"] == 3


def test_concatenated_branches_go_apart():
    x = keras.Input((3,))
    first = layers.Dense(2, name="first")(x)
    second = layers.Dense(3, name="second")(x)
    h = layers.Concatenate()([first, x, second])
    model = randomize(keras.Model(x, layers.Dense(2, name="scores")(h)))
    # Of the inputs, number 3 is one of the model.
    change(model.get_layer("scores").kernel, [1, 3, 5, 7])
    pruned = prune(model)
    assert sizes_of(pruned) == {"first": 1, "second": 1, "scores": 2}
    assert pruned.get_layer("scores").kernel.shape == (5, 2)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_separable(multiplier):
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.SeparableConv2D(
                4,
                3,
                depth_multiplier=multiplier,
                activation="relu",
                **CONVOLUTION,
            ),
            layers.SeparableConv2D(
                3, 3, depth_multiplier=multiplier, **CONVOLUTION
            ),
            layers.Flatten(**LAST),
            layers.Dense(2),
        ]
    )
    randomize(model)
    first, second = model.layers[:2]
    # Unit 1 is zero, and unit 2 is read by nothing.
    change(first.pointwise_kernel, np.s_[..., 1])
    change(first.bias, 1, -1.0)
    rows = np.s_[:, :, 2 * multiplier : 3 * multiplier]
    change(second.pointwise_kernel, rows)
    pruned = prune(model)
    assert pruned.layers[0].filters == 2
    assert pruned.layers[1].depthwise_kernel.shape == (3, 3, 2, multiplier)


every_recurrent = pytest.mark.parametrize(
    "kind, arguments",
    [
        ("SimpleRNN", {}),
        ("LSTM", {}),
        ("LSTM", {"use_bias": False}),
        ("GRU", {"reset_after": True}),
        ("GRU", {"reset_after": False}),
    ],
)


def recurrent(kind, **arguments):
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(6, 3, mask_zero=True),
            getattr(layers, kind)(4, return_sequences=True, **arguments),
            getattr(layers, kind)(3, **arguments),
            layers.Dense(2),
        ]
    )
    return randomize(model)


def of_unit(layer, unit):
    """The columns of all gates of a unit."""
    return list(range(unit, layer.cell.kernel.shape[-1], layer.units))


@every_recurrent
def test_recurrent_units_that_nothing_reads(kind, arguments):
    model = recurrent(kind, **arguments)
    table, first, second = model.layers[:3]
    change(first.cell.kernel, 1)
    change(second.cell.kernel, [0, 2])
    # Unit 2 is read by unit 0 alone, and unit 0 by nothing else but itself.
    others = of_unit(first, 1) + of_unit(first, 3)
    change(first.cell.recurrent_kernel, np.ix_([0, 2], others))
    pruned = prune(model)
    assert table.output_dim == 3 and pruned.layers[0].output_dim == 2
    assert pruned.layers[1].units == 2 and pruned.layers[2].units == 3
    # A single weight keeps both.
    change(first.cell.recurrent_kernel, (0, of_unit(first, 1)[0]), 0.5)
    assert prune(model).layers[1].units == 4


@every_recurrent
def test_recurrent_units_that_are_zero(kind, arguments):
    model = recurrent(kind, **arguments)
    first = model.layers[1]
    gate = 0 if kind == "SimpleRNN" else 2
    columns = [gate * 4 + 1, gate * 4 + 3]
    change(first.cell.kernel, np.s_[:, columns])
    # Unit 3 reads unit 1, which is zero too.
    change(first.cell.recurrent_kernel, np.s_[:, columns])
    change(first.cell.recurrent_kernel, (1, columns[1]), 0.5)
    if arguments.get("use_bias", True):
        change(first.cell.bias, np.s_[..., columns])
    assert prune(model).layers[1].units == 2
    if arguments.get("use_bias", True):
        change(first.cell.bias, np.s_[..., columns[0]], 0.1)
        assert prune(model).layers[1].units == 4


@pytest.mark.parametrize(
    "arguments", [{"stateful": True}, {"return_state": True}]
)
def test_states_that_others_see_stay(arguments):
    x = keras.Input((5, 2), batch_size=5)
    h = layers.LSTM(3, **arguments)(x)
    model = randomize(
        keras.Model(x, layers.Dense(1, name="d")(keras.tree.flatten(h)[0]))
    )
    change(model.get_layer("d").kernel, 1)
    pruned = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    assert pruned.count_params() == model.count_params()


def attention(**arguments):
    x, y = keras.Input((4, 5)), keras.Input((6, 3))
    layer = layers.MultiHeadAttention(3, 2, **arguments)
    model = keras.Model([x, y], layer(x, y))
    return randomize(model), layer


@pytest.mark.parametrize("use_bias", [True, False])
def test_heads(use_bias):
    model, layer = attention(use_bias=use_bias)
    change(layer.output_dense.kernel, 1)
    change(layer.value_dense.kernel, np.s_[:, 2])
    pruned = prune(model)
    found = pruned.layers[-1]
    assert found.num_heads == 1
    assert found.query_dense.kernel.shape == (5, 1, 2)
    assert found.value_dense.kernel.shape == (3, 1, 2)
    assert found.output_dense.kernel.shape == (1, 2, 5)


def test_heads_whose_scores_are_an_output_stay():
    x = keras.Input((4, 5))
    layer = layers.MultiHeadAttention(3, 2)
    model = keras.Model(x, layer(x, x, return_attention_scores=True))
    change(randomize(model).layers[-1].output_dense.kernel, 1)
    assert prune(model).layers[-1].num_heads == 3


def test_report_of_layers_with_parts(capsys):
    x = keras.Input((4, 5))
    h = keras_vdrop.VariationalMultiHeadAttention(2, 2, name="attention")(x, x)
    h = keras_vdrop.VariationalLSTM(3, name="lstm")(h)
    h = keras_vdrop.VariationalDense(2, name="scores")(h)
    model = keras.Model(x, h)
    for layer in keras_vdrop.variational_layers(model):
        for weight in layer.random_weights:
            weight.unscaled().assign(np.full(weight.variable.shape, -3.0))
    change(model.get_layer("scores").kernel, 1)
    change(model.get_layer("lstm").cell.recurrent_kernel, 1)
    keras_vdrop.to_deterministic(model, prune=-1.0)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        ["attention", "80", "0", "2", "0"],
        ["lstm", "96", "0", "3", "1"],
        ["scores", "6", "0", "2", "0"],
    ]


ACTIVATIONS = ["relu", "sigmoid", "linear", "softmax", "gelu", "tanh"]


def random_images(generator):
    x = keras.Input((9, 9, 2))
    h = layers.Conv2D(4, 3, **CONVOLUTION)(x)
    for _ in range(generator.integers(2, 5)):
        activation = str(generator.choice(ACTIVATIONS))
        use_bias = bool(generator.random() < 0.7)
        padding = str(generator.choice(["same", "valid"]))
        channels = h.shape[-1]
        arguments = {"activation": activation, "use_bias": use_bias}
        choice = generator.integers(9)
        if choice == 0:
            h = layers.DepthwiseConv2D(
                3,
                padding=padding,
                depth_multiplier=int(generator.integers(1, 3)),
                **arguments,
                **LAST,
            )(h)
        elif choice == 1:
            h = layers.SeparableConv2D(4, 2, padding=padding, **arguments)(h)
        elif choice == 2:
            other = layers.Conv2D(channels, 3, **arguments, **CONVOLUTION)(h)
            h = layers.Add()([h, other, h])
        elif choice == 3:
            h = h + layers.DepthwiseConv2D(3, **arguments, **CONVOLUTION)(h)
        elif choice == 4:
            other = layers.Conv2D(3, 1, **arguments, **LAST)(h)
            h = layers.Concatenate()([other, h])
        elif choice == 5:
            h = layers.ZeroPadding2D(1, **LAST)(h)
        elif choice == 6:
            h = layers.BatchNormalization()(h)
        elif choice == 7:
            h = layers.AveragePooling2D(2, 1, padding="same", **LAST)(h)
        else:
            h = layers.Conv2D(5, 2, padding=padding, **arguments, **LAST)(h)
    flat = [layers.Flatten(**LAST), layers.GlobalMaxPooling2D(**LAST)]
    h = flat[generator.integers(2)](h)
    h = layers.Dense(4, activation="relu")(h)
    return keras.Model(x, layers.Dense(2)(h))


def random_sequences(generator):
    x = keras.Input((7,), dtype="int32")
    h = layers.Embedding(6, 4, mask_zero=bool(generator.integers(2)))(x)
    for _ in range(generator.integers(1, 4)):
        choice = generator.integers(5)
        kind = str(generator.choice(["SimpleRNN", "LSTM", "GRU"]))
        if choice == 0:
            h = layers.Dense(4, activation="relu")(h)
        elif choice == 1:
            h = h + layers.MultiHeadAttention(3, 2)(h, h)
        elif choice == 2:
            other = getattr(layers, kind)(h.shape[-1], return_sequences=True)
            h = layers.Add()([h, other(h)])
        elif choice == 3:
            h = layers.SeparableConv1D(4, 2, padding="same")(h)
        else:
            h = getattr(layers, kind)(5, return_sequences=True)(h)
    h = layers.GRU(3, go_backwards=bool(generator.integers(2)))(h)
    return keras.Model(x, layers.Dense(2)(h))


def sparsify(model, generator):
    """Zeros in single weights, rows and columns, and in biases."""
    for variable in model.weights:
        array = values(variable)
        if "moving" in variable.path or "gamma" in variable.path:
            continue
        keep = generator.random(array.shape) < 0.8
        keep &= generator.random(array.shape[-1:]) < 0.7
        if array.ndim > 1:
            keep &= (generator.random(array.shape[-2:-1]) < 0.7)[:, None]
            keep &= (
                generator.random((array.shape[0], *[1] * (array.ndim - 1)))
                < 0.9
            )
        variable.assign(array * keep)


@pytest.mark.parametrize("seed", range(4 if JAX else 24))
@pytest.mark.parametrize("make", [random_images, random_sequences])
def test_random_networks(make, seed):
    generator = np.random.default_rng(seed)
    model = randomize(make(generator), seed)
    sparsify(model, generator)
    pruned = prune(model)
    assert pruned.count_params() <= model.count_params()


class Widths(keras.Model):
    """A functional model whose config has other `layers` than Keras's."""

    def __init__(self, widths, **kwargs):
        self.widths = widths
        x = h = keras.Input((4,))
        for width in widths:
            h = layers.Dense(width)(h)
        super().__init__(x, h, **kwargs)

    def get_config(self):
        return {"layers": self.widths, "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(config["layers"], name=config["name"])


def test_a_config_of_its_own_keeps_the_units():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Widths([3, 5]),
            layers.Dense(6),
            layers.Dense(2),
        ]
    )
    randomize(model)
    change(model.layers[0].layers[1].kernel, (slice(None), 0))
    change(model.layers[2].kernel, 0)
    pruned = prune(model)
    assert pruned.layers[1].units == 5
    assert pruned.layers[0].count_params() == model.layers[0].count_params()


class WithoutInputs(keras.Model):
    """A functional model whose config leaves out where its calls begin."""

    def get_config(self):
        config = super().get_config()
        config["layers"].pop(0)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inputs = {
            "class_name": "InputLayer",
            "config": {"batch_shape": (None, 4), "name": "x"},
            "name": "x",
            "inbound_nodes": [],
        }
        config = {**config, "layers": [inputs, *config["layers"]]}
        return super().from_config(config, custom_objects)


def test_calls_that_a_config_leaves_out_are_refused():
    x = keras.Input((4,), name="x")
    model = WithoutInputs(x, layers.Dense(2, name="scores")(x))
    with pytest.raises(ValueError, match="WithoutInputs leaves out.*'scores'"):
        keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
