"""Every recurrent layer is Keras's with one sample of its weights a sequence.

For each example with correlated noise, for the minibatch with independent
noise: the reference is the Keras layer with these weights.
"""

import keras
import numpy as np
import pytest
from backends import gradients
from backends import operations

import keras_vdrop
from keras_vdrop.core.random_weight import RandomWeight

pytestmark = pytest.mark.slow

# Layer, arguments, shape of one sequence.
CASES = {
    "simple_rnn": (keras_vdrop.VariationalSimpleRNN, {"units": 4}, (4, 3)),
    "gru": (keras_vdrop.VariationalGRU, {"units": 4}, (4, 3)),
    "gru_reset_before": (
        keras_vdrop.VariationalGRU,
        {"units": 4, "reset_after": False},
        (4, 3),
    ),
    "lstm": (keras_vdrop.VariationalLSTM, {"units": 4}, (4, 3)),
    "conv_lstm1d": (
        keras_vdrop.VariationalConvLSTM1D,
        {"filters": 2, "kernel_size": 2, "padding": "same"},
        (3, 3, 2),
    ),
    "conv_lstm2d": (
        keras_vdrop.VariationalConvLSTM2D,
        {"filters": 2, "kernel_size": (2, 1), "strides": (1, 2)},
        (3, 3, 2, 2),
    ),
    "conv_lstm3d": (
        keras_vdrop.VariationalConvLSTM3D,
        {"filters": 2, "kernel_size": 2},
        (2, 2, 2, 2, 2),
    ),
}
SAMPLED = {"noise": "independent", "estimator": "batch"}
POSTERIORS = {
    "layer": {},
    "input": {"granularity": "input"},
    "correlated-batch": {"estimator": "batch"},
    "output": {**SAMPLED, "granularity": "output"},
    "additive": {
        **SAMPLED,
        "granularity": "weight",
        "parameterization": "additive",
    },
}
OPTIONS = {
    "last": {},
    "all": {"return_sequences": True, "return_state": True},
    "backwards": {"go_backwards": True, "use_bias": False},
    "unroll": {"unroll": True, "bias_initializer": "ones"},
}
every_case = pytest.mark.parametrize("case", CASES)
NOT_TORCH = keras.backend.backend() != "torch"


def to_numpy(outputs):
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


def build(case, **arguments):
    cls, own, shape = CASES[case]
    arguments = {"num_examples": 10, "rate": 0.3, "seed": 1, **arguments}
    layer = cls(**own, **arguments)
    layer.build((None, *shape))
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    return layer, x


def kernels_of(cell):
    return to_numpy([cell.kernel, cell.recurrent_kernel])


def twin(layer, kernels=None):
    """The Keras layer, with the weights of the other or with some kernels."""
    cls = layer.keras_class()
    plain = cls.from_config(cls.get_config(layer))
    plain.build(layer.get_build_config()["input_shape"])
    set_cell(plain.cell, layer.cell, kernels)
    return plain


def set_cell(plain, cell, kernels=None):
    kernels = kernels_of(cell) if kernels is None else kernels
    plain.kernel.assign(kernels[0])
    plain.recurrent_kernel.assign(kernels[1])
    if cell.bias is not None:
        plain.bias.assign(cell.bias)


@pytest.fixture
def drawn(monkeypatch):
    """What random weights draw, by their names, one after the other."""
    found = {}

    def record(name):
        original = getattr(RandomWeight, name)

        def wrapped(self, *args, **kwargs):
            value = original(self, *args, **kwargs)
            found.setdefault(id(self), []).append(value)
            return value

        monkeypatch.setattr(RandomWeight, name, wrapped)

    record("scales")
    record("sample")
    return found


def samples_of(cell, drawn, example):
    """The kernels of an example, by what was drawn: once for each kernel."""
    kernels = []
    for weight, mean in zip(cell.random_weights, kernels_of(cell), strict=True):
        (value,) = to_numpy(drawn[id(weight)])
        if cell.estimator == "local":
            # One factor for each example and each input or channel.
            assert value.size == len(value) * mean.shape[-2]
            value = mean * value[example].reshape(-1, 1)
        kernels.append(value)
    return kernels


def assert_same(found, expected):
    for a, b in zip(to_numpy(found), to_numpy(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def check_samples(layer, x, drawn, mask=None):
    found = to_numpy(layer(x, mask=mask, training=True))
    for example in range(len(x)):
        rows = slice(example, example + 1)
        plain = twin(layer, samples_of(layer.cell, drawn, example))
        expected = plain(x[rows], mask=None if mask is None else mask[rows])
        assert_same([value[rows] for value in found], expected)


# The options are those of the loop of Keras: on two layers, with both noises.
SWEEP = [(case, posterior, "all") for case in CASES for posterior in POSTERIORS]
SWEEP += [
    (case, posterior, option)
    for case, posterior in (("gru", "layer"), ("conv_lstm1d", "output"))
    for option in OPTIONS
    if option != "all"
]


@pytest.mark.parametrize(
    "case, posterior, option",
    [
        pytest.param(
            *some,
            marks=[pytest.mark.slow]
            * (some[0] not in ("gru", "gru_reset_before", "conv_lstm1d")),
        )
        for some in SWEEP
    ],
)
def test_a_sequence_has_one_sample_of_the_weights(
    case, posterior, option, drawn
):
    layer, x = build(case, **POSTERIORS[posterior], **OPTIONS[option])
    check_samples(layer, x, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["layer", "output"])
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        # A ConvLSTM of Keras 3.15 fails with a mask on jax.
        if "conv" not in case or keras.backend.backend() != "jax"
    ],
)
def test_with_a_mask(case, posterior, drawn):
    layer, x = build(case, **POSTERIORS[posterior], return_sequences=True)
    mask = np.ones(x.shape[:2], bool)
    mask[1, -1] = False
    check_samples(layer, x, drawn, mask)


@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
def test_scales_are_normal_and_of_each_channel(data_format, drawn):
    if data_format == "channels_first" and not NOT_TORCH:
        pytest.skip("one backend with another order is enough")
    count, channels = 3000, 2
    layer = keras_vdrop.VariationalConvLSTM1D(
        3, 2, granularity="input", data_format=data_format, seed=1
    )
    shape = (1, 2, channels, 3) if "first" in data_format else (1, 2, 3, 2)
    layer.build((None, *shape[1:]))
    for number, weight in enumerate(layer.random_weights):
        size = weight.variable.shape[0]
        weight.unscaled().assign(np.linspace(-2, -0.5 - number, size))
    if keras.backend.backend() == "tensorflow" and "first" in data_format:
        pytest.skip("tensorflow cannot convolve these on a CPU")
    layer(np.ones((count, *shape[1:]), "float32"), training=True)
    columns = []
    for weight in layer.random_weights:
        (scales,) = to_numpy(drawn[id(weight)])
        scales = scales.reshape(count, -1)
        alpha = np.exp(keras.ops.convert_to_numpy(weight.unscaled()))
        assert np.all(np.abs(scales.mean(0) - 1) < 5 * np.sqrt(alpha / count))
        assert np.all(
            np.abs(scales.var(0) / alpha - 1) < 5 * np.sqrt(2 / count)
        )
        columns.append(scales)
    correlation = np.corrcoef(np.concatenate(columns, axis=1), rowvar=False)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / np.sqrt(count)


@every_case
def test_a_sample_of_the_weights_shares_scales_as_the_factors_do(case):
    """One scale for all the weights of a channel, over the window too."""
    layer, _ = build(case)
    for weight, mean in zip(
        layer.random_weights, kernels_of(layer.cell), strict=True
    ):
        scales = keras.ops.convert_to_numpy(weight.sample()) / mean
        expected = scales.reshape(-1, *scales.shape[-2:])[0, :, :1]
        np.testing.assert_allclose(
            scales, np.broadcast_to(expected, scales.shape), rtol=1e-4
        )
        assert len(set(expected.ravel())) == expected.size


@every_case
def test_inference_is_that_of_keras(case):
    layer, x = build(case)
    plain = twin(layer)
    np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(plain(x)))
    assert operations(layer, x, training=False) == operations(
        plain, x, training=False
    )


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout": 0.4},
        {"dropout": 0.4, "recurrent_dropout": 0.3},
        {
            "dropout": 0.4,
            "implementation": 1,
            "use_bias": False,
            # Keras 3.15 forgets that there is a mask for each gate then.
            "use_cudnn": False,
        },
        {"bias_initializer": "glorot_uniform", "activation": "relu"},
    ],
    ids=str,
)
def test_a_step_of_a_gru_without_variance_is_that_of_keras(
    arguments, reset_after
):
    arguments = {**arguments, "reset_after": reset_after, "seed": 1}
    layer = keras_vdrop.VariationalGRU(4, **arguments)
    plain = keras.layers.GRU(4, **arguments)
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    layer.build(x.shape)
    plain.build(x.shape)
    set_cell(plain.cell, layer.cell)
    for weight in layer.random_weights:
        weight.unscaled().assign(-60.0)
    assert_same(layer(x, training=True), plain(x, training=True))


@every_case
def test_kl_counts_both_kernels(case):
    layer, _ = build(case, kl="lower_bound", rate=0.2)
    inputs, state = (x.shape[-2] for x in kernels_of(layer.cell))
    expected = -np.log(0.25) / 2 * (inputs + state)
    np.testing.assert_allclose(layer.kl(), expected, rtol=1e-5)
    assert len(layer.losses) == 2


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["input", "additive"])
@every_case
def test_gradients_reach_everything_and_are_finite(case, posterior):
    layer, x = build(case, **POSTERIORS[posterior])
    _, _, *found = gradients(keras.ops.sum, layer, x)
    assert len(found) == 5
    for value in found:
        assert np.all(np.isfinite(value)) and np.any(value != 0)


@pytest.mark.parametrize("layer_class", [keras.layers.GRU, keras.layers.LSTM])
def test_a_fused_loop_is_for_inference_alone(layer_class, monkeypatch):
    def fused(*args, **kwargs):
        raise NotImplementedError("a fused loop")

    cls = {
        "GRU": keras_vdrop.VariationalGRU,
        "LSTM": keras_vdrop.VariationalLSTM,
    }
    layer = cls[layer_class.__name__](4, use_cudnn=True)
    x = np.ones((2, 3, 3), "float32")
    layer.build(x.shape)
    monkeypatch.setattr(layer_class, "inner_loop", fused)
    assert layer(x, training=True).shape == (2, 4)
    with pytest.raises(NotImplementedError, match="a fused loop"):
        layer(x)


def test_bad_arguments_of_keras_are_refused_as_keras_does():
    with pytest.raises(ValueError, match="use_cudnn"):
        keras_vdrop.VariationalGRU(4, use_cudnn="maybe")
    with pytest.raises(ValueError, match="units"):
        keras_vdrop.VariationalSimpleRNN(-1)
    with pytest.raises(ValueError, match="nonsense"):
        keras_vdrop.VariationalLSTM(4, nonsense=1)


@every_case
def test_estimators_that_make_no_sense_are_refused(case):
    for arguments in ({"noise": "independent"}, {"estimator": "flipout"}):
        with pytest.raises(ValueError, match="argument `estimator`"):
            build(case, **arguments)
    layer, _ = build(case, **SAMPLED)
    with pytest.raises(ValueError, match="argument `estimator`"):
        layer.estimator = "local"
    assert layer.estimator == "batch"


def stacked(*cells):
    return keras.layers.RNN(keras.layers.StackedRNNCells(cells))


@pytest.mark.parametrize("estimator", ["local", "batch"])
def test_stacked_cells(estimator, drawn):
    """In a plain `RNN`: one draw for each kernel and sequence."""
    cells = [
        keras_vdrop.layers.VariationalGRUCell(4, estimator=estimator),
        keras_vdrop.layers.VariationalSimpleRNNCell(3, estimator=estimator),
        keras_vdrop.layers.VariationalLSTMCell(2, estimator=estimator),
    ]
    layer = stacked(*cells)
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    (found,) = to_numpy(layer(x, training=True))
    for example in range(2):
        plain_cells = [cell.keras_class()(cell.units) for cell in cells]
        plain = stacked(*plain_cells)
        plain.build(x.shape)
        for cell, other in zip(cells, plain_cells, strict=True):
            set_cell(other, cell, samples_of(cell, drawn, example))
        rows = slice(example, example + 1)
        assert_same(found[rows], plain(x[rows]))
    # The next sequence has noise of its own.
    assert np.abs(to_numpy(layer(x, training=True))[0] - found).min() > 0
    assert {len(values) for values in drawn.values()} == {2}


def test_a_call_that_failed_leaves_no_noise_behind(drawn):
    cell = keras_vdrop.layers.VariationalGRUCell(4)
    layer = keras.layers.RNN(cell)
    x = np.ones((2, 3, 3), "float32")
    activation = cell.activation

    def failing(values):
        raise RuntimeError("in the middle of a sequence")

    layer.build(x.shape)
    cell.activation = failing
    with pytest.raises(RuntimeError, match="in the middle"):
        layer(x, training=True)
    cell.activation = activation
    layer(x, training=True)
    assert {len(values) for values in drawn.values()} == {2}
    plain = keras.layers.RNN(keras.layers.GRUCell(4))
    plain.build(x.shape)
    set_cell(plain.cell, cell)
    np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(plain(x)))


def test_directions_have_noise_of_their_own(drawn):
    layer = keras.layers.Bidirectional(keras_vdrop.VariationalGRU(3, seed=1))
    x = np.ones((2, 4, 3), "float32")
    layer(x, training=True)
    assert len(drawn) == 4
    forward, backward = (
        to_numpy(drawn[id(part.cell.kernel_noise)])[0]
        for part in (layer.forward_layer, layer.backward_layer)
    )
    assert not np.any(forward == backward)


def test_time_distributed_has_one_sample_for_each_sequence(drawn):
    inner, x = build("gru")
    layer = keras.layers.TimeDistributed(inner)
    sequences = np.stack([x, x], axis=1)
    (found,) = to_numpy(layer(sequences, training=True))
    assert not np.any(found[:, 0] == found[:, 1])
    assert {len(values) for values in drawn.values()} == {2}
    assert len(layer.losses) == 2


def test_stateful_sequences_go_on():
    layer = keras_vdrop.VariationalGRU(4, stateful=True, num_examples=10)
    x = np.ones((2, 3, 3), "float32")
    layer(x, training=True)
    plain = twin_of_states(layer, x)
    for _ in range(2):
        np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(plain(x)))


def twin_of_states(layer, x):
    plain = keras.layers.GRU.from_config(keras.layers.GRU.get_config(layer))
    plain.build(x.shape)
    set_cell(plain.cell, layer.cell)
    layer.reset_state()
    return plain


def models(case):
    """Plain models that have the layer in every place."""
    cls, own, shape = CASES[case]
    plain = cls.keras_class()
    yield [plain(**own)]
    if "conv" not in case:
        cell = getattr(keras.layers, f"{plain.__name__}Cell")
        yield [keras.layers.Bidirectional(plain(**own))]
        yield [stacked(cell(3), cell(2))]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in ("gru",)))
        for x in CASES
    ],
)
@pytest.mark.parametrize("posterior", ["layer", "additive"])
def test_models(case, posterior, tmp_path):
    """Conversion, training, files, predictions and the way back."""
    shape = CASES[case][2]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(16, *shape)).astype("float32")
    y = x.reshape(16, -1)[:, :1]
    for layers in models(case):
        plain = keras.Sequential(
            [keras.Input(shape), *layers, keras.layers.Flatten()]
        )
        plain.add(keras.layers.Dense(1))
        model = keras_vdrop.to_variational(
            plain,
            lambda layer: type(layer) is not keras.layers.Dense,
            verbose=0,
            seed=1,
            **{"noise": "correlated", **POSTERIORS[posterior]},
        )
        expected = plain.predict(x, verbose=0)
        np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
        back = keras_vdrop.to_deterministic(model)
        assert [type(a) for a in back.layers] == [type(a) for a in plain.layers]
        np.testing.assert_array_equal(back.predict(x, verbose=0), expected)
        # On torch that would be a compiler of C++, for minutes.
        model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=NOT_TORCH)
        with pytest.raises(ValueError, match="number of training examples"):
            model.fit(x, y, verbose=0)
        keras_vdrop.set_num_examples(model, 1000)
        weights = [
            weight
            for layer in keras_vdrop.variational_layers(model)
            for weight in layer.random_weights
        ]
        assert len(model.losses) == len(weights)
        before = model.evaluate(x, y, verbose=0)
        model.fit(x, y, epochs=10, verbose=0)
        assert model.evaluate(x, y, verbose=0) < before
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        found = keras_vdrop.predict(loaded, x, num_samples=3, verbose=0)
        assert np.all(found.std > 0)
        np.testing.assert_array_equal(
            loaded.predict(x, verbose=0), model.predict(x, verbose=0)
        )
