"""Backbones and tasks of keras_hub, small and with random weights."""

import keras
import numpy as np
import pytest
from backends import run_python

import keras_vdrop

keras_hub = pytest.importorskip("keras_hub")
models = keras_hub.models

RANDOM = np.random.default_rng(0)
TOKENS = {
    "token_ids": RANDOM.integers(1, 30, size=(3, 6)).astype("int32"),
    "padding_mask": np.ones((3, 6), "int32"),
}
TRANSFORMER = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
}
VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
VOCABULARY += ["a", "good", "bad", "film"]
TEXTS = ["a good film", "a bad film", "good good", "bad"]


def images(size):
    return RANDOM.normal(size=(3, size, size, 3)).astype("float32")


def bert():
    backbone = models.BertBackbone(
        num_heads=2, max_sequence_length=8, **TRANSFORMER
    )
    return backbone, {**TOKENS, "segment_ids": np.zeros((3, 6), "int32")}


def gpt2():
    backbone = models.GPT2Backbone(
        num_heads=2, max_sequence_length=8, **TRANSFORMER
    )
    return backbone, TOKENS


def llama():
    backbone = models.LlamaBackbone(
        num_query_heads=4, num_key_value_heads=2, **TRANSFORMER
    )
    return backbone, TOKENS


def gemma():
    backbone = models.GemmaBackbone(
        num_query_heads=4, num_key_value_heads=1, head_dim=4, **TRANSFORMER
    )
    return backbone, TOKENS


def vit():
    backbone = models.ViTBackbone(
        image_shape=(8, 8, 3),
        patch_size=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=16,
    )
    return backbone, images(8)


def resnet():
    backbone = models.ResNetBackbone(
        # keras_hub wants 64 of them.
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(8, 8, 3),
    )
    return backbone, images(8)


# How many layers are random: tables, projections of attention, Dense layers
# and convolutions, counted by hand.
COUNTS = {
    bert: 2 + 2 * 6 + 1,
    gpt2: 1 + 2 * 6,
    llama: 1 + 2 * 7,
    gemma: 1 + 2 * 7,
    vit: 2 + 2 * 6,
    resnet: 1 + 2,
}
every_backbone = pytest.mark.parametrize(
    "make",
    [
        make if make is gpt2 else pytest.param(make, marks=pytest.mark.slow)
        for make in COUNTS
    ],
)


def outputs(model, inputs, **arguments):
    found = model(inputs, **arguments)
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(found)]


def predictions(model, inputs):
    return keras.tree.flatten(model.predict(inputs, verbose=0))


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@every_backbone
def test_backbone(make):
    plain, inputs = make()
    expected = predictions(plain, inputs)
    noise = {"rate": 0.3, "noise": "independent", "granularity": "layer"}
    model = keras_vdrop.to_variational(
        plain, num_examples=7, verbose=0, **noise
    )
    assert isinstance(model, type(plain))
    layers = keras_vdrop.variational_layers(model)
    assert len(layers) == COUNTS[make]
    assert keras_vdrop.variational_layers(plain) == []
    assert_same(predictions(model, inputs), expected)

    back = keras_vdrop.to_deterministic(model, verbose=0)
    assert type(back) is type(plain)
    assert back.get_config() == plain.get_config()
    assert keras_vdrop.variational_layers(back) == []
    assert_same(predictions(back, inputs), expected)

    first = outputs(model, inputs, training=True)
    second = outputs(model, inputs, training=True)
    for a, b, c in zip(first, second, outputs(model, inputs), strict=True):
        assert np.all(np.isfinite(a))
        assert np.any(a != b) and np.any(a != c)

    # One alpha of log(0.3 / 0.7) for each layer: the same KL for each weight.
    one = keras_vdrop.VariationalDense(1, num_examples=7, **noise)
    one.build((None, 1))
    for_one = float(keras.ops.convert_to_numpy(one.losses[0]))
    weights = sum(
        int(np.prod(weight.mean_variable.shape))
        for layer in layers
        for weight in layer.random_weights
    )
    total = sum(map(float, map(keras.ops.convert_to_numpy, model.losses)))
    np.testing.assert_allclose(total, weights * for_one, rtol=1e-4)


PROGRAM = """
import sys
import keras, keras_hub, numpy as np, keras_vdrop
path, data, found, count = sys.argv[1:]
model = keras.saving.load_model(path)
assert len(keras_vdrop.variational_layers(model)) == int(count)
data = np.load(data)
x = {name: data[name] for name in data.files}
x = x.get("images", x)
y = keras.tree.flatten(model.predict(x, verbose=0))
noisy = keras.tree.flatten(model(x, training=True))
assert np.any(keras.ops.convert_to_numpy(noisy[0]) != y[0])
np.savez(found, *y)
"""


@pytest.mark.slow
@every_backbone
def test_file_opens_in_another_process(make, tmp_path):
    plain, inputs = make()
    model = keras_vdrop.to_variational(
        plain, noise="correlated", granularity="input", verbose=0
    )
    model.save(tmp_path / "model.keras")
    named = inputs if isinstance(inputs, dict) else {"images": inputs}
    np.savez(tmp_path / "x.npz", **named)
    run_python(
        PROGRAM,
        tmp_path / "model.keras",
        tmp_path / "x.npz",
        tmp_path / "y.npz",
        COUNTS[make],
    )
    found = np.load(tmp_path / "y.npz")
    for name, expected in zip(
        found.files, predictions(model, inputs), strict=True
    ):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def preprocessor():
    tokenizer = models.BertTokenizer(vocabulary=VOCABULARY)
    return models.BertTextClassifierPreprocessor(tokenizer, sequence_length=6)


def classifier(preprocessor=None):
    return models.BertTextClassifier(
        bert()[0], num_classes=2, dropout=0.0, preprocessor=preprocessor
    )


@pytest.mark.slow
def test_text_classifier_trains():
    inputs = preprocessor()(TEXTS)
    inputs = {k: keras.ops.convert_to_numpy(x) for k, x in inputs.items()}
    plain = classifier()
    model = keras_vdrop.to_variational(plain, rate=0.02, verbose=0)
    assert isinstance(model, models.BertTextClassifier)
    assert isinstance(model.backbone, models.BertBackbone)
    inside = keras_vdrop.variational_layers(model.backbone)
    assert len(inside) == COUNTS[bert]
    assert len(keras_vdrop.variational_layers(model)) == COUNTS[bert] + 1

    keras_vdrop.set_num_examples(model, 10_000)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    labels = np.array([1, 0, 1, 0])
    before = model.evaluate(inputs, labels, verbose=0)[0]
    model.fit(inputs, labels, epochs=30, verbose=0)
    after, accuracy = model.evaluate(inputs, labels, verbose=0)
    assert after < before and accuracy == 1.0
    found = keras_vdrop.predict(
        model, inputs, from_logits=True, num_samples=3, verbose=0
    )
    assert np.all(found.std > 0)

    back = keras_vdrop.to_deterministic(model, verbose=0)
    assert type(back) is models.BertTextClassifier
    assert_same(predictions(back, inputs), predictions(model, inputs))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.slow
def test_preprocessor_keeps_its_vocabulary(used, tmp_path):
    plain = classifier(preprocessor())
    if used:
        # It makes the layer that packs the tokens now.
        plain.preprocessor(TEXTS)
    expected = outputs(preprocessor(), TEXTS)
    model = keras_vdrop.to_variational(plain, verbose=0)
    model.save(tmp_path / "model.keras")
    for other in (
        model,
        keras.saving.load_model(tmp_path / "model.keras"),
        keras_vdrop.to_deterministic(model, verbose=0),
    ):
        assert type(other.preprocessor) is type(plain.preprocessor)
        assert_same(outputs(other.preprocessor, TEXTS), expected)


@pytest.mark.slow
def test_causal_lm_generates_the_same():
    plain = models.GPT2CausalLM(gpt2()[0], preprocessor=None)
    prompt = {
        "token_ids": np.array([[3, 4, 5, 0, 0, 0, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 0, 0, 0, 0, 0]]),
    }

    def generated(model):
        model.compile(sampler="greedy")
        found = model.generate(prompt, stop_token_ids=None)
        return np.asarray(found["token_ids"])

    expected = generated(plain)
    assert np.any(expected[0, 3:] != 0)
    model = keras_vdrop.to_variational(plain, rate=0.3, verbose=0)
    assert isinstance(model, models.GPT2CausalLM)
    np.testing.assert_array_equal(generated(model), expected)
    back = keras_vdrop.to_deterministic(model, verbose=0)
    assert type(back) is models.GPT2CausalLM
    np.testing.assert_array_equal(generated(back), expected)


@pytest.mark.slow
def test_causal_lm_generates_the_same_text():
    tokenizer = models.GPT2Tokenizer(
        vocabulary={
            "a": 0,
            "b": 1,
            "ab": 2,
            "Ġ": 3,
            "Ġa": 4,
            "<|endoftext|>": 5,
        },
        merges=["a b", "Ġ a"],
    )
    plain = models.GPT2CausalLM(
        gpt2()[0],
        preprocessor=models.GPT2CausalLMPreprocessor(
            tokenizer, sequence_length=8
        ),
    )

    def generated(model):
        model.compile(sampler="greedy")
        return model.generate("ab a", max_length=8)

    expected = generated(plain)
    assert expected.startswith("ab a")
    model = keras_vdrop.to_variational(plain, rate=0.3, verbose=0)
    assert generated(model) == expected
    assert generated(keras_vdrop.to_deterministic(model)) == expected
