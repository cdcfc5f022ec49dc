"""Calibration, against numpy."""

import keras
import numpy as np
import pytest
from backends import KERAS

import keras_vdrop
from keras_vdrop import metrics

METRICS = [
    metrics.NegativeLogLikelihood,
    metrics.BrierScore,
    metrics.ExpectedCalibrationError,
]


def data(classes=4, examples=50):
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(examples, classes)).astype("float32")
    labels = generator.integers(classes, size=examples)
    weights = generator.random(examples).astype("float32")
    return logits, labels, weights


def softmax(logits):
    powers = np.exp(logits.astype("float64"))
    return powers / powers.sum(-1, keepdims=True)


def by_hand(name, probabilities, labels, weights):
    one_hot = np.eye(probabilities.shape[-1])[labels]
    if name == "nll":
        values = -np.log(probabilities[np.arange(len(labels)), labels])
    elif name == "brier":
        values = ((probabilities - one_hot) ** 2).sum(-1)
    else:
        confidence = probabilities.max(-1)
        correct = probabilities.argmax(-1) == labels
        total = 0.0
        for low in np.arange(15) / 15:
            inside = (confidence >= low) & (confidence < low + 1 / 15)
            gap = weights * (correct - confidence) * inside
            total += abs(gap.sum())
        return total / weights.sum()
    return (weights * values).sum() / weights.sum()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_against_numpy(metric, from_logits, one_hot, weighted):
    logits, labels, weights = data()
    weights = weights if weighted else np.ones_like(weights)
    outputs = logits if from_logits else softmax(logits).astype("float32")
    targets = np.eye(4)[labels] if one_hot else labels
    metric = metric(from_logits=from_logits)
    for rows in (slice(0, 20), slice(20, 50)):
        metric.update_state(
            targets[rows],
            outputs[rows],
            sample_weight=weights[rows] if weighted else None,
        )
    expected = by_hand(metric.name, softmax(logits), labels, weights)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("targets", ["flat", "column", "one-hot"])
@pytest.mark.parametrize("rank", [1, 2])
def test_two_classes_with_one_output(metric, from_logits, targets, rank):
    logits, labels, weights = data(classes=2)
    difference = logits[:, 1:] - logits[:, :1]
    outputs = difference if from_logits else softmax(logits)[:, 1:]
    metric = metric(from_logits=from_logits)
    shapes = {"flat": labels, "column": labels[:, None]}
    metric.update_state(
        shapes.get(targets, np.eye(2)[labels]),
        outputs if rank == 2 else outputs[:, 0],
    )
    expected = by_hand(
        metric.name, softmax(logits), labels, np.ones_like(weights)
    )
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_sequences_are_examples(metric):
    logits, labels, _ = data()
    flat, shaped = metric(from_logits=True), metric(from_logits=True)
    flat.update_state(labels, logits)
    shaped.update_state(labels.reshape(5, 10), logits.reshape(5, 10, 4))
    np.testing.assert_allclose(
        float(flat.result()), float(shaped.result()), rtol=1e-6
    )


def test_certainty_stays_finite():
    metric = metrics.NegativeLogLikelihood()
    metric.update_state([0, 1], np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert np.isfinite(float(metric.result()))
    metric = metrics.ExpectedCalibrationError()
    metric.update_state([0, 1], np.array([[1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_allclose(float(metric.result()), 0.5)


def test_a_calibrated_forecast_has_little_error():
    generator = np.random.default_rng(0)
    p = generator.random((20_000, 1)).astype("float32")
    labels = (generator.random(20_000) < p[:, 0]).astype("int32")
    metric = metrics.ExpectedCalibrationError(num_bins=10)
    metric.update_state(labels, p)
    # The mean of |normal| in five bins of 4000 examples each, five-fold.
    assert float(metric.result()) < 5 * 0.5 / np.sqrt(4000)
    metric.reset_state()
    metric.update_state(labels, p**3)
    assert float(metric.result()) > 0.1


def test_in_compile_and_in_a_file(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras_vdrop.VariationalDense(3, num_examples=20),
        ]
    )
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[metric(from_logits=True) for metric in METRICS],
    )
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y = np.arange(20) % 3
    model.fit(x, y, validation_data=(x, y), epochs=2, verbose=0)
    found = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    probabilities = softmax(model.predict(x, verbose=0))
    for name in ("nll", "brier", "ece"):
        expected = by_hand(name, probabilities, y, np.ones(20))
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.evaluate(x, y, verbose=0, return_dict=True)
    np.testing.assert_allclose(again["ece"], found["ece"], rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_config(metric):
    given = metric(from_logits=True, name="other")
    copy = metric.from_config(given.get_config())
    assert copy.from_logits and copy.name == "other"
    with pytest.raises(ValueError, match="from_logits"):
        metric(from_logits="yes")
    with pytest.raises(ValueError, match="num_bins"):
        metrics.ExpectedCalibrationError(num_bins=0)


def test_errors_of_two_bins_do_not_make_up_for_each_other():
    metric = metrics.ExpectedCalibrationError()
    timid, bold = [0.55, 0.45], [0.95, 0.05]
    metric.update_state([0, 0, 0, 1], np.array([timid, timid, bold, bold]))
    np.testing.assert_allclose(float(metric.result()), 0.45, rtol=1e-5)


# Masks and weights, against Keras.


def sequences(classes=3):
    """Probabilities and labels of four sequences of five."""
    logits, labels, weights = data(classes, examples=20)
    probabilities = softmax(logits).astype("float32").reshape(4, 5, classes)
    mask = np.arange(5) < np.array([[5], [3], [1], [2]])
    return probabilities, labels.reshape(4, 5), weights, mask


def masked(probabilities, mask):
    """A tensor with a mask, as a layer gives it."""

    class WithMask(keras.layers.Layer):
        def compute_mask(self, inputs, previous=None):
            return keras.ops.convert_to_tensor(mask)

        def call(self, inputs):
            return inputs + 0

    return WithMask()(probabilities)


def reference(name, from_logits=False):
    """What Keras computes."""
    if name == "nll":
        return keras.metrics.SparseCategoricalCrossentropy(
            from_logits=from_logits
        )

    def brier(y_true, y_pred):
        y_pred = keras.ops.convert_to_tensor(y_pred)
        one_hot = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 3)
        return keras.ops.sum(keras.ops.square(y_pred - one_hot), axis=-1)

    return keras.metrics.MeanMetricWrapper(brier)


@pytest.mark.parametrize("name", ["nll", "brier"])
@pytest.mark.parametrize("weighted", ["no", "examples", "column", "positions"])
@pytest.mark.parametrize("has_mask", [False, True])
def test_masks_and_weights_are_those_of_keras(name, weighted, has_mask):
    if has_mask and weighted in ("examples", "column"):
        # `test_masked_positions_do_not_count` has these.
        pytest.skip("Keras 3.15 fails, for columns on torch alone")
    if has_mask and weighted == "no" and KERAS < (3, 12):
        pytest.skip("Keras 3.10 ignores a mask that comes without weights")
    probabilities, labels, weights, mask = sequences()
    weights = {
        "no": None,
        "examples": weights[:4],
        "column": weights[:4, None],
        "positions": weights.reshape(4, 5),
    }[weighted]
    metric = {m().name: m for m in METRICS}[name]()
    expected = reference(name)
    # Batches of several lengths: in Keras a position counts less in a long one.
    for length in (5, 2):
        outputs = probabilities[:, :length]
        if has_mask:
            outputs = masked(outputs, mask[:, :length])
        some = weights
        if weighted == "positions":
            some = weights[:, :length]
        for each in (metric, expected):
            each.update_state(labels[:, :length], outputs, sample_weight=some)
    np.testing.assert_allclose(
        float(metric.result()), float(expected.result()), rtol=1e-5
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("weighted", ["no", "examples", "column"])
def test_masked_positions_do_not_count(metric, weighted):
    probabilities, labels, weights, mask = sequences()
    weights = np.ones(4) if weighted == "no" else weights[:4]
    shapes = {"examples": weights, "column": weights[:, None]}
    # What is masked may be anything.
    labels = np.where(mask, labels, -1)
    probabilities = np.where(mask[..., None], probabilities, np.nan)
    metric = metric()
    metric.update_state(
        labels,
        masked(probabilities, mask),
        sample_weight=shapes.get(weighted),
    )
    repeated = np.broadcast_to(weights[:, None], mask.shape)[mask]
    expected = by_hand(metric.name, probabilities[mask], labels[mask], repeated)
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_no_weight_no_label(metric):
    probabilities, labels, _, mask = sequences()
    metric = metric()
    metric.update_state(
        np.where(mask, labels, 99), probabilities, sample_weight=mask
    )
    expected = by_hand(
        metric.name, probabilities[mask], labels[mask], np.ones(mask.sum())
    )
    np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)


def tagger(classes=3):
    """A model whose outputs have a mask."""
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(7, 4, mask_zero=True),
            keras.layers.Dense(classes),
        ]
    )


@pytest.mark.parametrize("eager", [False, True])
def test_masks_in_compiled_code(eager):
    _, labels, weights, mask = sequences()
    model = tagger()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "sgd",
        loss,
        metrics=[metric(from_logits=True) for metric in METRICS],
        weighted_metrics=[
            metrics.NegativeLogLikelihood(from_logits=True, name="weighted"),
            keras.metrics.SparseCategoricalCrossentropy(
                from_logits=True, name="of_keras"
            ),
        ],
        run_eagerly=eager,
    )
    x = np.where(mask, 1 + np.arange(20).reshape(4, 5) % 6, 0)
    found = model.evaluate(x, labels, verbose=0, return_dict=True)
    probabilities = softmax(model.predict(x, verbose=0))[mask]
    for name in ("nll", "brier", "ece"):
        expected = by_hand(
            name, probabilities, labels[mask], np.ones(mask.sum())
        )
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    np.testing.assert_allclose(found["nll"], found["loss"], rtol=1e-5)
    found = model.evaluate(
        x,
        labels,
        sample_weight=weights.reshape(4, 5),
        verbose=0,
        return_dict=True,
    )
    np.testing.assert_allclose(found["weighted"], found["of_keras"], rtol=1e-5)


# What can be seen to be wrong.


def refused(metric, y_true, y_pred, match, **arguments):
    """A call that is refused and changes nothing."""
    metric.update_state([0, 1], np.array([[0.9, 0.1], [0.4, 0.6]]))
    before = [keras.ops.convert_to_numpy(v) for v in metric.variables]
    with pytest.raises(ValueError, match=match):
        metric.update_state(y_true, y_pred, **arguments)
    for value, variable in zip(before, metric.variables, strict=True):
        np.testing.assert_array_equal(
            value, keras.ops.convert_to_numpy(variable)
        )


HALVES = np.full((2, 2), 0.5, "float32")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "labels",
    [
        [0, -1],
        [0, 2],
        [[1], [-1]],
        [0.0, 0.5],
        [0.0, np.nan],
        np.array([0, 255], "uint8"),
        [[0.0, 1.0], [0.0, 0.0]],
        [[0.0, 1.0], [-1.0, 2.0]],
    ],
)
def test_labels_that_are_none_are_refused(metric, labels):
    match = "argument `y_true`. Expected labels from 0 to 1"
    refused(metric(), np.array(labels), HALVES, match)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "outputs", [[[3.0, 1.0], [0.5, 0.5]], [[0.5, 0.5], [-0.1, 0.1]], [3.0, 0.1]]
)
def test_logits_without_from_logits_are_refused(metric, outputs):
    match = r"argument `y_pred`.* in \[0, 1\].*from_logits=True"
    refused(metric(), [0, 1], np.array(outputs), match)
    given = metric(from_logits=True)
    given.update_state([0, 1], np.array(outputs))
    assert np.isfinite(float(given.result()))


@pytest.mark.parametrize("metric", METRICS)
def test_shapes_that_do_not_fit_are_refused(metric):
    match = "argument `y_true`. Expected labels of shape"
    refused(metric(), [0, 1, 1], HALVES, match)
    refused(metric(), [0], HALVES, match)
    refused(metric(), 0, HALVES, match)
    refused(metric(), np.eye(3)[:2], HALVES, match)
    # One example of two classes, or two of which no one knows.
    refused(metric(), 1, HALVES[0], match)
    refused(metric(), 1, 0.5, "argument `y_pred`")
    match = "argument `sample_weight`"
    for weights in (np.ones(3), np.ones((2, 2)), np.ones((2, 1, 1))):
        refused(metric(), [0, 1], HALVES, match, sample_weight=weights)


@pytest.mark.parametrize("metric", METRICS)
def test_rounding_is_not_refused(metric):
    metric = metric()
    metric.update_state([0, 1], np.array([[1.0001, -0.0001], [0.5, 0.5]]))
    assert np.isfinite(float(metric.result()))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("from_logits", [True, False])
def test_a_model_that_has_diverged_is_not_a_number(metric, from_logits):
    metric = metric(from_logits=from_logits)
    metric.update_state([0, 1], np.array([[np.nan, np.nan], [0.5, 0.5]]))
    assert np.isnan(float(metric.result()))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("wrong", ["labels", "logits"])
@pytest.mark.parametrize("method", ["evaluate", "fit", "train_on_batch"])
def test_in_a_model_it_is_refused_or_not_a_number(method, wrong, eager):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.SGD(0.0),
        "mse",
        metrics=[metric(from_logits=wrong == "labels") for metric in METRICS],
        run_eagerly=eager,
    )
    x = 9 * np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    y = np.arange(20)[:, None] % 3
    if wrong == "labels":
        y[7] = -1
    before = model.predict(x, verbose=0)
    arguments = {"verbose": 0}
    if method != "fit":
        arguments = {"return_dict": True}
    backend = keras.backend.backend()
    if backend == "torch" or (eager and backend == "tensorflow"):
        with pytest.raises(ValueError, match="argument `y_"):
            getattr(model, method)(x, y, **arguments)
    else:
        found = getattr(model, method)(x, y, **arguments)
        found = found.history if method == "fit" else found
        for name in ("nll", "brier", "ece"):
            assert np.isnan(found[name]).all()
    # Nothing is lost.
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)


def test_without_state_it_is_not_a_number():
    metric = metrics.BrierScore()
    state = metric.stateless_update_state(
        [v.value for v in metric.variables], np.array([0, -1]), HALVES
    )
    assert np.isnan(float(metric.stateless_result(state)))
    assert float(metric.result()) == 0
