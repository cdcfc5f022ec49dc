"""The variance of gradients, where it is known."""

import keras
import numpy as np
import pytest

import keras_vdrop

N = 40
WEIGHTS = np.array([[0.5], [-1.5], [2.0]], "float32")
EXAMPLE = np.array([1.0, -2.0, 0.5], "float32")
ALPHA = 0.25
SIGMAS = 5


def linear_model(loss="mse", **arguments):
    """One layer of one unit, with these weights and no bias."""
    arguments = {"rate": ALPHA / (1 + ALPHA), **arguments}
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras_vdrop.VariationalDense(
                1, use_bias=False, name="linear", num_examples=N, **arguments
            ),
        ]
    )
    model.compile("adam", loss)
    model.layers[0].kernel.assign(WEIGHTS)
    return model


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred)


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, 3)).astype("float32")
    return x, generator.normal(size=(N, 1)).astype("float32")


def measure(model, x, y, **arguments):
    arguments = {"verbose": 0, **arguments}
    found = keras_vdrop.gradient_variance(model, x, y, **arguments)
    return {name: layers["linear"] for name, layers in found.items()}


def test_choice_of_examples_by_hand():
    x, y = data()
    found = measure(linear_model(), x, y, batch_size=1, estimators=["none"])
    # All minibatches of one example: their variance, in whatever order.
    gradients = N * 2 * (x @ WEIGHTS - y) * x
    expected = gradients.var(axis=0, ddof=1).mean()
    np.testing.assert_allclose(found["none"].variance, expected, rtol=1e-4)


def test_choice_of_examples_falls_with_the_size_of_the_batch():
    x, y = data()
    found = measure(
        linear_model(),
        x,
        y,
        batch_size=4,
        num_batches=1000,
        estimators=["none"],
    )["none"]
    one = (N * 2 * (x @ WEIGHTS - y) * x).var(axis=0, ddof=1).mean()
    # Ten minibatches cut from all the data add up to a constant; those of 100
    # shuffles have the variance 1 / 4 * (1 - 4 / N) about the common mean.
    expected = one / 4 * (1 - 4 / N)
    assert abs(found.variance - expected) < SIGMAS * found.standard_error
    assert found.standard_error < 0.1 * expected


CLOSED_FORMS = {
    # Variance by weight of the gradient of the mean output, for one minibatch
    # of equal examples: d/d theta of a.theta + sqrt(alpha a^2.theta^2) zeta,
    # and of a.(theta * xi).
    ("independent", "local"): lambda a, theta, m: (
        ALPHA * a**4 * theta**2 / np.sum(a**2 * theta**2) / m
    ),
    ("independent", "example"): lambda a, theta, m: ALPHA * a**2 / m,
    ("independent", "batch"): lambda a, theta, m: ALPHA * a**2,
    ("correlated", "local"): lambda a, theta, m: ALPHA * a**2 / m,
    ("correlated", "example"): lambda a, theta, m: ALPHA * a**2 / m,
    ("correlated", "batch"): lambda a, theta, m: ALPHA * a**2,
}


@pytest.mark.parametrize("noise, estimator", CLOSED_FORMS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_noise_has_the_closed_form(noise, estimator, batch_size):
    x = np.tile(EXAMPLE, (N, 1))
    model = linear_model(mean_output, noise=noise)
    found = measure(
        model,
        x,
        np.zeros((N, 1)),
        batch_size=batch_size,
        num_batches=400,
        estimators=[estimator],
        num_examples=100,
    )[estimator]
    form = CLOSED_FORMS[noise, estimator](EXAMPLE, WEIGHTS[:, 0], batch_size)
    expected = 100**2 * form.mean()
    assert abs(found.variance - expected) < SIGMAS * found.standard_error
    assert found.standard_error < 0.15 * expected


def test_standard_error_is_that_of_repeated_measurements():
    x = np.tile(EXAMPLE, (N, 1))
    model = linear_model(mean_output)
    repeats = [
        measure(
            model,
            x,
            np.zeros((N, 1)),
            batch_size=2,
            estimators=["local"],
            seed=seed,
        )["local"]
        for seed in range(30)
    ]
    deviation = np.std([found.variance for found in repeats], ddof=1)
    told = np.mean([found.standard_error for found in repeats])
    # A standard deviation of 30 values is known to 1 / sqrt(2 * 29), and to
    # more where the values have longer tails than the normal distribution.
    assert abs(told / deviation - 1) < SIGMAS / np.sqrt(2 * 29)


def test_the_estimators_are_compared_on_the_same_minibatches():
    x, y = data()
    arguments = {"batch_size": 5, "estimators": ["none", "none", "local"]}
    found = measure(linear_model(rate=1e-9), x, y, **arguments)
    np.testing.assert_allclose(
        found["none"].variance, found["local"].variance, rtol=1e-2
    )
    again = measure(linear_model(rate=1e-9), x, y, **arguments)
    assert found == again


def convolutional_model():
    inputs = keras.Input((4, 4, 1))
    hidden = keras_vdrop.VariationalConv2D(2, 2, name="bottom")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.5)(keras.layers.Flatten()(hidden))
    inner = keras.Sequential(
        [
            keras.Input((18,)),
            keras_vdrop.VariationalDropout(),
            keras_vdrop.VariationalDense(3, noise="correlated", name="top"),
        ]
    )
    other = keras.layers.Dense(2, name="plain")(hidden)
    model = keras.Model(inputs, [inner(hidden), other])
    keras_vdrop.set_num_examples(model, 12)
    model.compile("adam", ["mse", "mse"], metrics=[["mae"], ["mae"]])
    x = np.random.normal(size=(12, 4, 4, 1))
    return model, x, (np.ones((12, 3)), np.ones((12, 2)))


def test_model_is_as_before():
    model, x, y = convolutional_model()
    model.fit(x, y, verbose=0)

    def state():
        variables = [
            *model.variables,
            *model.optimizer.variables,
            *model.metrics_variables,
        ]
        estimators = [getattr(x, "estimator", "") for x in model.layers]
        return [keras.ops.convert_to_numpy(v) for v in variables], estimators

    before = state()
    found = keras_vdrop.gradient_variance(
        model,
        x,
        y,
        batch_size=3,
        estimators=["local", "batch", "example", "none"],
        verbose=0,
    )
    for ours, theirs in zip(state()[0], before[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert state()[1] == before[1]
    for layers in found.values():
        assert list(layers) == ["bottom", "top"]
        assert np.all(np.isfinite(list(layers.values())))
    model.fit(x, y, verbose=0)


def test_layers_are_chosen_by_name_or_object():
    model, x, y = convolutional_model()
    arguments = {"batch_size": 4, "estimators": ["none"], "verbose": 0}
    found = keras_vdrop.gradient_variance(
        model, x, y, layers=["plain", model.get_layer("bottom")], **arguments
    )
    assert list(found["none"]) == ["plain", "bottom"]
    one = keras_vdrop.gradient_variance(
        model, x, y, layers="plain", **arguments
    )
    assert one["none"]["plain"] == found["none"]["plain"]


def test_progress_bar(capsys):
    x, y = data()
    measure(linear_model(), x, y, batch_size=10, verbose=1)
    assert "12/12" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"model": "model"}, "model"),
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, "compiled"),
        ({"estimators": "local"}, "estimators"),
        ({"estimators": ["global"]}, "estimators"),
        ({"estimators": []}, "estimators"),
        ({"layers": ["nothing"]}, "layers"),
        ({"layers": [keras.layers.Dense(1, name="linear")]}, "layers"),
        ({"layers": []}, "layers"),
        ({"layers": ["linear", "linear"]}, "layers"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": N + 1}, "batch_size"),
        ({"batch_size": N}, "num_batches"),
        ({"num_batches": 1}, "num_batches"),
        ({"num_batches": "all"}, "num_batches"),
        ({"num_examples": 0}, "num_examples"),
        ({"y": np.ones((N + 1, 1))}, "`y`"),
    ],
)
def test_bad_arguments(arguments, told):
    x, y = data()
    arguments = {
        "model": linear_model(),
        "x": x,
        "y": y,
        "batch_size": 10,
        **arguments,
    }
    with pytest.raises(ValueError, match=told):
        keras_vdrop.gradient_variance(**arguments)
