"""Random layers and random arguments: moments and round trips."""

import pathlib
import tempfile

import hypothesis
import keras
import numpy as np
import pytest
from cases import KERNEL_LAYERS
from cases import POSTERIORS
from hypothesis import strategies

import keras_vdrop

pytestmark = pytest.mark.slow

ROWS = 3000
# Some 20 examples of at most 12 comparisons: this is one failure in 10**7 runs.
SIGMAS = 6.5
# Without shrinking, which could take minutes.
BOUNDED = {
    "deadline": None,
    "derandomize": True,
    "phases": [hypothesis.Phase.explicit, hypothesis.Phase.generate],
}
FILES = hypothesis.settings(max_examples=15, **BOUNDED)
MOMENTS = hypothesis.settings(max_examples=25, **BOUNDED)

rates = strategies.floats(0.01, 0.49)
seeds = strategies.one_of(strategies.none(), strategies.integers(0, 2**40))
posteriors = strategies.sampled_from(list(POSTERIORS.values()))


@MOMENTS
@hypothesis.given(
    inputs=strategies.integers(1, 5),
    units=strategies.integers(1, 6),
    rate=rates,
    posterior=posteriors,
    log_scale=strategies.floats(-6, 6),
    seed=strategies.integers(0, 2**31),
)
def test_outputs_have_the_moments_of_the_paper(
    inputs, units, rate, posterior, log_scale, seed
):
    """Both kinds of noise have Gaussian outputs of these moments."""
    generator = np.random.default_rng(seed)
    layer = keras_vdrop.VariationalDense(
        units, use_bias=False, rate=rate, seed=seed, **posterior
    )
    layer.build((None, inputs))
    theta = generator.normal(size=(inputs, units))
    layer.kernel.assign(theta)
    layer.reset_noise()
    x = generator.normal(size=inputs) * 10.0**log_scale
    rows = np.broadcast_to(x, (ROWS, inputs)).astype("float32")
    outputs = keras.ops.convert_to_numpy(layer(rows, training=True))
    outputs = outputs.astype("float64")
    mean = x @ theta
    variance = rate / (1 - rate) * (x**2 @ theta**2)
    error = np.abs(outputs.mean(0) - mean) / np.sqrt(variance / ROWS)
    assert error.max() < SIGMAS
    ratio = outputs.var(0, ddof=1) / variance
    assert np.abs(ratio - 1).max() < SIGMAS * np.sqrt(2 / (ROWS - 1))


@FILES
@hypothesis.given(
    case=strategies.sampled_from(list(KERNEL_LAYERS)),
    posterior=posteriors,
    rate=rates,
    kl=strategies.sampled_from(["polynomial", "exact", "lower_bound", "ard"]),
    estimator=strategies.sampled_from(["local", "flipout", "batch", "example"]),
    num_examples=strategies.integers(1, 10**9),
    kl_downscale=strategies.floats(1e-3, 1e3),
    seed=seeds,
)
def test_a_file_gives_the_layer_back(case, posterior, **arguments):
    cls, own, shape = KERNEL_LAYERS[case]
    layer = cls(**own, **posterior, **arguments, name="mine")
    model = keras.Sequential([keras.Input(shape), layer])
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, *shape)).astype("float32")
    if "channels_first" not in case:
        model(x, training=True)  # so that the seed has moved
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        loaded = keras.saving.load_model(path)
    assert loaded.get_layer("mine").get_config() == layer.get_config()
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(loaded.losses[0]),
        keras.ops.convert_to_numpy(model.losses[0]),
        rtol=1e-6,
    )


@FILES
@hypothesis.given(
    case=strategies.sampled_from(list(KERNEL_LAYERS)),
    posterior=posteriors,
    rate=rates,
    seed=seeds,
)
def test_there_and_back_is_the_same_model(case, posterior, rate, seed):
    cls, own, shape = KERNEL_LAYERS[case]
    plain = keras.Sequential(
        [keras.Input(shape), cls.keras_class()(**own, name="mine")]
    )
    model = keras_vdrop.to_variational(
        plain, rate=rate, seed=seed, verbose=0, **posterior
    )
    assert type(model.get_layer("mine")) is cls
    log_alpha = model.get_layer("mine").log_alpha
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.sigmoid(log_alpha)),
        rate,
        rtol=1e-4,
    )
    back = keras_vdrop.to_deterministic(model, verbose=0)
    same = [x.get_layer("mine").get_config() for x in (back, plain)]
    assert same[0] == same[1]
    for a, b in zip(back.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
