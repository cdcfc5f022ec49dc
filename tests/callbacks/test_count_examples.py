"""N is what `fit` trains on, whatever the data are."""

import importlib.util
import warnings

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.callbacks import CountExamples
from keras_vdrop.callbacks import KLWarmup

X = np.ones((50, 3), "float32")
Y = np.ones((50, 1), "float32")


def make(built=True, **arguments):
    layer = keras_vdrop.VariationalDense(1, **arguments)
    inputs = [keras.Input((3,))] if built else []
    model = keras.Sequential([*inputs, layer])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model, layer


class Watch(keras.callbacks.Callback):
    """N and `1 / kl_weight` after each step."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(self.model.layers[-1].num_examples)


def fit(model, *data, callbacks=(), **arguments):
    watch = Watch()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Layer|`CountExamples")
        model.fit(
            *data,
            callbacks=[CountExamples(), *callbacks, watch],
            verbose=0,
            **arguments,
        )
    return watch.seen


def weight_of(layer):
    return float(keras.ops.convert_to_numpy(layer.kl_weight))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[10 * index : 10 * index + 10], Y[10 * index : 10 * index + 10]


def generator():
    for start in range(0, 50, 20):
        yield X[start : start + 20], Y[start : start + 20]


def tensorflow_dataset(has_length=True):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return (data if has_length else data.filter(lambda x, y: True)).batch(16)


def torch_loader():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    return torch.utils.data.DataLoader(data, batch_size=8)


DATA = {
    "arrays": ((X, Y), {"batch_size": 20}, 50),
    "validation_split": ((X, Y), {"validation_split": 0.2}, 40),
    "validation_data": ((X, Y), {"validation_data": (X[:7], Y[:7])}, 50),
    "whole": ((X, Y), {"batch_size": 64}, 50),
    "executions": ((X, Y), {"batch_size": 5}, 50),
    "PyDataset": ((Batches(),), {}, 50),
}


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("name", DATA)
def test_what_fit_trains_on(name, built):
    data, arguments, expected = DATA[name]
    model, layer = make(built, kl_downscale=2.0)
    if name == "executions":
        model.compile("sgd", "mse", steps_per_execution=4)
    fit(model, *data, epochs=2, **arguments)
    assert layer.num_examples == expected
    assert layer.kl_downscale == 2.0
    np.testing.assert_allclose(weight_of(layer), 0.5 / expected, rtol=1e-6)


def test_data_with_a_length_of_the_backends():
    for found in (tensorflow_dataset, torch_loader):
        name = "tensorflow" if found is tensorflow_dataset else "torch"
        if importlib.util.find_spec(name) is None:
            continue
        model, layer = make()
        fit(model, found())
        assert layer.num_examples == 50


def test_data_without_a_length():
    model, layer = make()
    seen = fit(model, generator())
    assert layer.num_examples == 50
    # Until then the KL hardly counts.
    assert set(seen) == {1_000_000}
    if importlib.util.find_spec("tensorflow"):
        model, layer = make()
        fit(model, tensorflow_dataset(has_length=False), epochs=2)
        assert layer.num_examples == 50


def test_from_the_first_step_on():
    model, layer = make()
    seen = fit(model, X, Y, batch_size=20, epochs=2)
    # 32 in a batch before the first, then to within a batch, then exactly.
    assert seen == [3 * 32, 60, 60, 50, 50, 50]


def test_the_loss_has_the_number():
    model, layer = make(rate=0.2)
    layer.bias.assign([1.0])
    history = []
    for _ in range(2):
        found = model.fit(
            0 * X, Y, callbacks=[CountExamples()], verbose=0, batch_size=50
        )
        history.append(found.history["loss"][0])
    # The first is of 32 examples, the second of 50.
    np.testing.assert_allclose(
        history, [layer.kl() / 32, layer.kl() / 32], rtol=1e-4
    )
    np.testing.assert_allclose(
        model.evaluate(0 * X, Y, verbose=0), layer.kl() / 50, rtol=1e-4
    )


def test_folds_of_a_built_model_are_counted_anew():
    model, layer = make()
    for size in (40, 30, 45):
        fit(model, X[:size], Y[:size])
        assert layer.num_examples == size


def test_a_number_that_was_given_stays_and_is_compared():
    model, layer = make(num_examples=60)
    with pytest.warns(UserWarning, match="num_examples=60.*has 40 examples"):
        model.fit(
            X,
            Y,
            batch_size=8,
            validation_split=0.2,
            callbacks=[CountExamples()],
            verbose=0,
        )
    assert layer.num_examples == 60
    keras_vdrop.set_num_examples(model, 47)
    fit(model, X, Y, batch_size=8)  # Within a batch.
    assert layer.num_examples == 47


def test_with_a_warm_up():
    model, layer = make()
    shares = []
    fit(
        model,
        X,
        Y,
        batch_size=20,
        epochs=3,
        callbacks=[
            KLWarmup(2),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: shares.append(50 * weight_of(layer))
            ),
        ],
    )
    np.testing.assert_allclose(shares, [0, 0.5, 1], rtol=1e-5)


def test_needs_variational_layers():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="variational layer"):
        model.fit(X, Y, callbacks=[CountExamples()], verbose=0)


@pytest.mark.parametrize(
    "number",
    [np.int32(7), np.array(7), np.uint8(7), keras.ops.convert_to_tensor(7)],
    ids=lambda number: type(number).__name__,
)
def test_integers_of_numpy_and_the_backend(number):
    layer = keras_vdrop.VariationalDense(2)
    keras_vdrop.set_num_examples(layer, number)
    assert layer.num_examples == 7 and type(layer.num_examples) is int


@pytest.mark.parametrize(
    "number",
    [
        np.float32(7),
        np.array([7, 8]),
        np.True_,
        True,
        "7",
        keras.ops.convert_to_tensor(7.0),
        keras.ops.convert_to_tensor(True),
    ],
)
def test_no_other_numbers(number):
    layer = keras_vdrop.VariationalDense(2)
    with pytest.raises(ValueError, match="`num_examples`.*positive integer"):
        keras_vdrop.set_num_examples(layer, number)


def test_cardinality():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(X)
    layer = keras_vdrop.VariationalDense(2)
    keras_vdrop.set_num_examples(layer, data.cardinality())
    assert layer.num_examples == 50
    for other in (data.repeat(), data.filter(lambda x: True)):
        with pytest.raises(ValueError, match="CountExamples"):
            keras_vdrop.set_num_examples(layer, other.cardinality())
    assert layer.num_examples == 50
