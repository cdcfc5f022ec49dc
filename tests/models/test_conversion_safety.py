"""Conversion: nothing lost, nothing confused, and no code from a file."""

import json
import pathlib
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import keras_vdrop
from keras_vdrop import to_deterministic
from keras_vdrop import to_variational
from keras_vdrop import variational_layers

X = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")


def predict(model, x=X):
    return keras.ops.convert_to_numpy(model(x, training=False))


def assert_same(model, other, x=X):
    np.testing.assert_array_equal(predict(model, x), predict(other, x))


def model_of(*found, shape=(3,), **arguments):
    return keras.Sequential([keras.Input(shape, **arguments), *found])


# Classes of the user.


class Shifted(keras_vdrop.VariationalDense):
    def call(self, inputs, training=None):
        return super().call(inputs, training=training) + 1000.0


class ShiftedBelow(keras_vdrop.VariationalDense):
    def plain_call(self, inputs):
        return super().plain_call(inputs) + 1000.0


class Doubled:
    def build(self, input_shape):
        super().build(input_shape)
        self.kernel.assign(2 * self.kernel)


class DoubledDense(Doubled, keras_vdrop.VariationalDense):
    pass


class ShiftedDropout(keras_vdrop.VariationalDropout):
    def call(self, inputs, training=None):
        return super().call(inputs, training=training) + 1000.0


class ShiftedConv(keras_vdrop.VariationalConv1D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel) + 1000.0


class ShiftedCell(keras_vdrop.layers.VariationalLSTMCell):
    def call(self, inputs, states, training=False):
        outputs, states = super().call(inputs, states, training=training)
        return outputs + 1000.0, states


@pytest.mark.parametrize(
    "make, method",
    [
        (lambda: Shifted(2, name="mine"), "call"),
        (lambda: ShiftedBelow(2, name="mine"), "plain_call"),
        (lambda: DoubledDense(2, name="mine"), "build"),
        (lambda: ShiftedDropout(name="mine"), "call"),
    ],
)
@pytest.mark.parametrize("prune", [None, 3.0])
def test_own_inference_is_refused_by_name(make, method, prune):
    model = model_of(make())
    name = type(model.layers[0]).__name__
    lost = rf"Layer 'mine' is a {name}, and `\w+\.{method}` would be lost"
    with pytest.raises(ValueError, match=f"{lost}.*`keras_class`"):
        to_deterministic(model, prune=prune)


def test_own_inference_deeper_is_refused_by_name():
    cell = layers.RNN(ShiftedCell(2, name="mine"))
    with pytest.raises(ValueError, match="'mine'.*`ShiftedCell.call`"):
        to_deterministic(model_of(cell, shape=(4, 3)))
    conv = layers.TimeDistributed(ShiftedConv(2, 2, name="mine"))
    with pytest.raises(
        ValueError, match="'mine'.*`ShiftedConv.convolution_op`"
    ):
        to_deterministic(model_of(conv, shape=(2, 4, 3)))


class Narrow(keras_vdrop.VariationalDense):
    """Other defaults, helpers and noise: nothing that inference runs."""

    size = 2
    linear = staticmethod(lambda inputs, kernel: inputs @ kernel)

    def __init__(self, units=size, activation="tanh", **kwargs):
        super().__init__(units, activation=activation, **kwargs)

    def describe(self):
        return f"{self.size} units"

    def finish(self, outputs):
        return super().finish(outputs)

    def get_config(self):
        return {**super().get_config()}

    def __repr__(self):
        return "narrow"


class Narrower(Narrow):
    size = 1


@pytest.mark.parametrize("cls", [Narrow, Narrower])
def test_a_subclass_with_the_inference_of_its_base_is_converted(cls):
    model = model_of(cls(name="mine"))
    plain = to_deterministic(model)
    assert type(plain.layers[0]) is layers.Dense
    assert plain.layers[0].name == "mine"
    assert_same(model, plain)


class PlainShifted(layers.Dense):
    def __init__(self, units, shift=1000.0, **kwargs):
        super().__init__(units, **kwargs)
        self.shift = shift

    def call(self, inputs):
        return super().call(inputs) + self.shift

    def get_config(self):
        return {**super().get_config(), "shift": self.shift}


class WithPlainForm(keras_vdrop.VariationalDense):
    def __init__(self, units, shift=1000.0, **kwargs):
        super().__init__(units, **kwargs)
        self.shift = shift

    def call(self, inputs, training=None):
        return super().call(inputs, training=training) + self.shift

    def get_config(self):
        return {**super().get_config(), "shift": self.shift}

    @classmethod
    def keras_class(cls):
        return PlainShifted


class WithPlainFormOfItsBase(WithPlainForm):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training=training)


class FromPlain(keras_vdrop.layers.VariationalLayer, PlainShifted):
    axes = "... i, i o -> ... o"
    linear = staticmethod(keras.ops.matmul)


@pytest.mark.parametrize("cls", [WithPlainForm, FromPlain])
def test_a_subclass_can_offer_its_plain_form(cls):
    model = model_of(cls(2, shift=500.0, rate=0.1, seed=3))
    plain = to_deterministic(model)
    assert type(plain.layers[0]) is PlainShifted
    assert_same(model, plain)
    assert predict(plain).min() > 400


def test_a_plain_form_is_not_inherited_by_another_call():
    with pytest.raises(ValueError, match="`WithPlainFormOfItsBase.call` would"):
        to_deterministic(model_of(WithPlainFormOfItsBase(2)))


def scale(factor):
    class Scale(keras.Layer):
        def call(self, inputs):
            return factor * inputs

    return Scale


def wrapper(factor):
    class Around(layers.Wrapper):
        def call(self, inputs):
            return factor * self.layer(inputs)

    return Around


def test_classes_of_one_name_are_told_apart():
    first, second = scale(2.0), scale(30.0)
    model = model_of(
        first(), keras_vdrop.VariationalDense(3), second(), first()
    )
    plain = to_deterministic(model)
    assert_same(model, plain)
    assert [type(x) for x in plain.layers[::2]] == [first, second]
    assert_same(plain, to_variational(plain, verbose=0))


def test_classes_of_one_name_inside_others_are_told_apart():
    one, other = wrapper(2.0), wrapper(30.0)
    inner = model_of(other(scale(3.0)(name="same")))
    model = model_of(
        one(scale(5.0)(name="same")), inner, keras_vdrop.VariationalDense(2)
    )
    plain = to_deterministic(model)
    assert_same(model, plain)
    assert_same(plain, to_variational(plain, verbose=0))


def test_classes_registered_under_one_name_are_told_apart():
    register = keras.saving.register_keras_serializable("twins")
    first, second = register(scale(2.0)), register(scale(30.0))
    model = model_of(first(), keras_vdrop.VariationalDense(3), second())
    assert_same(model, to_deterministic(model))


def own_models():
    found = []
    for factor in (2.0, 30.0):

        class Mine(keras.Sequential):
            factor_of = factor

            def call(self, inputs, training=None, mask=None):
                return self.factor_of * super().call(inputs, training, mask)

        found.append(Mine)
    return found


def test_models_of_one_class_name_are_told_apart():
    outer, inner = own_models()
    dense = keras_vdrop.VariationalDense(3)
    model = outer([keras.Input((3,)), inner([keras.Input((3,)), dense])])
    plain = to_deterministic(model)
    assert type(plain) is outer and type(plain.layers[0]) is inner
    assert_same(model, plain)


def test_layers_that_keras_names_anew():
    inputs = keras.Input((4, 3))
    attended = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    model = keras.Model(inputs, layers.Dense(2)(attended))
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    converted = to_variational(model, verbose=0)
    assert_same(model, converted, x)
    assert_same(model, to_deterministic(converted), x)


# Seeds.


def seeds_of(seed, count=4):
    model = model_of(*[layers.Dense(3) for _ in range(count)])
    found = to_variational(model, verbose=0, seed=seed)
    return [layer.seed for layer in variational_layers(found)], found


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.int32])
def test_each_layer_has_a_seed_of_its_own(kind):
    seeds, model = seeds_of(kind(3))
    assert len(set(seeds)) == 4
    assert seeds == seeds_of(3)[0]
    assert all(type(x) is int and 0 <= x < 2**31 for x in seeds)
    json.dumps(model.get_config())
    noise = [
        keras.ops.convert_to_numpy(layer.kernel_noise.noise())
        for layer in variational_layers(model)
    ]
    for i in range(4):
        for j in range(i):
            assert not np.intersect1d(noise[i], noise[j]).size


def test_models_of_neighbouring_seeds_share_none():
    found = sum((seeds_of(seed)[0] for seed in range(-3, 8)), [])
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("seed", [True, 1.0, "1"])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="argument `seed`. Expected an int"):
        seeds_of(seed)


def test_no_seed_stays_none():
    assert seeds_of(None)[0] == [None] * 4


# Vocabularies.

WORDS = ["a", "b", "b", "c d", "u\u2028v", "x\ny"]


def integers(**arguments):
    layer = layers.IntegerLookup(**arguments)
    layer.adapt(np.array([[5], [7], [7], [9]]))
    return layer, np.array([[7], [9], [4]])


def strings(**arguments):
    layer = layers.StringLookup(**arguments)
    layer.adapt(np.array(WORDS))
    return layer, np.array([["b"], ["u\u2028v"], ["none"]])


def text(**arguments):
    layer = layers.TextVectorization(split="whitespace", **arguments)
    layer.adapt(["a b", "b c", "b"])
    return layer, np.array([["a b b"], ["none"]])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"output_mode": "tf_idf"},
        {"output_mode": "tf_idf", "max_tokens": 9, "pad_to_max_tokens": True},
        {"output_mode": "multi_hot", "max_tokens": 3},
    ],
)
@pytest.mark.parametrize("adapted", [integers, strings, text])
def test_adapted_lookups_keep_their_vocabulary(adapted, arguments):
    pytest.importorskip("tensorflow")
    lookup, x = adapted(**arguments)
    expected = keras.ops.convert_to_numpy(lookup(x))
    inner = keras.Sequential([lookup])
    for model in (
        keras.Sequential([lookup, layers.Dense(2)]),
        keras.Sequential([inner, layers.Dense(2)]),
    ):
        first = to_variational(model, verbose=0)
        for converted in (first, to_deterministic(first)):
            [other] = [
                x
                for x in converted._flatten_layers()
                if type(x) is type(lookup)
            ]
            assert other is not lookup
            assert other.get_vocabulary() == lookup.get_vocabulary()
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(other(x)), expected
            )
    assert lookup.get_vocabulary() == adapted(**arguments)[0].get_vocabulary()


@pytest.mark.parametrize("adapted", [integers, strings, text])
def test_model_with_a_lookup_predicts_the_same(adapted):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("strings and tables are tensors of tensorflow alone")
    lookup, x = adapted(output_mode="tf_idf")
    dtype = "int64" if x.dtype.kind == "i" else "string"
    model = model_of(lookup, layers.Dense(2), shape=(1,), dtype=dtype)
    converted = to_variational(model, verbose=0)
    x = keras.ops.convert_to_tensor(x)
    assert_same(model, converted, x)
    assert_same(model, to_deterministic(converted), x)


def test_lookups_without_a_vocabulary_and_with_a_given_one(tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "words.txt").write_text("a\nb\n")
    for lookup in (
        layers.IntegerLookup(),
        layers.StringLookup(output_mode="tf_idf"),
        layers.TextVectorization(),
        layers.StringLookup(vocabulary=["a", "b"]),
        layers.StringLookup(vocabulary=str(tmp_path / "words.txt")),
        layers.StringLookup(
            vocabulary=["a", "b"], idf_weights=[1, 2], output_mode="tf_idf"
        ),
    ):
        model = keras.Sequential([lookup, layers.Dense(2)])
        found = to_variational(model).layers[0]
        assert found.get_vocabulary() == lookup.get_vocabulary()


def test_other_layers_that_adapt():
    data = np.arange(12.0).reshape(4, 3)
    normalization = layers.Normalization()
    normalization.adapt(data)
    bins = layers.Discretization(num_bins=3)
    try:
        bins.adapt(data)
    except ImportError:
        pytest.skip("Keras before 3.15 needs tensorflow for this")
    model = model_of(normalization, bins, layers.Dense(2))
    converted = to_variational(model, verbose=0)
    assert_same(model, converted)
    assert_same(model, to_deterministic(converted))


class WithAssets(keras.Layer):
    """A layer of the user's, with a file of its own."""

    table = None

    def call(self, inputs):
        return inputs * float(self.table)

    def save_assets(self, folder):
        (pathlib.Path(folder) / "table.txt").write_text(self.table)

    def load_assets(self, folder):
        self.table = (pathlib.Path(folder) / "table.txt").read_text()


def test_assets_of_layers_of_the_user():
    first, second = WithAssets(), WithAssets()
    first.table, second.table = "3", "40"
    model = keras.Sequential([first, second, layers.Dense(2)])
    converted = to_variational(model, verbose=0)
    assert [x.table for x in converted.layers[:2]] == ["3", "40"]


# Code from a file.


def write_marker(path):
    """A lambda that writes a file once it is called, and its layer."""
    # Nothing from outside, so that the code is all in the file.
    function = eval(f"lambda x: (open({str(path)!r}, 'w').close(), x)[1]")
    return layers.Lambda(function)


def hostile_file(path, marker):
    """A file that Keras loads in safe mode, with code hidden in a number."""
    hidden = model_of(write_marker(marker))
    marker.unlink(missing_ok=True)
    hidden = keras.saving.serialize_keras_object(hidden)
    model = keras.Sequential(
        [
            layers.Masking(0.0, name="masking"),
            layers.Dense(3),
            keras_vdrop.VariationalDense(2),
        ]
    )
    model.save(path.with_suffix(".plain.keras"))
    with zipfile.ZipFile(path.with_suffix(".plain.keras")) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(files["config.json"])
    [masking] = [
        x for x in config["config"]["layers"] if x["class_name"] == "Masking"
    ]
    masking["config"]["mask_value"] = {
        "class_name": "__numpy__",
        "config": {"value": hidden, "dtype": "object"},
    }
    files["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("convert", [to_variational, to_deterministic])
def test_no_code_of_a_file_runs(tmp_path, convert):
    marker = tmp_path / "marker"
    hostile_file(tmp_path / "hostile.keras", marker)
    model = keras.models.load_model(tmp_path / "hostile.keras", safe_mode=True)
    assert not marker.exists()
    with pytest.raises(ValueError, match="'masking'.*`safe_mode=False`"):
        convert(model)
    assert not marker.exists()
    # The code is alive, for one who asks for it.
    try:
        convert(model, safe_mode=False)
    except Exception:
        pass
    assert marker.exists()


def lambda_model(function, **arguments):
    return model_of(
        keras_vdrop.VariationalDense(3),
        layers.Lambda(function, name="mine", **arguments),
        layers.Dense(2),
    )


def test_lambdas_in_memory_are_handed_on():
    calls = []

    def counted(x, shift):
        calls.append(1)
        return x + shift

    outside = [2.0]
    for function, arguments in (
        (lambda x: x * outside[0], {}),
        (lambda x: x + 1, {"output_shape": lambda shape: shape}),
        (counted, {"arguments": {"shift": 3.0}}),
        (counted, {"arguments": {"shift": 3.0}, "output_shape": (3,)}),
        (keras.ops.tanh, {"mask": lambda inputs, mask: mask}),
    ):
        model = lambda_model(function, **arguments)
        plain = to_deterministic(model)
        assert_same(model, plain)
        assert plain.get_layer("mine").function is function
        assert plain.get_layer("mine").mask is arguments.get("mask")
        assert_same(plain, to_variational(plain, verbose=0))
        wrapped = model_of(
            layers.TimeDistributed(layers.Lambda(function, **arguments)),
            layers.Dense(2),
            shape=(4, 3),
        )
        x = np.ones((2, 4, 3), "float32")
        assert_same(wrapped, to_variational(wrapped, verbose=0), x)
    assert calls


class OwnLambda(layers.Lambda):
    pass


def test_code_in_a_config_needs_a_word():
    model = model_of(
        OwnLambda(lambda x: x + 1, name="mine"),
        keras_vdrop.VariationalDense(2),
        layers.Dense(2),
    )
    for convert in (to_variational, to_deterministic):
        with pytest.raises(ValueError, match="'mine'.*`safe_mode=False`"):
            convert(model)
        assert_same(model, convert(model, safe_mode=False, verbose=0))


@pytest.mark.parametrize("convert", [to_variational, to_deterministic])
def test_bad_safe_mode(convert):
    with pytest.raises(ValueError, match="argument `safe_mode`. Expected a b"):
        convert(model_of(layers.Dense(2)), safe_mode="no")


# Messages.


def test_an_argument_that_one_layer_refuses_names_it():
    model = model_of(
        layers.LSTM(2, name="memory"), layers.Dense(2), shape=(4, 3)
    )
    with pytest.raises(
        ValueError, match="argument `granularity`.*LSTM 'memory'.*`filter`"
    ):
        to_variational(model, granularity="weight")
    found = to_variational(
        model,
        lambda layer: layer.name != "memory" or {"granularity": "input"},
        verbose=0,
        granularity="weight",
    )
    assert found.layers[0].granularity == "input"
    assert found.layers[1].granularity == "weight"
