"""Weights that are pruned while the others go on training."""

import keras
import numpy as np
import pytest
from backends import gradients
from cases import KERNEL_LAYERS
from cases import ON_TENSORFLOW
from cases import POSTERIORS
from cases import alpha_of_weights
from cases import build
from cases import draw
from cases import every_kernel_layer
from cases import twin

import keras_vdrop

INDEPENDENT = {k: v for k, v in POSTERIORS.items() if "correlated" not in k}
SPARSE = {
    "granularity": "weight",
    "parameterization": "additive",
    "kl": "exact",
    "max_alpha": None,
}


def pruned_layer(case, threshold=-1.0, **arguments):
    """A layer without its most noisy weights, and which these are."""
    layer, inputs = build(case, kl="exact", max_alpha=None, **arguments)
    # Of a model, so that it is pruned as a user does it.
    model = keras.Sequential([keras.Input(KERNEL_LAYERS[case][2]), layer])
    out = np.log(alpha_of_weights(layer)) > threshold
    keras_vdrop.prune(model, threshold)
    return layer, inputs, out


def network(**arguments):
    arguments = {**SPARSE, **arguments}
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDense(5, activation="tanh", **arguments),
            keras_vdrop.VariationalDense(2, **arguments),
        ]
    )
    keras_vdrop.set_num_examples(model, 64)
    for seed, layer in enumerate(model.layers):
        log_alpha = np.random.default_rng(seed).uniform(
            -4, 8, layer.kernel.shape
        )
        kernel = keras.ops.convert_to_numpy(layer.kernel)
        layer.log_variance.assign(log_alpha + np.log(kernel**2))
    return model


def kernels(model):
    return [keras.ops.convert_to_numpy(x.kernel) for x in model.layers]


def data():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(64, 6)).astype("float32")
    return x, x[:, :2] - x[:, 2:4]


def train(model, optimizer=None, epochs=3):
    model.compile(optimizer or keras.optimizers.Adam(0.05), "mse")
    return model.fit(*data(), epochs=epochs, batch_size=16, verbose=0)


@every_kernel_layer
@pytest.mark.parametrize("posterior", INDEPENDENT.values(), ids=INDEPENDENT)
def test_pruned_weights_are_not_there(case, posterior):
    """The outputs are those of the kept weights, by Keras's own layer."""
    if case == "conv2d_transpose" and ON_TENSORFLOW:
        pytest.skip("TensorFlow on a CPU fails for batches of thousands.")
    layer, inputs, out = pruned_layer(case, **posterior)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    assert not kernel[out].any() and kernel[~out].all()
    # Means that something moved have no effect on the training.
    plain, squares = twin(layer), twin(layer, bias=False)
    layer.kernel.assign(np.where(out, 3.0, kernel))
    log_alpha = keras.ops.convert_to_numpy(layer.kernel_noise.log_alpha())
    assert np.array_equal(np.isinf(log_alpha).any(), out.any())
    if layer.parameterization == "multiplicative":
        alpha = np.where(out, 0, alpha_of_weights(layer))
        squares.kernel.assign(alpha * kernel**2)
    else:
        variance = np.exp(keras.ops.convert_to_numpy(layer.log_variance))
        squares.kernel.assign(np.where(out, 0, variance))
    count = 3000
    found = draw(layer, inputs, count)
    mean = keras.ops.convert_to_numpy(plain(inputs))
    variance = keras.ops.convert_to_numpy(squares(inputs**2))
    error = 5 * np.sqrt(variance / count) + 1e-5
    assert np.all(np.abs(found.mean(axis=0) - mean) < error)
    # The variance of a variance of normal numbers is 2 / n of its square.
    error = 6 * np.sqrt(2 / count) * variance + 1e-10
    assert np.all(np.abs(found.var(axis=0) - variance) < error)


@pytest.mark.parametrize("estimator", ["local", "flipout", "batch", "example"])
@pytest.mark.parametrize("posterior", ["weight", "additive", "output"], ids=str)
def test_no_gradient(estimator, posterior):
    layer, inputs, out = pruned_layer(
        "dense", estimator=estimator, **INDEPENDENT[posterior]
    )
    assert out.any() and not out.all()
    by_name = dict(
        zip(
            [x.name for x in layer.trainable_variables],
            gradients(keras.ops.sum, layer, inputs)[2:],
            strict=True,
        )
    )
    noise = by_name.get("log_variance", by_name.get("log_alpha"))
    pruned = keras.ops.convert_to_numpy(layer.kernel_noise.pruned)
    assert not by_name["kernel"][out].any() and by_name["kernel"][~out].all()
    assert not noise[pruned].any() and noise[~pruned].all()


@pytest.mark.parametrize("posterior", INDEPENDENT.values(), ids=INDEPENDENT)
def test_kl_counts_kept_weights(posterior):
    layer, _ = build("dense", kl="exact", max_alpha=None, **posterior)
    alpha = keras.ops.convert_to_tensor(
        alpha_of_weights(layer).astype("float32")
    )
    each = keras_vdrop.divergence.exact(keras.ops.log(alpha))
    each = keras.ops.convert_to_numpy(each)
    layer, _, out = pruned_layer("dense", **posterior)
    np.testing.assert_allclose(layer.kl(), each[~out].sum(), rtol=1e-4)


class Push(keras.regularizers.Regularizer):
    """Has a gradient at zero too."""

    def __call__(self, x):
        return 0.1 * keras.ops.sum(x)


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "lamb": lambda: keras.optimizers.Lamb(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "average": lambda: keras.optimizers.SGD(
        0.05, momentum=0.9, use_ema=True, ema_overwrite_frequency=3
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stays_at_zero(name):
    """Also with the momentum of before, and with other gradients."""
    # Averages are of the weights before the constraint.
    push = None if name == "average" else Push()
    model = network(kernel_regularizer=push)
    train(model, OPTIMIZERS[name]())
    for layer in model.layers:
        kernel, found = layer.get_weights()[0], layer.log_variance
        found = keras.ops.convert_to_numpy(found)
        layer.log_variance.assign(np.where(kernel > 0.1, 9.0, found))
    keras_vdrop.prune(model)
    before = kernels(model)
    if name == "average":  # That of the pruned weights too.
        model.compile(OPTIMIZERS[name](), "mse")
    loss = model.fit(*data(), epochs=3, batch_size=16, verbose=0)
    assert np.isfinite(loss.history["loss"]).all()
    for old, new in zip(before, kernels(model), strict=True):
        assert (old == 0).any() and not (old == 0).all()
        np.testing.assert_array_equal(new[old == 0], 0)
        assert np.all(new[old != 0] != old[old != 0])


def test_batches_of_several_sizes():
    """Each compiles its own step, after the first has changed the model."""
    model = network()
    keras_vdrop.prune(model, 0.0)
    out = [kernel == 0 for kernel in kernels(model)]
    model.compile("adam", "mse")
    x, y = np.ones((50, 6)), np.ones((50, 2))
    model.fit(x, y, batch_size=20, epochs=2, verbose=0)
    for kernel, removed in zip(kernels(model), out, strict=True):
        assert removed.any()
        np.testing.assert_array_equal(kernel == 0, removed)


def test_optimizers_of_others():
    model = network()
    keras_vdrop.prune(model)
    before = kernels(model)
    x, y = map(keras.ops.convert_to_tensor, data())
    if keras.backend.backend() == "torch":
        import torch

        values = [x.value for x in model.trainable_variables]
        optimizer = torch.optim.AdamW(values, 0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss = ((model(x, training=True) - y) ** 2).mean()
            (loss + sum(model.losses)).backward()
            optimizer.step()
    elif keras.backend.backend() == "jax":
        jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
        state = [x.value for x in model.non_trainable_variables]

        def objective(values):
            outputs, _, losses = model.stateless_call(
                values, state, x, training=True, return_losses=True
            )
            return ((outputs - y) ** 2).mean() + sum(losses)

        optimizer = optax.adamw(0.05)
        values = [x.value for x in model.trainable_variables]
        moments = optimizer.init(values)
        for _ in range(5):
            steps, moments = optimizer.update(
                jax.grad(objective)(values), moments, values
            )
            values = optax.apply_updates(values, steps)
        for variable, value in zip(
            model.trainable_variables, values, strict=True
        ):
            variable.assign(value)
    else:
        pytest.skip("Its optimizers are those of Keras.")
    for old, new in zip(before, kernels(model), strict=True):
        np.testing.assert_array_equal(new[old == 0], 0)
        assert np.all(new[old != 0] != old[old != 0])


def test_files_know_what_was_pruned(tmp_path):
    model = network()
    keras_vdrop.prune(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    other = network()
    other.load_weights(tmp_path / "model.weights.h5")
    for copy in (loaded, other):
        for a, b in zip(model.layers, copy.layers, strict=True):
            assert a.kl() == b.kl()
        train(copy)
        for old, new in zip(kernels(model), kernels(copy), strict=True):
            np.testing.assert_array_equal(new[old == 0], 0)
    # Weights of a model that was not pruned: nothing is pruned any more.
    whole = network()
    whole.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert [x.kl() for x in other.layers] == [x.kl() for x in whole.layers]
    assert all(kernel.all() for kernel in kernels(other))


def test_conversions():
    model = network()
    keras_vdrop.prune(model)
    before = kernels(model)
    for layer in model.layers:
        # As the old momentum of an optimizer of torch does.
        layer.kernel.assign(layer.kernel + 0.5)
    plain = keras_vdrop.to_deterministic(model)
    for old, new in zip(before, kernels(plain), strict=True):
        np.testing.assert_array_equal(new == 0, old == 0)
    same = keras_vdrop.to_variational(
        keras.Sequential(
            [
                keras.Input((6,)),
                model,
                keras.layers.Dense(2),
            ]
        ),
        verbose=0,
        **SPARSE,
    )
    for a, b in zip(
        model.layers, keras_vdrop.variational_layers(same), strict=False
    ):
        assert a.kl() == b.kl()


def test_samples_and_summary():
    model = network()
    keras_vdrop.prune(model, -9.0)
    x, _ = data()
    for mode in ("weights", "local"):
        found = keras_vdrop.predict(model, x, num_samples=3, sampling=mode)
        np.testing.assert_array_equal(found.std, 0)
    lines = []
    keras_vdrop.summary(model, print_fn=lines.append)
    ends = [line.split()[-3:] for line in lines]
    assert ["0.0", "0.000", "100.0%"] in ends


def test_pruned_again():
    model = network()
    keras_vdrop.prune(model, 4.0)
    first = [x != 0 for x in kernels(model)]
    keras_vdrop.prune(model, 2.0)
    for before, now in zip(first, kernels(model), strict=True):
        assert (now != 0).sum() < before.sum()
        assert not now[~before].any()


@pytest.mark.parametrize(
    "arguments, what",
    [
        ({"max_alpha": 1.0}, "max_alpha"),
        ({"noise": "correlated", "granularity": "input"}, "noise"),
        ({"kl": "normal"}, "kl"),
    ],
)
def test_refused(arguments, what):
    given = {"granularity": "weight", "kl": "exact", "max_alpha": None}
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDense(5, **given),
            keras_vdrop.VariationalDense(
                2, name="last", **{**given, **arguments}
            ),
        ]
    )
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"`{what}`.*'last'.*Received: "):
        keras_vdrop.prune(model, -9.0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    # Nothing to prune there, and so nothing to refuse.
    keras_vdrop.prune(model, 9.0)
    with pytest.raises(ValueError, match="`threshold`"):
        keras_vdrop.prune(model, np.inf)
    with pytest.raises(ValueError, match="a keras.Model with a variational"):
        keras_vdrop.prune(keras.Sequential([keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="a built model"):
        keras_vdrop.prune(keras.Sequential([keras_vdrop.VariationalDense(2)]))
