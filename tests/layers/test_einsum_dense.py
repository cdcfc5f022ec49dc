"""Any equation that `EinsumDense` takes, against numpy."""

import keras
import numpy as np
import pytest

import keras_vdrop

DRAWS = 4000
SIGMAS = 5
# Equation, shape of one input, `output_shape`.
EQUATIONS = {
    "ab,bc->ac": ((3,), 2),
    "abc,cd->adb": ((2, 3), (4, 2)),
    "abc,cde->aebd": ((2, 3), (2, 2, 3)),
    "abc,bcd->abd": ((2, 3), (2, 2)),
    "abc,dbc->adb": ((2, 3), (2, 2)),
    "abcd,bde->abce": ((2, 3, 2), (2, 3, 2)),
    "abc,cb->ab": ((2, 3), 2),
    "...bc,cd->...bd": ((2, 2, 3), (2, 2)),
    "...c,cd->...d": ((2, 3), 2),
    "ab...,bc->ac...": ((3, 2, 2), 2),
}
POSTERIORS = {
    "input": {"granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "correlated": {"noise": "correlated", "granularity": "input"},
}


def alpha_of_weights(equation, alpha, granularity, shape):
    """Alpha of each weight, by the letters that the two sides share."""
    if granularity == "weight":
        return alpha
    sides, outputs = equation.replace("...", "").split("->")
    inputs, kernel = sides.split(",")
    side = inputs if granularity == "input" else outputs
    units = "".join(letter for letter in side if letter in kernel)
    return np.einsum(f"{units},{kernel}->{kernel}", alpha, np.ones(shape))


@pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_moments(equation, posterior):
    shape, output_shape = EQUATIONS[equation]
    layer = keras_vdrop.VariationalEinsumDense(
        equation, output_shape, seed=1, **posterior
    )
    layer.build((None, *shape))
    generator = np.random.default_rng(0)
    layer.log_alpha.assign(
        generator.uniform(-2, 0, tuple(layer.log_alpha.shape))
    )
    x = generator.normal(size=(1, *shape)).astype("float32")
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    alpha = alpha_of_weights(
        equation, alpha, layer.granularity, kernel.shape
    ).reshape(kernel.shape)
    mean = np.einsum(equation, x, kernel)[0]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(x))[0], mean, rtol=1e-4, atol=1e-5
    )
    variance = np.einsum(equation, x**2, alpha * kernel**2)[0]
    drawn = layer(np.repeat(x, DRAWS, axis=0), training=True)
    drawn = keras.ops.convert_to_numpy(drawn)
    np.testing.assert_array_less(
        np.abs(drawn.mean(0) - mean),
        SIGMAS * np.sqrt(variance / DRAWS) + 1e-5,
    )
    np.testing.assert_array_less(
        np.abs(drawn.var(0) - variance),
        SIGMAS * variance * np.sqrt(2 / DRAWS) + 1e-5,
    )


@pytest.mark.parametrize("estimator", ["batch", "example", "flipout"])
@pytest.mark.parametrize("equation", ["abc,cd->adb", "ab...,bc->ac..."])
def test_weight_samples_have_the_same_variance(equation, estimator):
    shape, output_shape = EQUATIONS[equation]
    layer = keras_vdrop.VariationalEinsumDense(
        equation, output_shape, rate=0.3, estimator=estimator, seed=1
    )
    x = np.random.default_rng(0).normal(size=(1, *shape)).astype("float32")
    count = 300
    calls, batch = (count, 1) if estimator == "batch" else (1, count)
    if estimator == "flipout":
        calls = 4
    batch = np.repeat(x, batch, axis=0)
    drawn = np.concatenate(
        [
            keras.ops.convert_to_numpy(layer(batch, training=True))
            for _ in range(calls)
        ]
    )
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    mean = np.einsum(equation, x, kernel)[0]
    variance = 0.3 / 0.7 * np.einsum(equation, x**2, kernel**2)[0]
    np.testing.assert_array_less(
        np.abs(drawn.mean(0) - mean), SIGMAS * np.sqrt(variance / count)
    )
    if estimator != "flipout":  # Its examples share the sample.
        np.testing.assert_array_less(
            np.abs(drawn.var(0) - variance),
            SIGMAS * variance * np.sqrt(2 / count),
        )


@pytest.mark.parametrize(
    "equation, reason",
    [
        ("abc,cd->ad", "The index 'b' is summed over"),
        ("...bc,cd->...d", "The index 'b' is summed over"),
        ("abb,bc->abc", "each index once"),
    ],
)
def test_refused_in_the_constructor(equation, reason):
    with pytest.raises(ValueError, match=reason):
        keras_vdrop.VariationalEinsumDense(equation, 2)
