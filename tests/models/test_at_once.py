"""Samples by one program, as on accelerators, against one by one."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop import backend
from keras_vdrop.models import at_once

SAMPLES = 5
SIGMAS = 5


@pytest.fixture
def accelerated(monkeypatch):
    """Samples that were drawn together, and what could not be."""
    found = []
    monkeypatch.setattr(backend, "is_accelerator", lambda variable: True)
    for cls in (at_once.Vectorized, at_once.Folded):
        monkeypatch.setattr(cls, "predict", told(cls.predict, found))
    return found


def told(predict, found):
    def predict_and_tell(self, *arguments):
        try:
            samples = predict(self, *arguments)
        except Exception as error:
            found.append(error)
            raise
        found.append((type(self).__name__, len(samples)))
        return samples

    return predict_and_tell


def inputs(shape, rows=7):
    generator = np.random.default_rng(0)
    return generator.integers(0, 20, (rows, *shape)).astype("float32")


def dense():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDense(8, activation="relu", rate=0.3),
            keras.layers.BatchNormalization(),
            keras_vdrop.VariationalDropout(),
            keras_vdrop.VariationalDense(3, noise="independent"),
        ]
    )


def narrow():
    """Kernels with axes of size 1."""
    x = keras.Input((1,))
    y = keras_vdrop.VariationalDense(2, rate=0.3)(x)
    return keras.Model(x, keras_vdrop.VariationalDense(1)(y))


def convolutional():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras_vdrop.VariationalConv2D(4, 3, activation="relu", rate=0.3),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras_vdrop.VariationalDense(3),
        ]
    )


def recurrent():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras_vdrop.VariationalEmbedding(20, 4),
            keras_vdrop.VariationalLSTM(6, return_sequences=True),
            keras.layers.LayerNormalization(),
            keras_vdrop.VariationalGRU(3, rate=0.3),
        ]
    )


def attention():
    x = keras.Input((4, 6))
    layer = keras_vdrop.VariationalMultiHeadAttention(2, 3, rate=0.3)
    return keras.Model(x, {"a": layer(x, x), "b": keras.layers.Dense(2)(x)})


MODELS = {
    "dense": (dense, (6,)),
    "narrow": (narrow, (1,)),
    "convolutional": (convolutional, (8, 8, 2)),
    "recurrent": (recurrent, (5,)),
    "attention": (attention, (4, 6)),
}


def predict(model, x, **arguments):
    return keras_vdrop.predict(
        model,
        x,
        **{
            "num_samples": SAMPLES,
            "batch_size": 4,
            "seed": 1,
            "keep_samples": True,
            "verbose": 0,
            **arguments,
        },
    )


# Keras's own convolutions, and those of TensorFlow for one kernel each.
LOOPS = {("torch", "convolutional"), ("tensorflow", "convolutional")}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_one_by_one(name, request):
    build, shape = MODELS[name]
    model, x = build(), inputs(shape)
    expected = predict(model, x)
    weights = model.get_weights()
    found = request.getfixturevalue("accelerated")
    samples = predict(model, x)
    for one, other in zip(
        keras.tree.flatten(expected.samples),
        keras.tree.flatten(samples.samples),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    if (keras.backend.backend(), name) not in LOOPS:
        assert found == [("Vectorized", SAMPLES)]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (1, 1), (3, 2)])
def test_samples_have_an_axis_of_their_own(shape, count):
    layer = keras_vdrop.VariationalDense(shape[1])
    layer.build((None, shape[0]))
    (weight,) = layer.random_weights
    words = [[number, 7, 0] for number in range(count)]
    states = backend.states_of(words, backend.SEED_DTYPE)
    assert tuple(weight.samples(states).shape) == (count, *shape)


@pytest.mark.parametrize("name", MODELS)
def test_local_noise(name, accelerated):
    build, shape = MODELS[name]
    model, x = build(), inputs(shape)
    # Rows that are equal have noise of their own, in one batch or in two.
    x[:] = x[:1]
    samples = keras.tree.flatten(predict(model, x, sampling="local").samples)[0]
    flat = samples.reshape(SAMPLES * len(x), -1)
    assert len(np.unique(flat, axis=0)) == len(flat)
    if keras.backend.backend() == "jax":
        assert accelerated == [("Vectorized", SAMPLES)]
    elif name != "attention":
        assert accelerated == [("Folded", SAMPLES)]


def test_local_noise_has_the_moments_of_a_linear_layer(accelerated):
    layer = keras_vdrop.VariationalDense(3, rate=0.2, noise="correlated")
    model = keras.Sequential([keras.Input((6,)), layer])
    x = inputs((6,))
    count = 2000
    found = predict(model, x, sampling="local", num_samples=count)
    assert accelerated
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    deviation = np.sqrt(x**2 @ kernel**2 * 0.25)
    np.testing.assert_array_less(
        np.abs(found.mean - x @ kernel), SIGMAS * deviation / np.sqrt(count)
    )
    # The relative error of a deviation is 1 / sqrt(2 * count).
    np.testing.assert_allclose(
        found.std, deviation, rtol=SIGMAS / np.sqrt(2 * count)
    )


def test_as_many_as_fit(monkeypatch, accelerated):
    model, x = dense(), inputs((6,))
    whole = predict(model, x, num_samples=8)
    monkeypatch.setattr(at_once, "LARGEST", 3000)
    samples = predict(model, x, num_samples=8)
    np.testing.assert_allclose(
        samples.samples, whole.samples, rtol=1e-4, atol=1e-5
    )
    assert accelerated[0] == ("Vectorized", 8)
    numbers = [number for _, number in accelerated[1:]]
    assert sum(numbers) == 8 and len(numbers) > 1
    assert max(numbers) - min(numbers) <= 1


def test_outputs_of_all_examples_fit_on_the_host(monkeypatch, accelerated):
    model, x = dense(), inputs((6,), rows=100)
    # All outputs of one sample take 1,200 bytes, and a batch far fewer.
    monkeypatch.setattr(at_once, "LARGEST", 3600)
    predict(model, x, num_samples=9)
    assert [number for _, number in accelerated] == [3, 3, 3]


class Counting(keras.layers.Layer):
    """Its state changes from batch to batch."""

    def build(self, shape):
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x):
        self.count.assign(self.count + 1)
        return x + self.count


class Failing(keras.layers.Layer):
    def call(self, x):
        if getattr(self, "broken", False):
            raise ValueError("broken")
        return x


def test_a_state_that_changes_is_kept_one_by_one(request):
    model = keras.Sequential(
        [keras.Input((6,)), keras_vdrop.VariationalDense(3), Counting()]
    )
    x = inputs((6,))
    expected = predict(model, x)
    found = request.getfixturevalue("accelerated")
    samples = predict(model, x)
    np.testing.assert_array_equal(samples.samples, expected.samples)
    assert isinstance(found[0], Exception)
    predict(model, x)
    assert len(found) == 1
    assert int(model.layers[-1].count) == 0


def test_errors_of_the_model_come_through(accelerated):
    model = keras.Sequential(
        [keras.Input((6,)), keras_vdrop.VariationalDense(3), Failing()]
    )
    model.layers[-1].broken = True
    with pytest.raises(ValueError, match="broken"):
        predict(model, inputs((6,)))


class Own(keras.Model):
    def predict_on_batch(self, x):
        return super().predict_on_batch(x) + 1


def test_what_a_subclass_does_is_done(request):
    x = keras.Input((6,))
    model = Own(x, keras_vdrop.VariationalDense(3)(x))
    expected = predict(model, inputs((6,)))
    found = request.getfixturevalue("accelerated")
    samples = predict(model, inputs((6,)))
    np.testing.assert_array_equal(samples.samples, expected.samples)
    assert not found


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_new_weights_are_seen(sampling, accelerated):
    model, x = dense(), inputs((6,))
    before = predict(model, x, sampling=sampling).mean
    last = model.layers[-1]
    last.kernel.assign(0 * last.kernel)
    last.bias.assign(np.ones(3))
    after = predict(model, x, sampling=sampling)
    assert np.std(before) > 0
    np.testing.assert_array_equal(after.mean, 1.0)


def test_a_cpu_draws_one_by_one():
    assert not backend.is_accelerator(dense().variables[0])


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_interrupted(sampling, accelerated, monkeypatch):
    model, x = dense(), inputs((6,))
    weights = model.get_weights()

    def interrupt(*arguments, **options):
        raise Interrupt

    monkeypatch.setattr(at_once, "concatenate", interrupt)
    with pytest.raises(Interrupt):
        predict(model, x, sampling=sampling)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_named_inputs_and_several_outputs(request):
    x = {name: keras.Input((size,), name=name) for name, size in SIZES.items()}
    y = keras_vdrop.VariationalDense(4)(x["a"])
    y = keras.layers.Concatenate()([y, x["b"]])
    model = keras.Model(x, [keras_vdrop.VariationalDense(2)(y), y])
    data = {name: inputs((size,)) for name, size in SIZES.items()}
    expected = predict(model, data)
    found = request.getfixturevalue("accelerated")
    samples = predict(model, data)
    assert found == [("Vectorized", SAMPLES)]
    for one, other in zip(expected.samples, samples.samples, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


SIZES = {"a": 6, "b": 3}
