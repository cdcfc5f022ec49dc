"""Predictions with uncertainty, where it is known."""

import keras
import numpy as np
import pytest
from cases import build
from cases import every_posterior
from cases import moments

import keras_vdrop
from keras_vdrop.prediction import Sampler
from keras_vdrop.prediction import predict

SAMPLES = 1000
SIGMAS = 5


def inputs(rows=5, columns=4):
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, columns)).astype("float32")


def classifier(**arguments):
    """With layers before, between and behind the noise that could change."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras_vdrop.VariationalDense(6, activation="relu", **arguments),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras_vdrop.VariationalDense(3, **arguments),
        ]
    )
    return model


def run(model, x, **arguments):
    arguments = {"verbose": 0, "seed": 1, **arguments}
    return predict(model, x, **arguments)


@pytest.mark.parametrize("estimator", ["local", "batch", "example"])
@pytest.mark.parametrize("case", ["dense", "conv2d_strides"])
@every_posterior
def test_mean_and_deviation(case, posterior, estimator):
    if estimator != "local" and (case != "dense" or posterior):
        pytest.skip("the layers have tests of their own")
    layer, x = build(case, **posterior, estimator=estimator)
    mean, variance = moments(layer, x)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    found = run(model, x, num_samples=SAMPLES)
    error = np.sqrt(variance / SAMPLES)
    np.testing.assert_array_less(
        np.abs(found.mean - mean), SIGMAS * error + 1e-5
    )
    error = variance * np.sqrt(2 / SAMPLES)
    np.testing.assert_array_less(
        np.abs(found.std**2 - variance), SIGMAS * error + 1e-5
    )


def test_other_layers_are_as_at_inference():
    model = classifier(rate=1e-12)
    model(inputs(20), training=True)  # moves the statistics
    found = run(model, inputs(), num_samples=3)
    expected = model.predict(inputs(), verbose=0)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-3, atol=1e-4)
    assert np.all(found.std < 1e-4)


def test_statistics_are_those_of_the_samples():
    model = classifier()
    kept = run(model, inputs(), from_logits=True, keep_samples=True)
    probabilities = kept.samples.astype("float64")
    assert probabilities.shape == (32, 5, 3)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    mean = probabilities.mean(0)
    np.testing.assert_allclose(kept.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(kept.std, probabilities.std(0), rtol=1e-4)
    entropy = -(mean * np.log(mean)).sum(-1)
    np.testing.assert_allclose(kept.entropy, entropy, rtol=1e-5)
    expected = -(probabilities * np.log(probabilities)).sum(-1).mean(0)
    np.testing.assert_allclose(kept.expected_entropy, expected, rtol=1e-5)
    np.testing.assert_allclose(
        kept.mutual_information, entropy - expected, rtol=1e-3, atol=1e-6
    )
    for q in (0.0, 0.25, 0.9):
        np.testing.assert_allclose(
            kept.quantile(q), np.quantile(probabilities, q, axis=0), rtol=1e-5
        )


def test_memory_of_one_batch_gives_the_same():
    model = classifier()
    arguments = {"from_logits": True, "batch_size": 2}
    kept = run(model, inputs(), keep_samples=True, **arguments)
    found = run(model, inputs(), quantiles=[0.1, 0.9], **arguments)
    assert found.samples is None
    for name in ("mean", "std", "entropy", "expected_entropy"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(kept, name), rtol=1e-5
        )
    np.testing.assert_allclose(
        found.quantile(0.9), kept.quantile(0.9), rtol=1e-5
    )
    with pytest.raises(ValueError, match=r"quantiles=\[0.5\]"):
        found.quantile(0.5)


def test_logits_and_probabilities():
    model = classifier()
    softmax = keras.Sequential([*model.layers, keras.layers.Softmax()])
    logits = run(model, inputs(), from_logits=True)
    probabilities = run(softmax, inputs(), from_logits=False)
    np.testing.assert_allclose(logits.mean, probabilities.mean, rtol=1e-5)
    np.testing.assert_allclose(
        logits.mutual_information, probabilities.mutual_information, atol=1e-6
    )
    with pytest.raises(ValueError, match="from_logits=True"):
        _ = run(model, inputs()).entropy


def test_two_classes_with_one_output():
    model = keras.Sequential(
        [keras.Input((4,)), keras_vdrop.VariationalDense(1)]
    )
    found = run(model, inputs(), from_logits=True, keep_samples=True)
    p = found.samples[..., 0].astype("float64")
    assert np.all((p > 0) & (p < 1))
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean(0)
    np.testing.assert_allclose(found.expected_entropy, entropy, rtol=1e-4)


def test_certain_predictions_have_no_entropy():
    model = keras.Sequential(
        [keras.Input((4,)), keras_vdrop.VariationalDense(2, use_bias=False)]
    )
    model.layers[0].kernel.assign(np.array([[1e4, -1e4]] * 4))
    found = run(model, np.ones((3, 4), "float32"), from_logits=True)
    np.testing.assert_array_equal(found.entropy, 0)
    np.testing.assert_array_equal(found.mutual_information, 0)


def test_seeds():
    model = classifier()
    first, again = (run(model, inputs(), seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.mean, again.mean)
    others = [run(model, inputs(), seed=seed) for seed in (4, None, None)]
    means = [first.mean, *[other.mean for other in others]]
    for index, mean in enumerate(means):
        for other in means[:index]:
            assert not np.any(mean == other)


def test_examples_samples_and_batches_have_their_own_noise():
    layer = keras_vdrop.VariationalDense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    found = run(
        model,
        np.ones((6, 1), "float32"),
        batch_size=2,
        num_samples=4,
        keep_samples=True,
    )
    assert len(np.unique(found.samples)) == 24


def test_shared_layer_draws_noise_for_each_call():
    layer = keras_vdrop.VariationalDense(1, kernel_initializer="ones", rate=0.5)
    first, second = keras.Input((1,)), keras.Input((1,))
    outputs = layer(first) - layer(second)
    model = keras.Model([first, second], outputs)
    ones = np.ones((1, 1), "float32")
    found = run(model, [ones, ones], num_samples=SAMPLES)
    error = 2 * np.sqrt(2 / SAMPLES)
    assert abs(found.std.item() ** 2 - 2) < SIGMAS * error


def test_several_inputs_and_outputs():
    one, two = keras.Input((4,), name="one"), keras.Input((4,), name="two")
    hidden = keras_vdrop.VariationalDense(3)(one + two)
    outputs = {
        "a": keras_vdrop.VariationalDense(2)(hidden),
        "b": keras.layers.Dense(1)(hidden),
    }
    model = keras.Model({"one": one, "two": two}, outputs)
    x = {"one": inputs(), "two": inputs()}
    found = run(model, x, keep_samples=True, quantiles=[0.5])
    assert found.mean["a"].shape == (5, 2) and found.std["b"].shape == (5, 1)
    assert found.samples["a"].shape == (32, 5, 2)
    assert found.quantile(0.5)["b"].shape == (5, 1)


@pytest.mark.parametrize("layers", [0, 1])
def test_names_of_outputs_behind_plain_layers(layers):
    """Which are run once for all samples."""
    x = hidden = keras.Input((4,), name="x")
    for _ in range(layers):
        hidden = keras.layers.Dense(4)(hidden)
    noisy = keras_vdrop.VariationalDense(2)(hidden)
    outputs = {"b": keras.layers.Dense(1)(noisy), "a": noisy}
    model = keras.Model({"x": x}, outputs)
    sampler = Sampler(model, 2, None, (), False)
    assert (sampler.before is not None) == bool(layers)
    found = run(model, {"x": inputs()}, num_samples=2)
    assert found.mean["a"].shape == (5, 2) and found.mean["b"].shape == (5, 1)


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return inputs()[3 * index : 3 * index + 3], np.ones(3)[: 5 - 3 * index]


def kinds_of_data():
    kinds = {"array": lambda: inputs(), "dataset": Data}

    def tensorflow_data():
        tf = pytest.importorskip("tensorflow")
        return tf.data.Dataset.from_tensor_slices(inputs()).batch(3)

    def torch_data():
        torch = pytest.importorskip("torch")
        rows = torch.utils.data.TensorDataset(torch.tensor(inputs()))
        return torch.utils.data.DataLoader(rows, batch_size=3)

    return {**kinds, "tf.data": tensorflow_data, "torch": torch_data}


@pytest.mark.parametrize("kind", kinds_of_data())
def test_takes_what_predict_takes(kind):
    model = classifier()
    batch_size = 3 if kind == "array" else None
    data = kinds_of_data()[kind]()
    found = run(model, data, num_samples=2, batch_size=batch_size)
    expected = run(model, inputs(), num_samples=2, batch_size=3)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-6)


class Counting(keras.layers.Layer):
    """Counts how often it is run, or traced."""

    count = 0

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        self.count += 1
        return inputs * self.scale


def test_compiles_once():
    counting = Counting()
    model = keras.Sequential(
        [keras.Input((4,)), keras_vdrop.VariationalDense(2), counting]
    )
    run(model, inputs(), num_samples=3)
    before = counting.count
    model.layers[0].kernel.assign(np.ones((4, 2)))
    found = run(model, inputs(), num_samples=3)
    if keras.backend.backend() != "torch":  # which does not trace
        assert counting.count == before
    # And it sees new weights.
    layer, x = model.layers[0], inputs()
    sure = run(model, x, num_samples=3, keep_samples=True)
    np.testing.assert_allclose(found.mean, sure.mean, rtol=1e-5)
    assert np.all(layer.kernel.numpy() == 1)


@pytest.mark.parametrize("functional", [True, False])
def test_what_comes_before_the_noise_is_computed_once(functional):
    counting = Counting()
    layers = [counting, keras_vdrop.VariationalDense(2), Counting()]
    if functional:
        x = y = keras.Input((4,))
        for layer in layers:
            y = layer(y)
        model = keras.Model(x, y)
    else:
        model = keras.Sequential([keras.Input((4,)), *layers])
    sampler = Sampler(model, 7, None, (), False)
    assert counting in sampler.before.layers
    assert counting not in sampler.noisy.layers
    if keras.backend.backend() == "torch":
        counting.count = layers[2].count = 0
        run(model, inputs(), num_samples=7)
        assert (counting.count, layers[2].count) == (1, 7)


def test_a_way_round_the_noise():
    x = keras.Input((4,))
    hidden = keras.layers.Dense(4)(x)
    noisy = keras_vdrop.VariationalDense(4)(hidden)
    model = keras.Model(x, keras.layers.Add()([noisy, x]))
    found = run(model, inputs(), num_samples=SAMPLES)
    expected = model.predict(inputs(), verbose=0)
    error = found.std / np.sqrt(SAMPLES)
    np.testing.assert_array_less(
        np.abs(found.mean - expected), SIGMAS * error + 1e-5
    )


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras_vdrop.VariationalDense(2)

    def call(self, inputs, training=None):
        return self.dense(inputs, training=training)


def test_subclassed_model():
    model = Subclassed()
    model(inputs())
    found = run(model, inputs())
    assert found.mean.shape == (5, 2) and np.all(found.std > 0)


def test_model_is_not_changed():
    model = classifier(num_examples=10)
    model.compile("adam", "mse")
    model.fit(inputs(), np.ones((5, 3)), verbose=0)

    def state():
        variables = [*model.variables, *model.optimizer.variables]
        return [keras.ops.convert_to_numpy(v) for v in variables]

    before, names = state(), [layer.name for layer in model.layers]
    run(model, inputs())
    for ours, theirs in zip(state(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [layer.name for layer in model.layers] == names
    model.fit(inputs(), np.ones((5, 3)), verbose=0)
    expected = model.predict(inputs(), verbose=0)
    np.testing.assert_array_equal(model.predict(inputs(), verbose=0), expected)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"model": "model"}, "model"),
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, "variational"),
        ({"num_samples": 0}, "num_samples"),
        ({"from_logits": "yes"}, "from_logits"),
        ({"quantiles": [2.0]}, "quantiles"),
        ({"keep_samples": 1}, "keep_samples"),
        ({"seed": "one"}, "seed"),
    ],
)
def test_bad_arguments(arguments, told):
    arguments = {"model": classifier(), "x": inputs(), **arguments}
    with pytest.raises(ValueError, match=told):
        predict(**arguments)
