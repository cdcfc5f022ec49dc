"""Predictions with uncertainty, where it is known."""

import concurrent.futures

import keras
import numpy as np
import pytest
from cases import build
from cases import every_posterior
from cases import moments

import keras_vdrop
from keras_vdrop.models.prediction import predict

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


@pytest.mark.parametrize("estimator", ["weights", "local", "batch", "example"])
@pytest.mark.parametrize("case", ["dense", "conv2d_strides"])
@every_posterior
def test_mean_and_deviation(case, posterior, estimator):
    if estimator in ("batch", "example") and (case != "dense" or posterior):
        pytest.skip("the layers have tests of their own")
    arguments = {} if estimator == "weights" else {"estimator": estimator}
    layer, x = build(case, **posterior, **arguments)
    mean, variance = moments(layer, x)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    sampling = "weights" if estimator == "weights" else "local"
    found = run(model, x, num_samples=SAMPLES, sampling=sampling)
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


def line(rate=0.5):
    """One weight, which is 1, and its samples by `predict`."""
    layer = keras_vdrop.VariationalDense(
        1, kernel_initializer="ones", rate=rate
    )
    return keras.Sequential([keras.Input((1,)), layer])


def test_local_noise_is_new_for_each_example_sample_and_batch():
    found = run(
        line(),
        np.ones((6, 1), "float32"),
        batch_size=2,
        num_samples=4,
        keep_samples=True,
        sampling="local",
    )
    assert len(np.unique(found.samples)) == 24


def test_a_sample_of_the_weights_is_one_for_all_examples_and_batches():
    found = run(
        line(),
        np.ones((6, 1), "float32"),
        batch_size=2,
        num_samples=4,
        keep_samples=True,
    )
    assert np.all(found.samples == found.samples[:, :1])
    assert len(np.unique(found.samples)) == 4


def test_a_sample_is_linear_where_the_model_is():
    """A function of x: twice the input is twice the output."""
    x = np.array([[1.0], [2.0], [-3.0]], "float32")
    samples = run(line(), x, keep_samples=True).samples[..., 0]
    np.testing.assert_allclose(samples, samples[:, :1] * x[:, 0], rtol=1e-5)


def test_a_sample_of_dropout_is_one_for_all_examples():
    model = keras.Sequential(
        [keras.Input((3,)), keras_vdrop.VariationalDropout(0.5)]
    )
    x = np.ones((4, 3), "float32")
    found = run(model, x, keep_samples=True, num_samples=8, batch_size=2)
    assert np.all(found.samples == found.samples[:, :1])
    assert len(np.unique(found.samples[:, 0])) == 24
    np.testing.assert_array_equal(model.predict(x, verbose=0), x)


def test_layers_have_their_own_samples():
    layers = [
        keras_vdrop.VariationalDense(1, kernel_initializer="ones", rate=0.5)
        for _ in range(3)
    ]
    x = keras.Input((1,))
    model = keras.Model(x, [layer(x) for layer in layers])
    ones = np.ones((1, 1), "float32")
    for sampling in ("weights", "local"):
        found = run(model, ones, keep_samples=True, sampling=sampling)
        assert len(np.unique(np.stack(found.samples))) == 3 * 32


@pytest.mark.parametrize(
    "sampling, variance", [("weights", 0.0), ("local", 2.0)]
)
def test_shared_layer(sampling, variance):
    """Noise of its own for each call, or the same weights."""
    layer = keras_vdrop.VariationalDense(1, kernel_initializer="ones", rate=0.5)
    first, second = keras.Input((1,)), keras.Input((1,))
    outputs = layer(first) - layer(second)
    model = keras.Model([first, second], outputs)
    ones = np.ones((1, 1), "float32")
    found = run(model, [ones, ones], num_samples=SAMPLES, sampling=sampling)
    error = variance * np.sqrt(2 / SAMPLES)
    assert abs(found.std.item() ** 2 - variance) <= SIGMAS * error


def test_pooled_positions_do_not_average_the_noise_of_a_weight_out():
    """A mean over positions of one weight has the variance of that weight."""
    layer = keras_vdrop.VariationalConv1D(
        1, 1, kernel_initializer="ones", use_bias=False, rate=0.5
    )
    model = keras.Sequential(
        [keras.Input((16, 1)), layer, keras.layers.GlobalAveragePooling1D()]
    )
    x = np.ones((1, 16, 1), "float32")
    for sampling, variance in (("weights", 1.0), ("local", 1 / 16)):
        found = run(model, x, num_samples=SAMPLES, sampling=sampling)
        error = variance * np.sqrt(2 / SAMPLES)
        assert abs(found.std.item() ** 2 - variance) < SIGMAS * error


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


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_compiles_once(sampling):
    counting = Counting()
    model = keras.Sequential(
        [keras.Input((4,)), keras_vdrop.VariationalDense(2), counting]
    )
    run(model, inputs(), num_samples=3, sampling=sampling)
    before = counting.count
    model.layers[0].kernel.assign(np.ones((4, 2)))
    found = run(model, inputs(), num_samples=3, sampling=sampling)
    if keras.backend.backend() != "torch":  # which does not trace
        assert counting.count == before
    # And it sees new weights.
    layer, x = model.layers[0], inputs()
    sure = run(model, x, num_samples=3, sampling=sampling, keep_samples=True)
    np.testing.assert_allclose(found.mean, sure.mean, rtol=1e-5)
    assert np.all(layer.kernel.numpy() == 1)


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


class Shifted(keras.Model):
    """A functional model with a call of its own."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) + 100


class Doubled(keras.Model):
    def predict_step(self, *arguments):
        found = super().predict_step(*arguments)
        if keras.backend.backend() == "jax":
            return 2 * found[0], found[1]
        return 2 * found


def nearly_sure(cls=keras.Model, **arguments):
    x = keras.Input((4,))
    layer = keras_vdrop.VariationalDense(3, rate=1e-12, name="noisy")
    model = cls(x, layer(keras.layers.Dense(5)(x)))
    model.compile(loss="mse", **arguments)
    return model


def check_sure(model, x):
    for sampling in ("weights", "local"):
        found = run(model, x, num_samples=3, sampling=sampling, batch_size=2)
        expected = model.predict(x, verbose=0, batch_size=2)
        np.testing.assert_allclose(found.mean, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cls", [Shifted, Doubled])
def test_runs_the_code_of_the_model(cls):
    check_sure(nearly_sure(cls), inputs())


def test_run_eagerly_and_changes_afterwards():
    model = nearly_sure(run_eagerly=True)
    check_sure(model, inputs())
    model.get_layer("noisy").activation = keras.activations.sigmoid
    check_sure(model, inputs())
    grown = keras.Sequential([keras.Input((4,)), *model.layers[1:]])
    check_sure(grown, inputs())
    grown.add(keras.layers.Rescaling(10.0))
    grown.compile()
    check_sure(grown, inputs())


def test_another_estimator_takes_effect():
    layer = keras_vdrop.VariationalDense(3, rate=0.4)
    model = keras.Sequential([keras.Input((4,)), layer])
    x = np.ones((2, 4), "float32")

    def rows():
        found = run(
            model, x, num_samples=3, keep_samples=True, sampling="local"
        )
        return np.moveaxis(found.samples, 1, 0)

    first, second = rows()
    assert not np.any(first == second)
    layer.estimator = "batch"  # one sample of the weights for all examples
    first, second = rows()
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_states_of_recurrent_layers():
    model = keras.Sequential(
        [
            keras.Input((3, 2), batch_size=2),
            keras.layers.LSTM(4, stateful=True),
            keras_vdrop.VariationalDense(1, rate=1e-12),
        ]
    )
    x = np.random.default_rng(0).normal(size=(6, 3, 2)).astype("float32")
    model.predict(x[:2], verbose=0)  # so that the state is not zero
    variables = [*model.variables, *model.layers[0].states]
    before = [np.array(v) for v in variables]
    for data, batch_size in ((x, 2), (Split(x), None)):
        for sampling in ("weights", "local"):
            found = run(
                model,
                data,
                num_samples=3,
                batch_size=batch_size,
                sampling=sampling,
            )
            for variable, value in zip(variables, before, strict=True):
                np.testing.assert_array_equal(np.array(variable), value)
            expected = model.predict(x, verbose=0, batch_size=2)
            np.testing.assert_allclose(
                found.mean, expected, rtol=1e-3, atol=1e-4
            )
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)


class Split(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (self.x[2 * index : 2 * index + 2],)


def test_parts_of_a_data_set(monkeypatch):
    model, x = classifier(), inputs(6)
    whole = run(model, x, batch_size=2, keep_samples=True)
    monkeypatch.setattr(keras_vdrop.models.parts, "LARGEST", 1)
    found = run(model, Split(x), keep_samples=True, quantiles=[0.5])
    for name in ("mean", "std", "samples"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(whole, name), rtol=1e-4, atol=1e-6
        )
    local = run(line(), Split(np.ones((6, 1), "float32")), sampling="local")
    assert len(np.unique(local.mean)) == 6


def test_data_is_read_once():
    def batches():
        for start in (0, 2, 4):
            yield (inputs(6)[start : start + 2],)

    model = classifier()
    found = run(model, batches(), num_samples=3)
    expected = run(model, inputs(6), num_samples=3, batch_size=2)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-6)


class Broken(keras.utils.PyDataset):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 2:
            raise self.error
        return (inputs(),)


class Interrupting(keras.layers.Layer):
    """Fails after some calls."""

    left = None

    def call(self, inputs):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return inputs


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_interrupted(sampling):
    model = keras.Sequential(
        [keras.Input((4,)), keras_vdrop.VariationalDense(3), Interrupting()]
    )
    model.compile(run_eagerly=True)
    before = [np.array(v) for v in model.variables]
    expected = model.predict(inputs(), verbose=0)
    for left in (0, 3):
        model.layers[-1].left = left
        with pytest.raises(KeyboardInterrupt):
            run(model, inputs(), sampling=sampling)
        model.layers[-1].left = None
        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(np.array(variable), value)
        found = model.predict(inputs(), verbose=0)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(RuntimeError, match="broken"):
        run(model, Broken(RuntimeError("broken")), sampling=sampling)
    np.testing.assert_array_equal(model.predict(inputs(), verbose=0), expected)


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_threads(sampling):
    model = classifier(num_examples=5)
    expected = run(model, inputs(), num_samples=5, sampling=sampling)
    before = [np.array(v) for v in model.variables]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(
                lambda _: run(
                    model, inputs(), num_samples=5, sampling=sampling
                ),
                range(8),
            )
        )
    for predictions in found:
        np.testing.assert_allclose(
            predictions.mean, expected.mean, rtol=1e-5, atol=1e-6
        )
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), value)
    model.compile("sgd", "mse")
    model.fit(inputs(), np.ones((5, 3)), verbose=0)


def test_one_probability_for_each_example():
    """Outputs of the shape `(batch,)`: no softmax over the examples."""
    layer = keras_vdrop.VariationalDense(1)
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Reshape(())(layer(x)))
    flat = run(model, inputs(), from_logits=True)
    column = run(keras.Model(x, layer.output), inputs(), from_logits=True)
    np.testing.assert_allclose(flat.mean, column.mean[:, 0], rtol=1e-5)
    np.testing.assert_allclose(flat.entropy, column.entropy, rtol=1e-5)


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
        ({"sampling": "both"}, "sampling"),
    ],
)
def test_bad_arguments(arguments, told):
    arguments = {"model": classifier(), "x": inputs(), **arguments}
    with pytest.raises(ValueError, match=told):
        predict(**arguments)
