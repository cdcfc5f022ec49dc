import csv
import sys

import keras
import numpy as np
import pytest
from backends import run_python

import keras_vdrop
from keras_vdrop.callbacks import DropoutRateLogger
from keras_vdrop.callbacks import KLWarmup


def weight_of(model):
    """`kl_weight` of the first layer, as it is during an epoch."""
    layer = keras_vdrop.variational_layers(model)[0]
    return float(keras.ops.convert_to_numpy(layer.kl_weight))


def weights_in_training(callback, epochs, initial_epoch=0, position=0):
    """`kl_weight` times N in each epoch, and the KL's share of the loss."""
    layer = keras_vdrop.VariationalDense(3, rate=0.2, noise="independent")
    model = keras.Sequential([keras.Input((3,)), keras.Sequential([layer])])
    keras_vdrop.set_num_examples(model, 5, kl_downscale=2)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 3), "float32")
    full = float(keras.ops.convert_to_numpy(model.losses[0]))
    seen = []
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(weight_of(model) * 10)
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


@pytest.mark.parametrize("warmup_first", [True, False])
def test_warmup_goes_on_from_a_backup(warmup_first, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    x = np.zeros((4, 3), "float32")

    def train(*more):
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras_vdrop.VariationalDense(3, rate=0.2, noise="independent"),
            ]
        )
        keras_vdrop.set_num_examples(model, 5)
        model.compile(keras.optimizers.SGD(0.0), "mse")
        full = float(keras.ops.convert_to_numpy(model.losses[0]))
        callbacks = [
            KLWarmup(4),
            keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        ]
        history = model.fit(
            x,
            x,
            epochs=6,
            callbacks=[*callbacks[:: 1 if warmup_first else -1], *more],
            verbose=0,
        )
        return np.array(history.history["loss"]) / full

    with pytest.raises(KeyboardInterrupt):
        train(Crash())
    np.testing.assert_allclose(train(), [0.5, 0.75, 1, 1], rtol=1e-4)


def test_warmup_of_a_model_that_fit_builds():
    model = keras.Sequential(
        [keras_vdrop.VariationalDense(3, rate=0.2, noise="independent")]
    )
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


LOG_ALPHA = np.array([-4.0, -2.0, -1.0, -0.5], "float32")


def still_model():
    """Two layers that do not learn, with KL = -log(alpha) / 2 a weight."""
    first = keras_vdrop.VariationalDense(
        3,
        granularity="input",
        kl="lower_bound",
        name="first",
        noise="independent",
    )
    fixed = keras_vdrop.VariationalDropout(0.3, adaptive=False, name="fixed")
    model = keras.Sequential([keras.Input((4,)), first, fixed])
    first.log_alpha.assign(LOG_ALPHA)
    keras_vdrop.set_num_examples(model, 10)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


STILL = {
    "first/rate": np.mean(1 / (1 + np.exp(-LOG_ALPHA))),
    "first/kl": 3 * 7.5 / 2,
    "first/above": 0.75,
    "fixed/rate": 0.3,
    "kl_term": 3 * 7.5 / 2 / 10,
}


def test_rates_in_history_csv_and_progress_bar(tmp_path, capsys):
    x = np.ones((4, 4), "float32")
    path = tmp_path / "log.csv"
    history = still_model().fit(
        x,
        x[:, :3],
        epochs=2,
        validation_data=(x, x[:, :3]),
        verbose=2,
        callbacks=[
            DropoutRateLogger(threshold=-3),
            keras.callbacks.CSVLogger(path),
        ],
    )
    shown = capsys.readouterr().out
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    expected = {"epoch", "loss", "nll", "val_loss", "val_nll", *STILL}
    assert set(rows[0]) == expected
    for key, value in STILL.items():
        np.testing.assert_allclose(history.history[key], value, rtol=1e-5)
        for row in rows:
            np.testing.assert_allclose(float(row[key]), value, rtol=1e-5)
        assert shown.count(f"{key}: {value:.4f}") == 2


def test_rates_are_those_of_the_moment():
    model = still_model()
    model.optimizer.learning_rate = 0.1
    x = np.ones((8, 4), "float32")
    rates = []
    history = model.fit(
        x,
        x[:, :3],
        batch_size=2,
        epochs=3,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: rates.append(
                    1 / (1 + np.exp(-model.get_weights()[2]))
                )
            ),
            DropoutRateLogger(),
        ],
    ).history
    found = history["first/rate"]
    assert len(set(found)) == 3
    np.testing.assert_allclose(found, np.mean(rates, axis=1), rtol=1e-5)
    np.testing.assert_allclose(
        found[-1], model.layers[0].dropout_rates().mean(), rtol=1e-6
    )


def learning_model(**arguments):
    """A model with more in its loss, and its likelihood among its metrics."""
    dense = {"kl": "lower_bound", "rate": 0.05, "use_bias": False}
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras_vdrop.VariationalDense(
                16,
                kernel_regularizer=keras.regularizers.L2(0.3),
                noise="independent",
                **dense,
            ),
            keras.Sequential(
                [keras_vdrop.VariationalDense(3, noise="independent", **dense)]
            ),
        ]
    )
    keras_vdrop.set_num_examples(model, 20)
    model.compile(
        keras.optimizers.Adam(0.02, use_ema=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalCrossentropy(
                from_logits=True, name="truth"
            )
        ],
        **arguments,
    )
    return model


class EveryBatch(keras.callbacks.Callback):
    """The mean over the batches of KL term and L2, of the learning model."""

    def on_epoch_begin(self, epoch, logs=None):
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        kernel, first, _, _, second, _ = self.model.get_weights()
        kl = -(64 * first + 48 * second) / 2
        weight = weight_of(self.model)
        self.seen.append([weight * kl, 0.3 * np.sum(kernel**2)])

    def on_epoch_end(self, epoch, logs=None):
        logs["true_kl_term"], logs["true_l2"] = np.mean(self.seen, axis=0)


class Counted(DropoutRateLogger):
    readings = 0

    def _regularization(self):
        self.readings += 1
        return super()._regularization()


def data_set(examples):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(examples, 4)).astype("float32")
    return x, np.argmax(x[:, :3], axis=1)


def test_likelihood_and_kl_apart_are_exact_in_a_short_epoch():
    x, y = data_set(60)
    history = (
        learning_model()
        .fit(
            x,
            y,
            batch_size=5,
            epochs=3,
            validation_data=(x[:7], y[:7]),
            verbose=0,
            callbacks=[EveryBatch(), KLWarmup(2), DropoutRateLogger()],
        )
        .history
    )
    history = {key: np.array(values) for key, values in history.items()}
    for key in ("nll", "val_nll"):
        truth = history[key.replace("nll", "truth")]
        np.testing.assert_allclose(history[key], truth, atol=1e-5)
    np.testing.assert_allclose(
        history["kl_term"], history["true_kl_term"], rtol=1e-5
    )
    rest = history["loss"] - history["nll"] - history["kl_term"]
    np.testing.assert_allclose(rest, history["true_l2"], rtol=1e-4)


def in_batches(x, y, size):
    """A data set of unknown length."""
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


@pytest.mark.parametrize("length", ["known", "executions", "unknown"])
def test_likelihood_and_kl_apart_are_close_in_a_long_epoch(length):
    # torch takes one step at a time.
    together = length == "executions" and keras.backend.backend() != "torch"
    model = learning_model(steps_per_execution=7 if together else 1)
    x, y = data_set(400)
    logger = Counted()
    data = {"x": x, "y": y, "batch_size": 4}
    if length == "unknown":
        data = {"x": in_batches(x, y, 4)}
    history = model.fit(**data, verbose=0, callbacks=[logger]).history
    assert 15 <= logger.readings <= 36
    # The regularization falls from 9 to 3 nats, and bends.
    assert history["loss"][0] - history["truth"][0] > 5
    np.testing.assert_allclose(history["nll"], history["truth"], atol=0.01)


class EveryEnd(keras.callbacks.Callback):
    """Asks for the end of each batch, so that Keras waits for it."""

    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize("others", [[], [EveryEnd()]], ids=["alone", "with"])
def test_an_epoch_of_unknown_length_is_as_long_as_it_was(others):
    # On tensorflow Keras begins a batch more than there is.
    x, y = data_set(60)
    history = (
        learning_model()
        .fit(
            in_batches(x, y, 5),
            verbose=0,
            callbacks=[DropoutRateLogger(), *others],
        )
        .history
    )
    np.testing.assert_allclose(history["nll"], history["truth"], atol=1e-5)


def test_an_epoch_that_runs_out_of_data_is_as_long_as_it_was():
    x, y = data_set(40)
    with pytest.warns(UserWarning, match="ran out of data"):
        history = (
            learning_model()
            .fit(
                in_batches(x, y, 5),
                steps_per_epoch=12,
                verbose=0,
                callbacks=[DropoutRateLogger()],
            )
            .history
        )
    np.testing.assert_allclose(history["nll"], history["truth"], atol=1e-5)


def test_an_epoch_that_is_stopped_before_a_second_reading():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 23

    x, y = data_set(800)
    logger = Counted()
    history = (
        learning_model()
        .fit(x, y, batch_size=2, verbose=0, callbacks=[logger, Stop()])
        .history
    )
    # One at the beginning and one at the end. The regularization falls from
    # 10 to 7 nats, so that the first alone is wrong by more than one.
    assert logger.readings == 2
    np.testing.assert_allclose(history["nll"], history["truth"], atol=0.5)


def test_keras_does_not_wait_for_the_end_of_a_batch():
    logger = DropoutRateLogger()
    plain = keras.callbacks.CallbackList([keras.callbacks.Callback()])
    callbacks = keras.callbacks.CallbackList([logger])
    assert callbacks._async_train == plain._async_train
    assert callbacks._async_test == plain._async_test


@pytest.mark.parametrize("params", ["unset", "none", "empty"])
@pytest.mark.parametrize("batches", ["told", "begun", "untold"])
def test_a_loop_of_ones_own_without_params(params, batches):
    model = learning_model()
    logger = DropoutRateLogger()
    logger.set_model(model)
    if params != "unset":
        logger.set_params(None if params == "none" else {})
    x, y = data_set(60)
    logger.on_train_begin()
    for epoch in range(2):
        logger.on_epoch_begin(epoch)
        seen = []
        for batch, (some, labels) in enumerate(in_batches(x, y, 5)):
            if batches != "untold":
                logger.on_train_batch_begin(batch)
            model.reset_metrics()  # Keras 3.12 does not by itself.
            logs = model.train_on_batch(some, labels, return_dict=True)
            seen.append([float(logs["loss"]), float(logs["truth"])])
            if batches == "told":
                logger.on_train_batch_end(batch, logs)
        loss, truth = np.mean(seen, axis=0)
        logs = {"loss": loss}
        logger.on_epoch_end(epoch, logs)
        rates = [key for key in logs if key.endswith("/rate")]
        assert len(rates) == 2
        if batches == "untold":
            assert "kl_term" not in logs and "nll" not in logs
        else:
            np.testing.assert_allclose(logs["nll"], truth, atol=1e-5)
    logger.on_train_end()


def test_nested_layers_are_in_the_order_of_the_model():
    def dense(name):
        return keras_vdrop.VariationalDense(2, name=name, noise="independent")

    def block(*members):
        return keras.Sequential([keras.Input((2,)), *members])

    x = keras.Input((2,))
    inner = block(dense("b"), block(dense("c"), dense("d")), dense("e"))
    wrapped = keras.layers.TimeDistributed(block(dense("g"), dense("h")))
    y = dense("f")(inner(dense("a")(x)))
    y = wrapped(keras.layers.Reshape((1, 2))(y))
    model = keras.Model(x, keras.layers.Reshape((2,))(y))
    keras_vdrop.set_num_examples(model, 4)
    model.compile("sgd", "mse")
    x = np.zeros((4, 2), "float32")
    history = model.fit(
        x, x, verbose=0, callbacks=[DropoutRateLogger()]
    ).history
    names = [key[0] for key in history if key.endswith("/rate")]
    assert names == list("abcdefgh")


def usual_callbacks(folder):
    return [
        DropoutRateLogger(),
        KLWarmup(2),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=9),
        keras.callbacks.ModelCheckpoint(folder / "best.keras"),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ]


def test_the_usual_callbacks_see_the_keys(tmp_path):
    callbacks = usual_callbacks(tmp_path)
    x, y = data_set(20)
    model = learning_model()
    history = model.fit(
        x,
        y,
        batch_size=5,
        epochs=3,
        shuffle=False,
        validation_data=(x[:7], y[:7]),
        callbacks=callbacks,
        verbose=0,
    ).history
    # The weights of validation are averages, and have a KL of their own.
    for key in ("nll", "val_nll"):
        truth = history[key.replace("nll", "truth")]
        np.testing.assert_allclose(history[key], truth, atol=1e-5)
    share = np.array(history["kl_term"]) * 20
    assert share[0] == 0
    kl = sum(np.array(history[key]) for key in history if key.endswith("/kl"))
    assert kl.shape == (3,) and (share[1:] > kl[1:] * [0.5, 1]).all()
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    for key in history:
        logged = [float(row[key]) for row in rows]
        np.testing.assert_allclose(logged, history[key], rtol=1e-6)
    assert keras.models.load_model(tmp_path / "best.keras", compile=False)


def test_keys_can_be_monitored_and_name_a_file(tmp_path):
    x = np.ones((4, 4), "float32")
    path = tmp_path / "{epoch}-{first/rate:.2f}.weights.h5"
    callbacks = [
        DropoutRateLogger(),
        keras.callbacks.EarlyStopping("first/kl", patience=1, mode="min"),
        keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
    ]
    history = still_model().fit(
        x, x[:, :3], epochs=9, verbose=0, callbacks=callbacks
    )
    assert history.epoch == [0, 1]
    rate = STILL["first/rate"]
    assert (tmp_path / f"2-{rate:.2f}.weights.h5").exists()


def test_metrics_of_the_same_name_are_left_alone():
    model = still_model()
    metric = keras.metrics.MeanAbsoluteError(name="nll")
    model.compile("sgd", "mse", metrics=[metric])
    x = np.zeros((4, 4), "float32")
    history = model.fit(
        x, x[:, :3] + 3, verbose=0, callbacks=[DropoutRateLogger()]
    ).history
    assert history["nll"] == [3.0]


def test_frozen_layers_and_equal_names():
    twins = [
        keras.Sequential(
            [
                keras.Input((2,)),
                keras_vdrop.VariationalDense(
                    2,
                    rate=rate,
                    kl="lower_bound",
                    name="dense",
                    noise="independent",
                ),
            ]
        )
        for rate in (0.2, 0.5)
    ]
    twins[0].trainable = False
    model = keras.Sequential([keras.Input((2,)), *twins])
    keras_vdrop.set_num_examples(model, 4)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.zeros((4, 2), "float32")
    history = model.fit(
        x, x, verbose=0, callbacks=[DropoutRateLogger()]
    ).history
    expected = {
        "dense/rate": 0.2,
        "dense/kl": 4 * np.log(2),
        "dense_1/rate": 0.5,
        "dense_1/kl": 0,
        "kl_term": 0,
        "nll": 0,
    }
    for key, value in expected.items():
        np.testing.assert_allclose(history[key], value, rtol=1e-5, atol=1e-6)


def test_histograms_are_read_back_from_the_event_file(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util.tensor_util import make_ndarray

    x = np.ones((4, 4), "float32")
    still_model().fit(
        x,
        x[:, :3],
        epochs=5,
        initial_epoch=3,
        verbose=0,
        callbacks=[DropoutRateLogger(log_dir=tmp_path)],
    )
    events = event_accumulator.EventAccumulator(str(tmp_path / "dropout_rates"))
    events.Reload()
    assert events.Tags()["tensors"] == ["first/rate", "fixed/rate"]
    metadata = events.SummaryMetadata("first/rate")
    assert metadata.plugin_data.plugin_name == "histograms"
    found = events.Tensors("first/rate")
    assert [event.step for event in found] == [3, 4]
    rates = 1 / (1 + np.exp(-LOG_ALPHA))
    counts, edges = np.histogram(rates, bins=30)
    left, right, count = make_ndarray(found[-1].tensor_proto).T
    np.testing.assert_allclose(left, edges[:-1], rtol=1e-5)
    np.testing.assert_allclose(right, edges[1:], rtol=1e-5)
    np.testing.assert_array_equal(count, counts)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="One backend tells it."
)
def test_histograms_need_no_tensorflow(tmp_path):
    code = """
import sys
sys.modules["tensorflow"] = None
import numpy as np, keras, keras_vdrop
layer = keras_vdrop.VariationalDense(1, num_examples=2)
model = keras.Sequential([layer])
model.compile("sgd", "mse")
logger = keras_vdrop.callbacks.DropoutRateLogger(log_dir=sys.argv[1])
model.fit(np.ones((2, 1)), np.ones((2, 1)), callbacks=[logger], verbose=0)
"""
    run_python(code, tmp_path)
    (file,) = (tmp_path / "dropout_rates").iterdir()
    assert b"variational_dense/rate" in file.read_bytes()


def test_histograms_without_tensorboard_are_refused(monkeypatch):
    module = "tensorboard.plugins.histogram.summary_v2"
    monkeypatch.setitem(sys.modules, module, None)
    DropoutRateLogger()
    with pytest.raises(ImportError, match="pip install tensorboard"):
        DropoutRateLogger(log_dir="logs")


@pytest.mark.parametrize("threshold", [None, "3", True, float("inf")])
def test_bad_thresholds_are_refused(threshold):
    with pytest.raises(ValueError, match="argument `threshold`"):
        DropoutRateLogger(threshold)


def test_a_model_without_variational_layers_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1), "float32")
    with pytest.raises(ValueError, match="a model with a variational layer"):
        model.fit(x, x, callbacks=[DropoutRateLogger()], verbose=0)
