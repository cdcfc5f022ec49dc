"""Variational layers inside everything else that Keras offers."""

import copy
import pickle

import keras
import numpy as np
import pytest

import keras_vdrop

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(64, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int32") + (X[:, 1] > 0)


def mlp(**arguments):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDropout(0.2, seed=1),
            keras_vdrop.VariationalDense(
                8, activation="relu", rate=0.2, seed=2, **arguments
            ),
            keras_vdrop.VariationalDense(3, seed=3),
        ]
    )
    keras_vdrop.set_num_examples(model, len(X))
    return model


def compiled(model, optimizer="adam", **arguments):
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **arguments,
    )
    return model


def fit(model, **arguments):
    return model.fit(X, Y, batch_size=16, verbose=0, **arguments)


def assert_same_weights(first, second):
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("jit_compile", [True, False, "auto"])
@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_learns_however_it_is_compiled(jit_compile, noise):
    optimizer = keras.optimizers.Adam(0.05)
    model = compiled(mlp(noise=noise), optimizer, jit_compile=jit_compile)
    before, _ = model.evaluate(X, Y, verbose=0)
    model.fit(X, Y, batch_size=64, epochs=6, verbose=0)
    after, _ = model.evaluate(X, Y, verbose=0)
    assert after < before - 0.05


def test_run_eagerly():
    history = fit(compiled(mlp(), run_eagerly=True), epochs=2).history
    assert np.all(np.isfinite(history["loss"]))


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras has it not on torch"
)
def test_steps_per_execution():
    history = fit(compiled(mlp(), steps_per_execution=2), epochs=2).history
    assert np.all(np.isfinite(history["loss"]))


def test_learns_rates_that_differ():
    """Informative inputs get low rates, the others stay at the bound."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(512, 6)).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras_vdrop.VariationalDropout(
                0.5, granularity="input", seed=1, rate_speed=1
            ),
            keras.layers.Dense(1),
        ]
    )
    keras_vdrop.set_num_examples(model, len(x))
    model.compile(keras.optimizers.Adam(0.03), "mse")
    model.fit(x, 3 * x[:, :1], epochs=20, verbose=0)
    rates = model.layers[0].dropout_rates()
    assert rates[0] < 0.05 and np.all(rates[1:] > 0.3)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras_vdrop.VariationalDense(8, activation="relu")
        self.top = keras_vdrop.VariationalDense(3)

    def call(self, inputs, training=None):
        return self.top(self.hidden(inputs, training=training))


def functional_with_a_shared_layer():
    shared = keras_vdrop.VariationalDense(6, activation="relu", rate=0.2)
    inputs = keras.Input((6,))
    hidden = keras.layers.add([shared(inputs), shared(shared(inputs))])
    return keras.Model(inputs, keras_vdrop.VariationalDense(3)(hidden))


def nested():
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.Sequential([mlp()])(inputs))


def time_distributed():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Reshape((2, 3)),
            keras.layers.TimeDistributed(keras_vdrop.VariationalDense(4)),
            keras.layers.Flatten(),
            keras_vdrop.VariationalDense(3),
        ]
    )


def convolutional():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Reshape((6, 1)),
            keras_vdrop.VariationalConv1D(
                4, 3, padding="causal", data_format="channels_last"
            ),
            keras.layers.BatchNormalization(),
            keras.layers.Reshape((6, 4, 1)),
            keras_vdrop.VariationalConv2D(4, 3, data_format="channels_last"),
            keras.layers.Reshape((4, 2, 4, 1)),
            keras_vdrop.VariationalConv3D(2, 2, data_format="channels_last"),
            keras.layers.Flatten(),
            keras_vdrop.VariationalDense(3),
        ]
    )


MODELS = [
    Subclassed,
    functional_with_a_shared_layer,
    nested,
    time_distributed,
    convolutional,
]
every_model = pytest.mark.parametrize("make", MODELS)
every_kind_of_copy = pytest.mark.parametrize(
    "make", [mlp, functional_with_a_shared_layer, nested]
)


@every_model
def test_kinds_of_models(make, tmp_path):
    model = make()
    keras_vdrop.set_num_examples(model, len(X))
    compiled(model)
    history = fit(model, epochs=2, validation_data=(X, Y)).history
    assert np.all(np.isfinite(history["loss"] + history["val_loss"]))
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    again = make()
    keras_vdrop.set_num_examples(again, len(X))
    again(X[:1])
    again.load_weights(path)
    assert_same_weights(model, again)


@pytest.mark.parametrize(
    "make_copy",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["deepcopy", "pickle"],
)
@every_kind_of_copy
def test_copies_are_whole_and_apart(make, make_copy):
    model = make()
    keras_vdrop.set_num_examples(model, 30, kl_downscale=2)
    model = compiled(model)
    fit(model)
    other = make_copy(model)
    assert_same_weights(model, other)
    before = model.get_weights()
    losses = [float(x) for x in map(keras.ops.convert_to_numpy, other.losses)]
    keras_vdrop.set_num_examples(model, 60)
    again = [float(x) for x in map(keras.ops.convert_to_numpy, other.losses)]
    assert losses == again and len(losses) > 0
    keras_vdrop.set_num_examples(model, 30, kl_downscale=2)
    fit(compiled(other))
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@every_kind_of_copy
def test_clone_model(make):
    model = make()
    keras_vdrop.set_num_examples(model, 30, kl_downscale=2)
    clone = keras.models.clone_model(model)
    assert len(clone.losses) == len(model.losses)
    clone.set_weights(model.get_weights())
    for ours, theirs in zip(model.losses, clone.losses, strict=True):
        assert float(keras.ops.convert_to_numpy(ours)) == float(
            keras.ops.convert_to_numpy(theirs)
        )
    fit(compiled(clone))


def test_masking_is_that_of_the_keras_layer():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    for variational, plain in [
        (keras_vdrop.VariationalDense(4), keras.layers.Dense(4)),
        (keras_vdrop.VariationalDropout(), keras.layers.GaussianDropout(0.5)),
    ]:
        masks = []
        for layer in (variational, plain):
            embedded = keras.layers.Embedding(5, 4, mask_zero=True)(ids)
            outputs = layer(embedded, training=True)
            masks.append(keras.ops.convert_to_numpy(outputs._keras_mask))
        np.testing.assert_array_equal(*masks)
    assert not keras_vdrop.VariationalConv1D(4, 2).supports_masking


def test_constraints_and_regularizers_of_the_keras_layer():
    model = mlp(
        kernel_constraint="non_neg",
        kernel_regularizer=keras.regularizers.L2(0.1),
        activity_regularizer="l2",
    )
    assert len(model.losses) == 4
    fit(compiled(model))
    assert model.layers[1].kernel.numpy().min() >= 0


def test_frozen_layer_keeps_its_weights_and_its_noise():
    model = mlp()
    model.layers[1].trainable = False
    *frozen, _ = model.layers[1].get_weights()
    fit(compiled(model))
    # The last is the state of the seed.
    *found, _ = model.layers[1].get_weights()
    for a, b in zip(found, frozen, strict=True):
        np.testing.assert_array_equal(a, b)
    first, second = (
        keras.ops.convert_to_numpy(model.layers[1](X, training=True))
        for _ in range(2)
    )
    assert np.any(first != second)


def test_weight_averaging_of_the_paper(tmp_path):
    model = compiled(mlp(), keras.optimizers.Adam(use_ema=True))
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", save_best_only=True
        ),
    ]
    history = fit(
        model, epochs=3, validation_data=(X, Y), callbacks=callbacks
    ).history
    assert np.all(np.isfinite(history["val_loss"]))
    best = keras.models.load_model(tmp_path / "best.keras")
    assert np.isclose(
        best.evaluate(X, Y, verbose=0)[0], min(history["val_loss"]), rtol=1e-5
    )


def test_the_usual_callbacks(tmp_path):
    pytest.importorskip("tensorflow", reason="The callback TensorBoard has it")
    model = compiled(mlp())
    rates = []
    callbacks = [
        keras.callbacks.EarlyStopping(
            patience=1, restore_best_weights=True, min_delta=10.0
        ),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "board", histogram_freq=1),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(
                model.get_weights()[0]
            )
        ),
    ]
    history = fit(
        model, epochs=5, validation_data=(X, Y), callbacks=callbacks
    ).history
    assert len(history["loss"]) == 2  # stopped early
    assert list((tmp_path / "board").rglob("events*"))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    # The weights of the first epoch are back, log alpha among them.
    np.testing.assert_array_equal(model.get_weights()[0], rates[0])
    assert np.any(rates[0] != rates[1])


def test_same_seed_same_run():
    def run():
        keras.utils.set_random_seed(3)
        model = compiled(mlp())
        fit(model, epochs=2)
        return model

    assert_same_weights(run(), run())


def test_time_distributed_noise_differs_between_steps():
    layer = keras.layers.TimeDistributed(keras_vdrop.VariationalDropout(seed=1))
    noise = keras.ops.convert_to_numpy(
        layer(np.ones((500, 2, 4), "float32"), training=True)
    )
    correlation = np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(noise[:, 0].size)


@pytest.mark.parametrize("mode", ["full", "activations", "larger_than"])
@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_rematerialized_noise_is_the_noise_of_the_forward_pass(mode, noise):
    def trained(mode):
        keras.utils.set_random_seed(3)
        with keras.RematScope(mode=mode, output_size_threshold=1):
            layer = keras_vdrop.VariationalDense(
                8, activation="tanh", noise=noise, seed=1
            )
        model = keras.Sequential(
            [keras.Input((6,)), layer, keras.layers.Dense(3)]
        )
        keras_vdrop.set_num_examples(model, len(X))
        fit(compiled(model, keras.optimizers.SGD(0.1)), shuffle=False)
        return model

    plain, rematerialized = trained(None), trained(mode)
    for a, b in zip(
        plain.get_weights(), rematerialized.get_weights(), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def remat_of_torch(function, x):
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        x = keras.ops.convert_to_tensor(x).requires_grad_()
        outputs = checkpoint(function, x, use_reentrant=reentrant)
        with pytest.raises(RuntimeError, match="drawn inside a call"):
            outputs.sum().backward()


def remat_of_jax(function, x):
    import jax

    with pytest.raises(RuntimeError, match="drawn inside a call"):
        jax.jit(jax.checkpoint(function))(x)


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow",
    reason="A function cannot tell that tensorflow computes it again.",
)
@pytest.mark.parametrize("arguments", [{}, {"noise": "correlated"}])
def test_a_call_that_is_computed_again_is_refused(arguments):
    layer = keras_vdrop.VariationalDense(3, num_examples=9, **arguments)
    layer.build((None, 6))
    refuses = {"jax": remat_of_jax, "torch": remat_of_torch}
    stateless = keras.backend.backend() == "jax"

    def call(x):
        if not stateless:
            return layer(x, training=True)
        variables = layer.variables
        values = [v + keras.ops.cast(0 * x[0, 0], v.dtype) for v in variables]

        def inner(x):
            return layer(x, training=True)

        import jax

        scope = list(zip(variables, values, strict=True))
        with keras.StatelessScope(scope):
            return jax.checkpoint(inner)(x)

    refuses[keras.backend.backend()](call, X[:4])


@pytest.mark.parametrize("functional", [True, False])
def test_a_model_that_is_rematerialized_as_a_whole_is_refused(functional):
    with keras.RematScope(mode="full"):
        layer = keras_vdrop.VariationalDense(3, num_examples=len(X))
        model = keras.Sequential([layer])
        if functional:
            inputs = keras.Input((6,))
            model = keras.Model(inputs, layer(inputs))
    # On tensorflow Keras itself refuses any such model.
    refused = {
        "tensorflow": (ValueError, "custom_gradient"),
        "jax": (RuntimeError, "drawn inside a call"),
        "torch": (RuntimeError, "drawn inside a call"),
    }
    error, message = refused[keras.backend.backend()]
    with pytest.raises(error, match=message):
        fit(compiled(model))
