"""Noise on the weights of any layer."""

import keras
import numpy as np
import pytest
from backends import run_python

import keras_vdrop

SIGMAS = 5
X = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
to_numpy = keras.ops.convert_to_numpy


@keras.saving.register_keras_serializable(package="test_variational")
class Block(keras.Layer):
    """Sublayers built by the first call, state, a seed, and a loss."""

    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.first = keras.layers.Dense(units, name="first")
        self.norm = keras.layers.BatchNormalization(name="norm", momentum=0.5)
        self.dropout = keras.layers.Dropout(0.5, seed=1)
        self.last = keras.layers.Dense(2, name="last")

    def call(self, x, training=None):
        x = self.norm(self.first(x), training=training)
        self.add_loss(0.25 * keras.ops.mean(x**2) + 1.0)
        return self.last(self.dropout(x, training=training))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="test_variational")
class TwoTensors(keras.Layer):
    """Two tensors, a switch, and weights with names of its own."""

    def build(self, x_shape, other_shape):
        self.left = self.add_weight(shape=(x_shape[-1], 2), name="left")
        self.right = self.add_weight(shape=(other_shape[-1], 2), name="right")
        self.scale = self.add_weight(shape=(2,), name="scale")

    def call(self, x, other, negative=False):
        found = x @ self.left + other @ self.right
        return self.scale * (-found if negative else found)


def test_moments():
    """Samples of the weights of a plain layer, against the closed form."""
    layer = keras_vdrop.Variational(
        keras.layers.Dense(2, bias_initializer="ones"),
        granularity="weight",
        seed=1,
    )
    layer.build((None, 5))
    log_alpha = np.random.default_rng(1).uniform(-2, 0, (5, 2))
    layer.log_alpha.assign(log_alpha)
    count = 400
    drawn = np.stack(
        [to_numpy(layer(X[:1], training=True))[0] for _ in range(count)]
    )
    kernel = to_numpy(layer.layer.kernel)
    mean = X[0] @ kernel + 1
    variance = X[0] ** 2 @ (np.exp(log_alpha) * kernel**2)
    np.testing.assert_array_less(
        np.abs(drawn.mean(0) - mean), SIGMAS * np.sqrt(variance / count)
    )
    np.testing.assert_array_less(
        np.abs(drawn.var(0) - variance), SIGMAS * variance * np.sqrt(2 / count)
    )
    # The examples of a minibatch share the sample.
    rows = to_numpy(layer(np.repeat(X[:1], 3, 0), training=True))
    np.testing.assert_allclose(rows[0], rows[2], rtol=1e-5)


def test_example_draws_for_each_example():
    layer = keras_vdrop.Variational(
        keras.layers.Dense(2), estimator="example", rate=0.3, seed=1
    )
    count = 1000
    drawn = to_numpy(layer(np.repeat(X[:1], count, 0), training=True))
    kernel = to_numpy(layer.layer.kernel)
    variance = 0.3 / 0.7 * X[0] ** 2 @ kernel**2
    np.testing.assert_array_less(
        np.abs(drawn.var(0) - variance), SIGMAS * variance * np.sqrt(2 / count)
    )


@pytest.mark.parametrize("parameterization", ["multiplicative", "additive"])
def test_kl(parameterization):
    layer = keras_vdrop.Variational(
        keras.layers.Dense(2),
        granularity="weight",
        parameterization=parameterization,
        rate=0.2,
        kl="ard",
        num_examples=10,
    )
    layer(X, training=True)
    expected = 5 * 2 * 0.5 * np.log1p(0.8 / 0.2)
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)
    (loss,) = layer.losses
    np.testing.assert_allclose(to_numpy(loss), expected / 10, rtol=1e-5)


def test_alpha_is_limited():
    layer = keras_vdrop.Variational(keras.layers.Dense(2), max_alpha=0.5)
    layer.build((None, 5))
    layer.log_alpha.assign(3.0)
    np.testing.assert_allclose(layer.dropout_rates(), 1 / 3, rtol=1e-5)


def test_inference_is_that_of_the_layer():
    block = Block()
    expected = to_numpy(block(X))
    layer = keras_vdrop.Variational(block)
    np.testing.assert_array_equal(to_numpy(layer(X)), expected)
    assert list(layer.dropout_rates()) == ["first/kernel", "last/kernel"]
    assert layer.name == block.name


def test_state_seeds_and_losses_in_fit():
    jit_compile = keras.backend.backend() != "torch"
    block = Block()
    layer = keras_vdrop.Variational(block, rate=0.2)
    model = keras.Sequential([keras.Input((5,)), layer])
    keras_vdrop.set_num_examples(model, 4)
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=jit_compile)
    seed = to_numpy(block.dropout.seed_generator.state)
    noise = [to_numpy(w.seed_state) for w in layer.random_weights]
    before = to_numpy(block.first.kernel)
    fitted = model.fit(X, np.zeros((4, 2)), epochs=2, verbose=0)
    # The means have not become samples.
    np.testing.assert_array_equal(to_numpy(block.first.kernel), before)
    # Of every step: dropout, both kernels, and the moving averages, which are
    # half their old value of one and half the variance of the batch, twice.
    assert np.any(to_numpy(block.dropout.seed_generator.state) != seed)
    for weight, start in zip(layer.random_weights, noise, strict=True):
        assert to_numpy(weight.seed_state)[-1] == start[-1] + 2
    moving = to_numpy(block.norm.moving_variance)
    assert np.all(moving != 1) and np.all(np.isfinite(moving))
    # `add_loss` counts once: normalized features have mean square 1.
    kl = sum(
        float(to_numpy(w.kl_weight)) * float(to_numpy(w.kl_tensor()))
        for w in layer.random_weights
    )
    assert kl > 1
    loss = fitted.history["loss"][-1]
    assert kl + 1.2 < loss
    mean_square = loss - kl - 1.25
    assert mean_square < 20


def test_add_loss_counts_once():
    layer = keras_vdrop.Variational(Block(), adaptive=False)
    layer(X, training=True)
    (loss,) = layer.losses
    np.testing.assert_allclose(to_numpy(loss), 1.25, rtol=1e-2)
    layer(X)
    assert len(layer.losses) == 1


def test_learns():
    layer = keras_vdrop.Variational(keras.layers.GRU(3), rate=0.2, seed=1)
    model = keras.Sequential([keras.Input((4, 5)), layer])
    keras_vdrop.set_num_examples(model, 4)
    model.compile("sgd", "mse")
    x = np.repeat(X[:, None], 4, axis=1)
    before = layer.dropout_rates()
    assert list(before) == ["gru_cell/kernel", "gru_cell/recurrent_kernel"]
    model.fit(x, np.ones((4, 3)), verbose=0)
    after = layer.dropout_rates()
    assert all(after[name] != before[name] for name in after)


def test_named_weights():
    def chosen(layer, weights):
        wrapped = keras_vdrop.Variational(layer, weights=weights)
        wrapped(X)
        return list(wrapped.weights_by_name())

    assert chosen(Block(), ["last/kernel"]) == ["last/kernel"]
    assert chosen(Block(), ["kernel"]) == ["first/kernel", "last/kernel"]
    assert chosen(keras.layers.Dense(2), ["bias", "kernel"]) == [
        "kernel",
        "bias",
    ]
    for bad in (["nothing"], ["ernel"], ["kernel", "nothing"]):
        with pytest.raises(ValueError, match="argument `weights`.*'kernel'"):
            chosen(keras.layers.Dense(2), bad)
    with pytest.raises(ValueError, match="argument `weights`.*gamma"):
        chosen(keras.layers.BatchNormalization(), None)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"noise": "correlated"}, "`noise`.*only the layer knows"),
        ({"granularity": "input"}, "`granularity`.*only the layer knows"),
        ({"granularity": "output"}, "`granularity`.*only the layer knows"),
        ({"estimator": "local"}, "`estimator`.*only the layer knows"),
        ({"estimator": "flipout"}, "`estimator`.*only the layer knows"),
        ({"weights": "kernel"}, "`weights`"),
        ({"weights": []}, "`weights`"),
        ({"rate": 2.0}, "`rate`"),
    ],
)
def test_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        keras_vdrop.Variational(keras.layers.Dense(2), **arguments)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match="a keras.Layer"):
        keras_vdrop.Variational("dense")
    with pytest.raises(ValueError, match="without variational layers"):
        keras_vdrop.Variational(keras_vdrop.VariationalDense(2))
    layer = keras_vdrop.Variational(Block(), estimator="example")
    with pytest.raises(ValueError, match="'batch' for a layer with a state"):
        layer(X)
    layer = keras_vdrop.Variational(TwoTensors(), estimator="example")
    layer(X, X)
    with pytest.raises(ValueError, match="several tensors"):
        layer(X, X, training=True)


def test_several_tensors():
    plain = TwoTensors()
    layer = keras_vdrop.Variational(plain, rate=0.2)
    found = to_numpy(layer(X, X[:, :3], negative=True))
    expected = to_numpy(plain(X, X[:, :3], negative=True))
    np.testing.assert_array_equal(found, expected)
    assert list(layer.dropout_rates()) == ["left", "right"]
    noisy = to_numpy(layer(X, X[:, :3], negative=True, training=True))
    assert np.all(noisy != found)


def test_a_mask_goes_through():
    layer = keras_vdrop.Variational(keras.layers.LSTM(2), seed=1)
    x = np.ones((1, 3, 2), "float32")
    masked = np.concatenate([x, np.zeros((1, 2, 2), "float32")], axis=1)
    model = keras.Sequential(
        [keras.Input((None, 2)), keras.layers.Masking(), layer]
    )
    np.testing.assert_allclose(
        to_numpy(model(masked)), to_numpy(layer(x)), rtol=1e-5
    )
    table = keras_vdrop.Variational(
        keras.layers.Embedding(4, 2, mask_zero=True)
    )
    behind = keras.Sequential([keras.Input((3,)), table, keras.layers.LSTM(2)])
    tokens = np.array([[1, 2, 0]])
    np.testing.assert_allclose(
        to_numpy(behind(tokens)), to_numpy(behind(tokens[:, :2])), rtol=1e-5
    )


def check_same(model, other, x):
    np.testing.assert_array_equal(
        other.predict(x, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_saved_loaded_and_converted(tmp_path, frozen):
    inputs = keras.Input((5,))
    layer = keras_vdrop.Variational(
        Block(), rate=0.2, granularity="weight", name="block"
    )
    outputs = keras.layers.Dense(2, name="head")(layer(inputs))
    model = keras.Model(inputs, outputs)
    keras_vdrop.set_num_examples(model, 4)
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((4, 2)), verbose=0)
    layer.layer.trainable = not frozen
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    check_same(model, loaded, X)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.get_layer("block").num_examples == 4
    loaded.fit(X, np.zeros((4, 2)), verbose=0)
    weights = tmp_path / "model.weights.h5"
    model.save_weights(weights)
    loaded.load_weights(weights)
    check_same(model, loaded, X)
    plain = keras_vdrop.to_deterministic(model)
    assert type(plain.get_layer("block")) is Block
    check_same(model, plain, X)
    # A model with a wrapper in it can be converted, and keeps the wrapper.
    again = keras_vdrop.to_variational(model, verbose=0)
    assert type(again.get_layer("head")) is keras_vdrop.VariationalDense
    wrapper = again.get_layer("block")
    assert type(wrapper.layer.first) is keras.layers.Dense
    check_same(model, again, X)
    for name, rates in layer.dropout_rates().items():
        np.testing.assert_array_equal(wrapper.dropout_rates()[name], rates)


def test_several_tensors_are_saved(tmp_path):
    first, second = keras.Input((5,)), keras.Input((3,))
    layer = keras_vdrop.Variational(TwoTensors(), weights=["right"])
    model = keras.Model([first, second], layer(first, second, negative=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    check_same(model, loaded, [X, X[:, :3]])
    check_same(model, keras_vdrop.to_deterministic(model), [X, X[:, :3]])


def test_pruned_and_sampled():
    layer = keras_vdrop.Variational(
        Block(), granularity="weight", max_alpha=None, kl="exact"
    )
    model = keras.Sequential([keras.Input((5,)), layer])
    log_alpha = np.full((5, 3), -1.0)
    log_alpha[2] = 5.0
    layer.log_alpha["first/kernel"].assign(log_alpha)
    plain = keras_vdrop.to_deterministic(model, prune=3.0, verbose=0)
    kernel = to_numpy(plain.layers[0].first.kernel)
    np.testing.assert_array_equal((kernel == 0).all(axis=1), np.arange(5) == 2)
    before = model.get_weights()
    found = keras_vdrop.predict(model, X, num_samples=8, seed=1, verbose=0)
    assert np.all(found.std > 0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    lines = []
    keras_vdrop.summary(model, print_fn=lines.append)
    rows = [line for line in lines if "kernel" in line and "%" in line]
    assert len(rows) == 2


def test_mixed_precision():
    layer = keras_vdrop.Variational(
        keras.layers.Dense(2, dtype="mixed_bfloat16"), rate=0.2
    )
    for training in (False, True):
        outputs = layer(X, training=training)
        assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"


NEW_PROCESS = """
import sys
import keras
import keras_vdrop

model = keras.saving.load_model(sys.argv[1])
layer = model.layers[0]
assert type(layer) is keras_vdrop.Variational
assert list(layer.dropout_rates()) == [
    "gru_cell/kernel", "gru_cell/recurrent_kernel"
]
"""


def test_loaded_in_a_new_process(tmp_path):
    layer = keras_vdrop.Variational(keras.layers.GRU(3))
    model = keras.Sequential([keras.Input((4, 5)), layer])
    model.save(tmp_path / "model.keras")
    run_python(NEW_PROCESS, tmp_path / "model.keras")


def test_a_shared_weight_has_one_noise():
    shared = keras.layers.Dense(5, name="shared")
    twice = keras.Sequential(
        [
            keras.Input((5,)),
            keras.Sequential([shared], name="first"),
            keras.Sequential([shared], name="second"),
        ]
    )
    layer = keras_vdrop.Variational(twice)
    layer(X, training=True)
    assert list(layer.weights_by_name()) == ["first/shared/kernel"]


def test_a_frozen_layer_has_the_same_noise_when_it_is_loaded(tmp_path):
    layer = keras_vdrop.Variational(keras.layers.Dense(2))
    model = keras.Sequential([keras.Input((5,)), layer])
    layer.layer.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    check_same(model, loaded, X)
    assert len(loaded.layers[0].random_weights) == 1
