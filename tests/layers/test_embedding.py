"""Random tables: the distribution, the KL and the mask."""

import keras
import numpy as np
import pytest
from backends import operations

import keras_vdrop

DRAWS = 5000
SIGMAS = 5
TOKENS = np.array([[3, 1, 3]])
POSTERIORS = {
    "layer": {},
    "input": {"granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "additive": {"granularity": "weight", "parameterization": "additive"},
    "correlated": {"noise": "correlated", "granularity": "input"},
}
every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)
to_numpy = keras.ops.convert_to_numpy


def build(cls=keras_vdrop.VariationalEmbedding, **arguments):
    """A built layer, its table, and alpha of each weight."""
    layer = cls(5, 4, embeddings_initializer="normal", seed=1, **arguments)
    layer.build((None, 3))
    generator = np.random.default_rng(0)
    (weight, *_) = layer.random_weights
    log_alpha = generator.uniform(-2, 0, tuple(weight.variable.shape))
    table = to_numpy(layer.embeddings)
    value = log_alpha
    if layer.parameterization == "additive":
        value = log_alpha + np.log(table**2)
    weight.unscaled().assign(value)
    alpha = np.exp(log_alpha)
    if layer.granularity == "input":
        alpha = alpha[:, None]
    return layer, table, np.broadcast_to(alpha, table.shape)


def check_moments(drawn, mean, variance):
    np.testing.assert_array_less(
        np.abs(drawn.mean(0) - mean), SIGMAS * np.sqrt(variance / DRAWS) + 1e-6
    )
    np.testing.assert_array_less(
        np.abs(drawn.var(0) - variance),
        SIGMAS * variance * np.sqrt(2 / DRAWS) + 1e-6,
    )


def draw(layer, inputs, **arguments):
    batch = np.repeat(inputs, DRAWS, axis=0)
    return to_numpy(layer(batch, training=True, **arguments))


@every_posterior
def test_lookup(posterior):
    layer, table, alpha = build(**posterior)
    drawn = draw(layer, TOKENS)
    variance = alpha * table**2
    check_moments(drawn, table[TOKENS[0]], variance[TOKENS[0]])
    correlation = np.corrcoef(drawn.reshape(DRAWS, -1), rowvar=False)
    expected = np.eye(len(correlation))
    if layer.noise == "correlated":
        # The features of one position have one factor.
        sign = np.sign(table[TOKENS[0]]).reshape(-1)
        expected = np.kron(np.eye(3), np.ones((4, 4)))
        expected = expected * np.outer(sign, sign)
    assert np.abs(correlation - expected).max() < SIGMAS / np.sqrt(DRAWS)


@every_posterior
def test_tied_projection(posterior):
    layer, table, alpha = build(
        keras_vdrop.VariationalReversibleEmbedding, **posterior
    )
    features = np.random.default_rng(1).normal(size=(1, 2, 4)).astype("float32")
    drawn = draw(layer, features, reverse=True)
    mean = features[0] @ table.T
    variance = features[0] ** 2 @ (alpha * table**2).T
    if layer.noise == "correlated":
        variance = alpha[:, 0] * mean**2
    check_moments(drawn, mean, variance)
    # No two tokens share a weight.
    correlation = np.corrcoef(drawn.reshape(DRAWS, -1), rowvar=False)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(DRAWS)
    drawn = draw(layer, TOKENS)
    check_moments(drawn, table[TOKENS[0]], (alpha * table**2)[TOKENS[0]])


@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_projection_with_a_table_of_its_own(noise):
    layer = keras_vdrop.VariationalReversibleEmbedding(
        5,
        4,
        tie_weights=False,
        embeddings_initializer="normal",
        granularity="input",
        noise=noise,
        seed=1,
    )
    layer.build((None, 3))
    assert sorted(layer.dropout_rates()) == ["embeddings", "reverse_embeddings"]
    weight = layer.reverse_embeddings_noise
    log_alpha = np.linspace(-2, 0, 4)
    weight.unscaled().assign(log_alpha)
    features = np.random.default_rng(1).normal(size=(1, 4)).astype("float32")
    drawn = draw(layer, features, reverse=True)
    table = to_numpy(layer.reverse_embeddings)
    scale = np.exp(log_alpha) * features[0] ** 2
    check_moments(drawn, features[0] @ table, scale @ table**2)
    expected = table.T @ np.diag(scale) @ table
    if noise == "independent":
        expected = np.diag(np.diag(expected))
    spread = np.diag(expected)
    error = np.sqrt((np.outer(spread, spread) + expected**2) / DRAWS)
    found = np.cov(drawn, rowvar=False)
    np.testing.assert_array_less(
        np.abs(found - expected), SIGMAS * error + 1e-7
    )


@pytest.mark.parametrize("noise", ["independent", "correlated"])
@pytest.mark.parametrize("estimator", ["batch", "example"])
def test_samples_of_the_table(estimator, noise):
    layer, table, _ = build(
        keras_vdrop.VariationalReversibleEmbedding,
        estimator=estimator,
        noise=noise,
    )
    first, second = to_numpy(layer(np.repeat(TOKENS, 2, 0), training=True))
    # A token has one row in a sample, and the two tokens have other noise.
    np.testing.assert_array_equal(first[0], first[2])
    factors = first[:2] / table[TOKENS[0, :2]]
    assert np.all(factors[0] != factors[1])
    same = np.allclose(factors[:, 0], factors[:, 1], rtol=1e-5)
    assert same == (noise == "correlated")
    assert np.all(first == second) == (estimator == "batch")
    # The projection of the features e_i shows the table.
    shown = to_numpy(layer(np.eye(4)[None], reverse=True, training=True))
    assert np.all(shown[0].T != table)
    factors = (shown[0].T / table)[3]
    assert np.allclose(factors, factors[0]) == (noise == "correlated")


@every_posterior
@pytest.mark.parametrize(
    "cls",
    [
        keras_vdrop.VariationalEmbedding,
        keras_vdrop.VariationalReversibleEmbedding,
    ],
)
def test_inference_is_that_of_keras(cls, posterior):
    layer, table, _ = build(cls, **posterior)
    plain = cls.keras_class()(5, 4)
    plain.build((None, 3))
    plain.set_weights([table])
    np.testing.assert_array_equal(
        to_numpy(layer(TOKENS)), to_numpy(plain(TOKENS))
    )
    tokens = keras.ops.convert_to_tensor(TOKENS)
    assert operations(layer, tokens, training=False) == operations(
        plain, tokens, training=False
    )
    if cls is keras_vdrop.VariationalReversibleEmbedding:
        x = np.ones((2, 4), "float32")
        np.testing.assert_array_equal(
            to_numpy(layer(x, reverse=True)), to_numpy(plain(x, reverse=True))
        )


@pytest.mark.parametrize("noise", ["independent", "correlated"])
@pytest.mark.parametrize("estimator", ["local", "batch", "example"])
def test_a_row_of_zeros_stays_zero(estimator, noise):
    table = np.ones((5, 4), "float32")
    table[3] = 0
    layer = keras_vdrop.VariationalEmbedding(
        5, 4, weights=table, estimator=estimator, noise=noise, rate=0.4
    )
    np.testing.assert_array_equal(to_numpy(layer.embeddings), table)
    rows = to_numpy(layer(TOKENS, training=True))[0]
    np.testing.assert_array_equal(rows[[0, 2]], np.zeros((2, 4)))
    assert np.all(rows[1] != 1)


def test_a_tied_table_has_one_kl():
    log_alpha = np.log(0.2 / 0.8)
    one = 5 * 4 * 0.5 * np.log1p(np.exp(-log_alpha))
    for tie_weights, tables in ((True, 1), (False, 2)):
        layer = keras_vdrop.VariationalReversibleEmbedding(
            5,
            4,
            tie_weights=tie_weights,
            rate=0.2,
            noise="independent",
            kl="ard",
            num_examples=10,
        )
        layer(layer(TOKENS, training=True), reverse=True, training=True)
        assert len(layer.losses) == tables
        np.testing.assert_allclose(layer.kl(), tables * one, rtol=1e-5)
        np.testing.assert_allclose(
            sum(float(to_numpy(loss)) for loss in layer.losses),
            tables * one / 10,
            rtol=1e-5,
        )


def test_kl_of_correlated_noise_counts_tokens():
    layer = keras_vdrop.VariationalEmbedding(
        5, 4, rate=0.2, noise="correlated", kl="ard"
    )
    layer.build((None, 3))
    expected = 5 * 0.5 * np.log1p(0.8 / 0.2)
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)


class SeesMask(keras.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        if mask is None:
            # Keras's reversible layer has no mask for symbolic inputs (3.15).
            return inputs
        return inputs * keras.ops.cast(mask, inputs.dtype)[..., None]


@pytest.mark.parametrize("estimator", ["local", "batch", "example"])
@pytest.mark.parametrize(
    "cls",
    [
        keras_vdrop.VariationalEmbedding,
        keras_vdrop.VariationalReversibleEmbedding,
    ],
)
def test_mask_zero_in_fit(cls, estimator):
    layer = cls(5, 4, mask_zero=True, estimator=estimator, num_examples=4)
    model = keras.Sequential([keras.Input((3,)), layer, SeesMask()])
    model.compile("sgd", "mse")
    x = np.array([[1, 2, 0], [3, 0, 0]])
    model.fit(x, np.zeros((2, 3, 4)), verbose=0)
    outputs = to_numpy(model(x, training=True))
    assert np.all((outputs == 0).all(axis=-1) == (x == 0))


def test_flipout_is_refused():
    for cls in (
        keras_vdrop.VariationalEmbedding,
        keras_vdrop.VariationalReversibleEmbedding,
    ):
        with pytest.raises(ValueError, match="for an embedding.*at less cost"):
            cls(5, 4, estimator="flipout")


def test_half_precision():
    layer = keras_vdrop.VariationalReversibleEmbedding(
        5, 4, dtype="mixed_bfloat16", reverse_dtype="float32"
    )
    features = layer(TOKENS, training=True)
    assert keras.backend.standardize_dtype(features.dtype) == "bfloat16"
    logits = layer(features, reverse=True, training=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_conversion_and_pruning():
    embedding = keras.layers.ReversibleEmbedding(5, 4, name="table")
    tokens = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Dense(4, name="hidden")(embedding(tokens))
    plain = keras.Model(tokens, embedding(hidden, reverse=True))
    model = keras_vdrop.to_variational(
        plain, granularity="weight", max_alpha=None, kl="exact", verbose=0
    )
    table = model.get_layer("table")
    assert type(table) is keras_vdrop.VariationalReversibleEmbedding
    x = np.array([[1, 2, 0]])
    expected = plain.predict(x, verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    log_alpha = np.full((5, 4), -1.0)
    log_alpha[1] = 4.0
    table.log_alpha.assign(log_alpha)
    back = keras_vdrop.to_deterministic(model)
    assert type(back.get_layer("table")) is keras.layers.ReversibleEmbedding
    np.testing.assert_array_equal(back.predict(x, verbose=0), expected)
    pruned = keras_vdrop.to_deterministic(model, prune=3.0)
    found = to_numpy(pruned.get_layer("table").embeddings)
    np.testing.assert_array_equal((found == 0).all(axis=1), np.arange(5) == 1)


def test_saved_and_sampled(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras_vdrop.VariationalEmbedding(5, 4, granularity="input"),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(TOKENS, verbose=0), model.predict(TOKENS, verbose=0)
    )
    # The mean of a row that occurs twice and one that occurs once.
    table = to_numpy(model.layers[0].embeddings)
    alpha = 0.05 / 0.95
    expected = alpha * (4 * table[3] ** 2 + table[1] ** 2) / 9
    found = keras_vdrop.predict(
        model, TOKENS, num_samples=1000, seed=1, verbose=0
    )
    np.testing.assert_array_less(
        np.abs(found.std[0] ** 2 - expected),
        SIGMAS * expected * np.sqrt(2 / 1000),
    )
