"""Attention whose projections are random."""

import keras
import numpy as np
import pytest
from backends import operations

import keras_vdrop
from keras_vdrop.layers import VariationalLayer

DRAWS = 4000
SIGMAS = 5
LAYERS = {
    "multi_head": (
        keras_vdrop.VariationalMultiHeadAttention,
        {"num_heads": 2, "key_dim": 3},
    ),
    "group_query": (
        keras_vdrop.VariationalGroupQueryAttention,
        {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 1},
    ),
}
POSTERIORS = {
    "layer": {"noise": "independent"},
    "output": {"granularity": "output"},
    "additive": {"granularity": "weight", "parameterization": "additive"},
    "correlated": {"noise": "correlated", "granularity": "input"},
}
every_layer = pytest.mark.parametrize("case", LAYERS)
every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)
to_numpy = keras.ops.convert_to_numpy
rng = np.random.default_rng(0)
X = rng.normal(size=(2, 4, 5)).astype("float32")
MEMORY = rng.normal(size=(2, 6, 5)).astype("float32")
MASK = rng.uniform(size=(2, 4, 6)) < 0.5
MASK[..., 0] = True


def make(case, **arguments):
    cls, own = LAYERS[case]
    return cls(**own, **arguments)


def twin(layer, query, value):
    """The Keras layer with the same weights."""
    cls = layer.keras_class()
    plain = cls.from_config(cls.get_config(layer))
    plain.build(query.shape, value.shape)
    noise = {id(v) for weight in layer.random_weights for v in weight.variables}
    plain.set_weights(
        [to_numpy(v) for v in layer.weights if id(v) not in noise]
    )
    return plain


CALLS = {
    "self": {},
    "causal": {"use_causal_mask": True},
    "scores": {"return_attention_scores": True},
    "cross": {"value": MEMORY},
    "cross_key": {"value": MEMORY, "key": MEMORY[:, ::-1].copy()},
    "mask": {"value": MEMORY, "attention_mask": MASK},
    "mask_scores": {
        "value": MEMORY,
        "attention_mask": MASK,
        "return_attention_scores": True,
    },
}


@every_layer
@pytest.mark.parametrize("call", CALLS)
def test_inference_is_that_of_keras(case, call):
    arguments = {"query": X, "value": X, **CALLS[call]}
    layer = make(case, use_gate=call == "causal", dropout=0.1)
    found = layer(**arguments)
    plain = twin(layer, X, arguments["value"])
    expected = plain(**arguments)
    for a, b in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    noisy = keras.tree.flatten(layer(**arguments, training=True))
    assert all(
        np.any(to_numpy(x) != to_numpy(y))
        for x, y in zip(noisy, keras.tree.flatten(found), strict=True)
    )


@every_layer
def test_same_operations(case):
    class OfItself(keras.Layer):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention
            self.built = True

        def call(self, x, training=None):
            return self.attention(x, x, training=training)

    layer = make(case)
    layer.build(X.shape, X.shape)
    plain = twin(layer, X, X)
    expected = operations(OfItself(plain), X, training=False)
    assert operations(OfItself(layer), X, training=False) == expected


@every_layer
def test_masked_positions_have_no_influence(case):
    layer = make(case, seed=1, noise="correlated")
    layer.build(X.shape, MEMORY.shape)
    state = [to_numpy(weight.seed_state) for weight in layer.random_weights]
    found = []
    for value in (0.0, 9.0):
        memory = MEMORY.copy()
        memory[:, 3:] = value
        mask = np.broadcast_to(np.arange(6) < 3, (2, 4, 6))
        for weight, start in zip(layer.random_weights, state, strict=True):
            weight.seed_state.assign(start)
        drawn = layer(X, memory, attention_mask=mask, training=True)
        found.append(to_numpy(drawn))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


@every_layer
@every_posterior
def test_moments_of_the_values(case, posterior):
    """One key, so that the scores are 1 and the outputs are the values.

    With an output projection of ones that has next to no noise.
    """
    layer = make(case, use_bias=False, seed=1, **posterior)
    x, memory = X[:1], MEMORY[:1, :1]
    layer.build(x.shape, memory.shape)
    output = layer.output_dense if case == "multi_head" else layer._output_dense
    value = layer.value_dense if case == "multi_head" else layer._value_dense
    output.kernel.assign(np.ones(output.kernel.shape))
    output.kernel_noise.unscaled().assign(
        np.full(output.kernel_noise.variable.shape, -40.0)
    )
    weight = value.kernel_noise
    kernel = to_numpy(value.kernel)
    log_alpha = np.random.default_rng(1).uniform(-2, 0, weight.variable.shape)
    assigned = log_alpha
    if layer.parameterization == "additive":
        assigned = log_alpha + np.log(kernel**2)
    weight.unscaled().assign(assigned)
    alpha = np.exp(log_alpha)
    if layer.granularity == "input":
        alpha = alpha[:, None, None]
    drawn = layer(
        np.repeat(x, DRAWS, 0), np.repeat(memory, DRAWS, 0), training=True
    )
    drawn = to_numpy(drawn)[:, 0, 0]
    # Each query head has the value head of its group.
    heads = 2 // kernel.shape[1]
    row = memory[0, 0]
    total = heads * kernel.sum(axis=(1, 2))
    mean = row @ total
    if layer.noise == "correlated":
        variance = np.sum(alpha[:, 0, 0] * (row * total) ** 2)
    else:
        variance = np.einsum(
            "i,ihd->",
            row**2,
            heads**2 * np.broadcast_to(alpha, kernel.shape) * kernel**2,
        )
    assert abs(drawn.mean() - mean) < SIGMAS * np.sqrt(variance / DRAWS) + 1e-5
    assert abs(drawn.var() - variance) < SIGMAS * variance * np.sqrt(2 / DRAWS)


@every_layer
@pytest.mark.parametrize("seed", [None, 1])
def test_noise_of_each_projection_is_its_own(case, seed):
    layer = make(case, seed=seed, use_gate=True)
    layer.build(X.shape, X.shape)
    drawn = [
        to_numpy(weight.generator.normal((1000,), "float32"))
        for weight in layer.random_weights
    ]
    assert len(drawn) == 5
    correlation = np.corrcoef(drawn)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < SIGMAS / np.sqrt(1000)
    other = make(case, seed=seed, use_gate=True)
    other.build(X.shape, X.shape)
    again = [
        to_numpy(weight.generator.normal((1000,), "float32"))
        for weight in other.random_weights
    ]
    assert np.all(np.equal(drawn, again)) == (seed == 1)


@every_layer
@pytest.mark.parametrize(
    "estimator",
    [
        "local",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("batch", "example", "flipout")
        ),
    ],
)
def test_learns(case, estimator):
    inputs = keras.Input((4, 5))
    layer = make(case, estimator=estimator, rate=0.2)
    # Before the projections exist.
    keras_vdrop.set_num_examples(layer, 8)
    outputs = layer(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    assert layer.num_examples == 8 and len(layer.losses) == 4
    np.testing.assert_allclose(to_numpy(layer.kl_weight), 1 / 8)
    model.compile("sgd", "mse")
    before = layer.dropout_rates()
    model.fit(X, X, verbose=0)
    after = layer.dropout_rates()
    assert list(after) == ["query", "key", "value", "attention_output"]
    assert all(after[name] != before[name] for name in after)


@every_layer
def test_before_it_is_built(case):
    layer = make(case)
    assert layer.num_examples is None and layer.kl_weight is None
    with pytest.raises(ValueError, match="before it is built"):
        layer.kl()
    lines = []
    keras_vdrop.summary(layer, print_fn=lines.append)
    assert any("not built" in line for line in lines)
    layer.scale_kl(0.5)
    layer.set_num_examples(4)
    layer.scale_kl(0.25)
    layer.build(X.shape, X.shape)
    np.testing.assert_allclose(to_numpy(layer.kl_weight), 0.25 / 4)


@every_layer
def test_kl(case):
    layer = make(case, rate=0.2, kl="ard", noise="correlated")
    layer.build(X.shape, X.shape)
    # The features of three projections, and the units of all heads.
    expected = (3 * 5 + 2 * 3) * 0.5 * np.log1p(0.8 / 0.2)
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)


@every_layer
def test_saved_converted_and_sampled(case, tmp_path):
    query, memory = keras.Input((4, 5)), keras.Input((6, 5))
    layer = make(case, granularity="output", use_gate=True, name="attention")
    model = keras.Model([query, memory], layer(query, memory))
    assert keras_vdrop.variational_layers(model) == [layer]
    layer.random_weights[1].unscaled().assign(
        np.full(layer.random_weights[1].variable.shape, -2.0)
    )
    x = [X, MEMORY]
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    plain = keras_vdrop.to_deterministic(model)
    assert type(plain.get_layer("attention")) is type(layer).keras_class()
    assert not any(
        isinstance(x, VariationalLayer) for x in plain._flatten_layers()
    )
    np.testing.assert_array_equal(plain.predict(x, verbose=0), expected)
    again = keras_vdrop.to_variational(
        plain, granularity="weight", parameterization="additive", verbose=0
    )
    np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
    rates = again.get_layer("attention").dropout_rates()
    np.testing.assert_allclose(rates["key"], 0.05, rtol=1e-5)
    # A variational model is left as it is, noise included.
    found = keras_vdrop.predict(model, x, num_samples=4, verbose=0)
    assert np.all(found.std > 0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


@every_layer
def test_pruned(case):
    inputs = keras.Input((4, 5))
    layer = make(case, granularity="weight", max_alpha=None, kl="exact")
    model = keras.Model(inputs, layer(inputs, inputs))
    layer.random_weights[2].unscaled().assign(
        np.full(layer.random_weights[2].variable.shape, 5.0)
    )
    plain = keras_vdrop.to_deterministic(model, prune=3.0, verbose=1)
    zero = [
        x.name
        for x in plain._flatten_layers()
        if hasattr(x, "kernel") and not np.any(to_numpy(x.kernel))
    ]
    # Where all heads have gone, nothing of their outputs is read.
    assert set(zero) - {"attention_output"} == {"value"}


@every_layer
def test_flash_attention_is_kept(case):
    layer = make(case, flash_attention=True)
    again = type(layer).from_config(layer.get_config())
    assert again._flash_attention
    with pytest.raises(ValueError, match="flash attention"):
        make(case, flash_attention=True, dropout=0.1)
    layer.build(X.shape, X.shape)
    with pytest.raises(ValueError, match="flash"):
        layer(X, X, return_attention_scores=True)


@every_layer
def test_frozen(case):
    inputs = keras.Input((4, 5))
    layer = make(case, trainable=False)
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("sgd", "mse")
    # Nothing is learned, so that no number of examples is needed.
    assert model.trainable_variables == []
    model.evaluate(X, X, verbose=0)


@pytest.mark.slow
@every_layer
def test_rematerialized_noise_is_the_noise_of_the_forward_pass(case):
    def trained(mode):
        keras.utils.set_random_seed(3)
        with keras.RematScope(mode=mode):
            layer = make(case, seed=1, num_examples=8)
        inputs = keras.Input((4, 5))
        model = keras.Model(inputs, layer(inputs, inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(X, X, verbose=0)
        return model.get_weights()

    for a, b in zip(trained(None), trained("full"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
