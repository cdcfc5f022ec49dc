"""Small files of models: bit for bit, on any backend, safe to load."""

import io
import json
import os
import re
import threading
import zipfile
import zlib

import keras
import numpy as np
import pytest
from backends import run_python
from keras import layers

import keras_vdrop
from keras_vdrop.coding import container
from keras_vdrop.coding import streams
from keras_vdrop.coding.records import Reader
from keras_vdrop.models import compressed
from keras_vdrop.models import files
from keras_vdrop.models.rebuild import own_weights
from keras_vdrop.models.traversal import every_layer

BOTH = pytest.mark.parametrize("ending", ["kvz", "keras"])


def dense(**arguments):
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="relu", **arguments),
            layers.Dense(3, **arguments),
        ]
    )


def convolutional():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same")(x)])
    x = layers.Dropout(0.2, seed=1)(x)
    x = layers.GlobalAveragePooling2D()(layers.SeparableConv2D(4, 2)(x))
    return keras.Model(inputs, [layers.Dense(2)(x), x])


def recurrent():
    tokens = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.TimeDistributed(layers.Dense(4))(x)
    x = layers.MultiHeadAttention(2, 2)(x, x)
    x = layers.GRU(3)(layers.LayerNormalization()(x))
    return keras.Model(tokens, x)


def nested():
    inner = convolutional()
    inputs = keras.Input((8, 8, 3))
    return keras.Model(inputs, layers.Dense(2)(inner(inputs)[1]))


def adapted():
    normalization = layers.Normalization()
    normalization.adapt(np.random.default_rng(1).normal(3, 2, (50, 6)))
    return keras.Sequential([keras.Input((6,)), normalization, layers.Dense(2)])


def quantized():
    model = dense()
    model.quantize("int8")
    return model


def variational():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDense(
                5, granularity="weight", kl="exact", max_alpha=None, seed=3
            ),
            keras_vdrop.VariationalDropout(),
            keras_vdrop.VariationalDense(2, noise="correlated", kl="exact"),
        ]
    )
    layer = model.layers[0]
    log_alpha = np.random.default_rng(2).uniform(-3, 6, layer.log_alpha.shape)
    layer.log_alpha.assign(log_alpha)
    keras_vdrop.prune(model)
    return model


MODELS = {
    "dense": dense,
    "float16": lambda: dense(dtype="float16"),
    "bfloat16": lambda: dense(dtype="bfloat16"),
    "mixed": lambda: dense(dtype="mixed_bfloat16"),
    "convolutional": convolutional,
    "recurrent": recurrent,
    "nested": nested,
    "adapted": adapted,
    "quantized": quantized,
    "variational": variational,
}


def trained(name):
    """A model whose weights are not those that it begins with."""
    model = MODELS[name]()
    generator = np.random.default_rng(4)
    for variable in model.trainable_variables:
        if variable.name not in ("log_alpha", "log_variance"):
            noise = generator.normal(size=variable.shape)
            variable.assign(keras.ops.cast(noise, variable.dtype))
    return model


def inputs_of(model):
    generator = np.random.default_rng(5)
    shape = (4, *model.input_shape[1:])
    if "int" in model.inputs[0].dtype:
        return generator.integers(0, 9, shape)
    return generator.normal(size=shape).astype("float32")


def weights_of(model):
    return [
        (name, weight)
        for layer in every_layer(model)
        for name, weight in own_weights(layer).items()
    ]


def assert_same(model, other):
    assert json.dumps(model.get_config()) == json.dumps(other.get_config())
    pairs = zip(weights_of(model), weights_of(other), strict=True)
    for (name, a), (other_name, b) in pairs:
        assert name == other_name and a.dtype == b.dtype
        assert a.shape == b.shape and a.tobytes() == b.tobytes()


@BOTH
@pytest.mark.parametrize("name", MODELS)
def test_bit_for_bit(name, ending, tmp_path):
    model = trained(name)
    path = tmp_path / f"model.{ending}"
    keras_vdrop.save_compressed(model, path)
    same = keras_vdrop.load_compressed(path)
    assert_same(model, same)
    x = inputs_of(model)
    found = zip(
        keras.tree.flatten(model.predict(x, verbose=0)),
        keras.tree.flatten(same.predict(x, verbose=0)),
        strict=True,
    )
    for a, b in found:
        np.testing.assert_array_equal(a, b)
    if ending == "keras":
        assert_same(model, keras.saving.load_model(path))


def test_vocabularies(tmp_path):
    lookup = layers.StringLookup(output_mode="multi_hot")
    lookup.adapt(np.array(["a", "b\nc", "a", "d e"]))
    strings = keras.Input((1,), dtype="string")
    model = keras.Model(strings, layers.Dense(2)(lookup(strings)))
    keras_vdrop.save_compressed(model, tmp_path / "model.kvz")
    same = keras_vdrop.load_compressed(tmp_path / "model.kvz")
    assert_same(model, same)
    assert same.layers[1].get_vocabulary() == lookup.get_vocabulary()


@keras.saving.register_keras_serializable(package="test_compressed")
class WithFile(layers.Layer):
    text = ""

    def call(self, x):
        return x

    def save_assets(self, folder):
        with open(os.path.join(folder, "text.txt"), "w") as file:
            file.write(self.text)

    def load_assets(self, folder):
        with open(os.path.join(folder, "text.txt")) as file:
            self.text = file.read()


def test_files_of_layers(tmp_path):
    layer = WithFile()
    layer.text = "äb\n"
    model = keras.Sequential([keras.Input((2,)), layer])
    keras_vdrop.save_compressed(model, tmp_path / "model.kvz")
    same = keras_vdrop.load_compressed(tmp_path / "model.kvz")
    assert same.layers[0].text == "äb\n"


@BOTH
def test_progress_is_told_to_the_end(ending, tmp_path, capsys):
    model = keras.Sequential([keras.Input((300,)), layers.Dense(200)])
    path = tmp_path / f"model.{ending}"
    keras_vdrop.save_compressed(model, path)
    assert not capsys.readouterr().out
    keras_vdrop.save_compressed(model, path, verbose=1)
    out = capsys.readouterr().out
    done, total = map(int, re.findall(r"(\d+)\D*/(\d+)", out)[-1])
    # Bytes of the weights, and what Keras adds.
    assert done == total >= 4 * 300 * 200
    assert_same(model, keras_vdrop.load_compressed(path))


@BOTH
def test_without_the_optimizer(ending, tmp_path):
    model = dense()
    sizes = []
    for _ in range(2):
        keras_vdrop.save_compressed(model, tmp_path / f"model.{ending}")
        sizes.append((tmp_path / f"model.{ending}").stat().st_size)
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    # But for the date in files of Keras.
    assert abs(sizes[0] - sizes[1]) < 100
    assert model.optimizer is not None


def test_smaller_than_keras(tmp_path):
    """What is on a grid is small, and the config hardly counts."""
    model = dense()
    model.set_weights([np.round(x * 2) / 2 + 0.0 for x in model.get_weights()])
    for ending in ("kvz", "keras"):
        keras_vdrop.save_compressed(model, tmp_path / f"small.{ending}")
    model.save(tmp_path / "model.keras")
    sizes = [
        (tmp_path / name).stat().st_size
        for name in ("small.kvz", "small.keras", "model.keras")
    ]
    assert sizes[0] < 220 < sizes[1] < sizes[2] / 3


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantized_by_keras_after_loading(mode, tmp_path):
    """The loaded model is an ordinary one, and so is the quantized."""
    model = keras_vdrop.to_deterministic(
        variational(), prune=3.0, precision=0.1, verbose=0
    )
    keras_vdrop.save_compressed(model, tmp_path / "model.kvz")
    same = keras_vdrop.load_compressed(tmp_path / "model.kvz")
    same.quantize(mode)
    x = inputs_of(model)
    expected = model.predict(x, verbose=0)
    found = same.predict(x, verbose=0)
    # 127 steps of the largest weight and of the largest input; 8 of float8.
    digits = {"int8": 127, "float8": 8}[mode]
    assert np.abs(found - expected).max() < 4 * np.abs(expected).max() / digits
    if mode == "int8":
        keras_vdrop.save_compressed(same, tmp_path / "model.kvz")
        assert_same(same, keras_vdrop.load_compressed(tmp_path / "model.kvz"))


@pytest.mark.slow
@BOTH
def test_on_another_backend(ending, tmp_path):
    model = trained("recurrent")
    path = tmp_path / f"model.{ending}"
    keras_vdrop.save_compressed(model, path)
    code = (
        "import sys, zlib, keras_vdrop;"
        "m = keras_vdrop.load_compressed(sys.argv[1]);"
        "print([zlib.crc32(w.tobytes()) for w in m.get_weights()])"
    )
    expected = [zlib.crc32(w.tobytes()) for w in model.get_weights()]
    for backend in ("jax", "tensorflow", "torch"):
        found = run_python(code, path, backend=backend)
        assert found.splitlines()[-1] == str(expected)


def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.kvz"
    keras_vdrop.save_compressed(dense(), path)
    before = path.read_bytes()

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        keras_vdrop.save_compressed(convolutional(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.kvz"]


def load_bytes(data, path):
    path.write_bytes(data)
    return keras_vdrop.load_compressed(path)


def refused(data, path, match=""):
    with pytest.raises(ValueError, match=f"`path`.*written.*{match}"):
        load_bytes(data, path)


@BOTH
def test_truncated_or_altered(ending, tmp_path):
    """1,000 files: each an error, by the checksum or before."""
    path = tmp_path / f"model.{ending}"
    model = dense()
    keras_vdrop.save_compressed(model, path)
    data = path.read_bytes()
    generator = np.random.default_rng(6)
    for number in range(1000):
        altered = bytearray(data)
        at = generator.integers(len(data))
        if number % 4 == 0:
            del altered[at:]
        elif number % 4 == 1:
            del altered[at : at + generator.integers(1, 20)]
        else:
            altered[at] ^= 1 << generator.integers(8)
        path.write_bytes(altered)
        try:
            same = keras_vdrop.load_compressed(path)
        except ValueError as error:
            assert "a file that `save_compressed` has written" in str(error)
            continue
        # A byte that has no meaning in a zip file, such as a date.
        assert ending == "keras"
        assert_same(model, same)


def with_header(header, arrays=()):
    return container.write(header, list(arrays))


def header_of(model):
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    return {"model": config}


def test_hostile_headers(tmp_path):
    path = tmp_path / "model.kvz"
    header = header_of(dense())
    refused(with_header([1]), path, "no model")
    refused(with_header({}), path, "no model")
    refused(with_header({"model": 5}), path)
    refused(with_header({"model": {"class_name": "print"}}), path)
    function = {
        "module": "builtins",
        "class_name": "function",
        "config": "eval",
        "registered_name": "function",
    }
    refused(with_header({"model": function}), path)
    # No weights, or other names.
    refused(with_header(header), path)
    weights = [w for _, w in weights_of(dense())]
    refused(with_header({**header, "weights": {"1": 3}}, weights), path)
    refused(
        with_header({**header, "weights": {"1": {"0": [-1]}}}, weights), path
    )
    refused(
        with_header(
            {**header, "weights": {"1": {"0": [10**9, 10**9]}}}, weights
        ),
        path,
        "more weights",
    )
    wrong = {"5": [6, 5], "6": [5]}
    refused(with_header({**header, "weights": {"1": wrong}}, weights), path)
    refused(with_header({**header, "assets": [[99, {}]]}, weights), path)
    load_bytes(with_header(header, weights), path)


def test_code_does_not_run(tmp_path):
    marker = tmp_path / "marker"
    model = keras.Sequential(
        [keras.Input((2,)), layers.Lambda(lambda x: x + 1)]
    )
    path = tmp_path / "model.kvz"
    keras_vdrop.save_compressed(model, path)
    with pytest.raises(ValueError, match="safe_mode"):
        keras_vdrop.load_compressed(path)
    same = keras_vdrop.load_compressed(path, safe_mode=False)
    np.testing.assert_array_equal(same.predict(np.ones((1, 2)), verbose=0), 2)
    assert not marker.exists()
    escape = {"../marker": ""}
    header = header_of(keras.Sequential([keras.Input((2,)), WithFile()]))
    layer_number = 2
    data = with_header({**header, "assets": [[layer_number, escape]]})
    with pytest.raises(ValueError):
        load_bytes(data, path)
    assert not marker.exists() and not (tmp_path.parent / "marker").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Dense(10**6),
        lambda: layers.Embedding(10**9, 10**5),
        lambda: layers.LSTM(10**6),
        lambda: layers.Conv1D(10**5, 10**5, padding="same"),
    ],
    ids=["dense", "embedding", "lstm", "conv1d"],
)
def test_giants_are_not_built(make, tmp_path):
    """A model of terabytes is refused before anything is allocated."""
    configs = []

    def describe():
        with keras.StatelessScope(initialize_variables=False):
            inputs = keras.Input((4, 10**6))
            layer = make()
            if isinstance(layer, layers.Embedding):
                inputs = keras.Input((4,), dtype="int32")
            configs.append(keras.Model(inputs, layer(inputs)).get_config())

    # Keras would give this thread's variables their values later on.
    thread = threading.Thread(target=describe)
    thread.start()
    thread.join()
    (config,) = configs
    small = keras.Model(*2 * [keras.Input((4,))])
    header = header_of(small)
    header["model"]["config"] = config
    refused(with_header(header), tmp_path / "model.kvz", "Its model needs")


def test_zip_bombs(tmp_path):
    path = tmp_path / "model.keras"
    for member in ("model.weights.h5", "other"):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_LZMA) as file:
            file.writestr("config.json", "{}")
            file.writestr(member, bytes(50_000_000))
        refused(data.getvalue(), path, "larger than its size allows")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("config.json", "{}")
    refused(path.read_bytes(), path, "unknown way")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("config.json", "{}")
    altered = bytearray(data.getvalue())
    at = 30 + len("config.json") + 5
    altered[at : at + 4] = b"\xff" * 4
    refused(bytes(altered), path, "too large a window")


def test_many_zeros(tmp_path):
    """A file that may be loaded, however well it could be packed."""
    model = keras.Sequential(
        [
            keras.Input((3000,)),
            layers.Dense(3000, kernel_initializer="zeros"),
        ]
    )
    for ending in ("kvz", "keras"):
        keras_vdrop.save_compressed(model, tmp_path / f"model.{ending}")
        keras_vdrop.load_compressed(tmp_path / f"model.{ending}")


def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="`model`.*built"):
        keras_vdrop.save_compressed(keras.Sequential(), tmp_path / "a.kvz")
    with pytest.raises(ValueError, match="`path`"):
        keras_vdrop.save_compressed(dense(), 3)
    with pytest.raises(ValueError, match="`safe_mode`"):
        keras_vdrop.load_compressed(tmp_path / "a.kvz", safe_mode=1)
    with pytest.raises(FileNotFoundError):
        keras_vdrop.load_compressed(tmp_path / "a.kvz")


def test_header_is_deflated_json():
    data = compressed.to_bytes(dense())
    text = streams.read_text(Reader(data[8:]), 10**6)
    assert json.loads(text)["model"]["class_name"] == "Sequential"
