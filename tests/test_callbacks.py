import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.callbacks import KLWarmup


def weights_in_training(callback, epochs, initial_epoch=0, position=0):
    """`kl_weight` times N in each epoch, and the KL's share of the loss."""
    layer = keras_vdrop.VariationalDense(3, rate=0.2)
    model = keras.Sequential([keras.Input((3,)), keras.Sequential([layer])])
    keras_vdrop.set_num_examples(model, 5, kl_downscale=2)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 3), "float32")
    full = float(keras.ops.convert_to_numpy(model.losses[0]))
    seen = []
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(
                model.get_weights()[-1] * 10
            )
        ),
        keras.callbacks.EarlyStopping(monitor="loss", patience=99),
    ]
    callbacks.insert(position, callback)
    history = model.fit(
        x,
        x,
        epochs=epochs,
        initial_epoch=initial_epoch,
        callbacks=callbacks,
        verbose=0,
    ).history
    return np.array(seen), np.array(history["loss"]) / full


@pytest.mark.parametrize("position", [0, 1, 2])
def test_warmup_is_linear_and_reaches_the_loss(position):
    weights, losses = weights_in_training(KLWarmup(4), 6, position=position)
    expected = [0, 0.25, 0.5, 0.75, 1, 1]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)


def test_warmup_from_a_start_and_resumed():
    weights, _ = weights_in_training(KLWarmup(2, start=0.5), 3)
    np.testing.assert_allclose(weights, [0.5, 0.75, 1], rtol=1e-6)
    weights, _ = weights_in_training(KLWarmup(4), 6, initial_epoch=3)
    np.testing.assert_allclose(weights, [0.75, 1, 1], rtol=1e-6)


def test_warmup_of_a_model_that_fit_builds():
    model = keras.Sequential([keras_vdrop.VariationalDense(3, rate=0.2)])
    keras_vdrop.set_num_examples(model, 5)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 3), "float32")
    history = model.fit(
        x, x, epochs=3, callbacks=[KLWarmup(2)], verbose=0
    ).history
    full = float(keras.ops.convert_to_numpy(model.losses[0]))
    np.testing.assert_allclose(
        np.array(history["loss"]) / full, [0, 0.5, 1], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    "arguments, argument",
    [
        ((0,), "epochs"),
        ((2.5,), "epochs"),
        ((2, -0.1), "start"),
        ((2, 2), "start"),
    ],
)
def test_bad_arguments_are_refused(arguments, argument):
    with pytest.raises(ValueError, match=f"argument `{argument}`"):
        KLWarmup(*arguments)
