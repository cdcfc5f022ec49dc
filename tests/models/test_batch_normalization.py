"""Moving averages against numpy, for every way a model may be made."""

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.callbacks import BatchNormalizationUpdate

X = np.random.default_rng(0).normal(1.0, 2.0, size=(50, 3)).astype("float32")


def averages(layer):
    return [
        keras.ops.convert_to_numpy(v)
        for v in (layer.moving_mean, layer.moving_variance)
    ]


def noisy_model(**arguments):
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras_vdrop.VariationalDense(4, rate=0.4, num_examples=50),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(**arguments),
            keras.layers.Dense(2),
        ]
    )


def expected_of(model, x=X):
    kernel, bias = model.layers[0].kernel, model.layers[0].bias
    outputs = x @ keras.ops.convert_to_numpy(kernel)
    outputs = outputs + keras.ops.convert_to_numpy(bias)
    outputs = outputs.astype("float64")
    return outputs.mean(axis=0), outputs.var(axis=0)


class Dataset(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[index * 10 : index * 10 + 10], np.zeros(10)


@pytest.mark.parametrize(
    "x, options",
    [(X, {"batch_size": 16}), (X, {}), (Dataset(), {})],
    ids=["batches", "default", "dataset"],
)
@pytest.mark.parametrize("arguments", [{}, {"renorm": True}])
def test_moments_of_all_the_data_without_noise(x, options, arguments):
    model = noisy_model(**arguments)
    before = [v.numpy() for v in model.layers[2].trainable_variables]
    keras_vdrop.update_batch_normalization(model, x, **options)
    for found, expected in zip(
        averages(model.layers[2]), expected_of(model), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    after = [v.numpy() for v in model.layers[2].trainable_variables]
    np.testing.assert_array_equal(before, after)
    assert "call" not in vars(model.layers[2])


def test_steps_and_bad_arguments():
    model = noisy_model()
    keras_vdrop.update_batch_normalization(model, X, batch_size=10, steps=2)
    np.testing.assert_allclose(
        averages(model.layers[2])[0], expected_of(model, X[:20])[0], atol=1e-5
    )
    for arguments in ({"batch_size": 0}, {"steps": 1.5}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            keras_vdrop.update_batch_normalization(model, X, **arguments)
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for bad in (plain, keras.Sequential([keras.layers.Dense(2)]), "model"):
        with pytest.raises(ValueError, match="argument `model`"):
            keras_vdrop.update_batch_normalization(bad, X)


class Subclassed(keras.Model):
    """A layer that is called twice, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.unused = keras.layers.BatchNormalization()
        self.unused.build((None, 3))

    def call(self, inputs):
        return self.norm(inputs) + self.norm(10.0 + inputs)


def test_subclassed_models_and_shared_layers():
    model = Subclassed()
    model(X)
    unused = averages(model.unused)
    keras_vdrop.update_batch_normalization(model, X, batch_size=7)
    both = np.concatenate([X, 10.0 + X]).astype("float64")
    mean, variance = averages(model.norm)
    np.testing.assert_allclose(mean, both.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(variance, both.var(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(unused, averages(model.unused))


def test_positions_and_masks():
    inputs = keras.Input((5, 3))
    norm = keras.layers.BatchNormalization()
    model = keras.Model(inputs, norm(keras.layers.Masking()(inputs)))
    x = np.random.default_rng(1).normal(size=(8, 5, 3)).astype("float32")
    x[:, 3:] = 0.0
    keras_vdrop.update_batch_normalization(model, x, batch_size=3)
    rows = x[:, :3].reshape(-1, 3).astype("float64")
    mean, variance = averages(norm)
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(variance, rows.var(axis=0), rtol=1e-4)


def test_channels_first():
    norm = keras.layers.BatchNormalization(axis=1)
    model = keras.Sequential([keras.Input((3, 2, 2)), norm])
    x = np.random.default_rng(1).normal(size=(6, 3, 2, 2)).astype("float32")
    keras_vdrop.update_batch_normalization(model, x)
    mean, variance = averages(norm)
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(variance, x.var(axis=(0, 2, 3)), rtol=1e-4)


def test_frozen_layers_and_interrupts_change_nothing():
    model = noisy_model()
    norm = model.layers[2]
    before = averages(norm)

    def interrupted():
        yield X[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keras_vdrop.update_batch_normalization(model, interrupted())
    np.testing.assert_array_equal(before, averages(norm))
    assert "call" not in vars(norm)
    norm.trainable = False
    with pytest.raises(ValueError, match="trainable BatchNormalization"):
        keras_vdrop.update_batch_normalization(model, X)


def test_callback_updates_before_validation_and_at_the_end():
    model = noisy_model()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    y = np.zeros((len(X), 2), "float32")

    class Check(keras.callbacks.Callback):
        """Behind the other in the list."""

        count = 0

        def on_test_begin(self, logs=None):
            norm = self.model.layers[2]
            for found, expected in zip(
                averages(norm), expected_of(self.model), strict=True
            ):
                np.testing.assert_allclose(
                    found, expected, rtol=1e-4, atol=1e-5
                )
            self.count += 1

    check = Check()
    model.fit(
        X,
        y,
        epochs=2,
        validation_data=(X, y),
        callbacks=[BatchNormalizationUpdate(X), check],
        verbose=0,
    )
    assert check.count == 2
    check.on_test_begin()


def test_plain_model_with_its_own_averages():
    model = noisy_model()
    plain = keras_vdrop.to_deterministic(model, batch_normalization_data=X)
    for found, expected in zip(
        averages(plain.layers[2]), expected_of(model), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(averages(model.layers[2])[0], 0.0)
