import sys

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop import plot_rates
from keras_vdrop import summary
from keras_vdrop.diagnostics import measures
from keras_vdrop.diagnostics import readings
from keras_vdrop.diagnostics.report import report


def lines_of(model, **arguments):
    lines = []
    found = summary(model, print_fn=lines.append, **arguments)
    assert str(found) == "\n".join(lines)
    return lines


def cells_of(model, **arguments):
    """The cells of each row by its first, which is the layer's name."""
    lines = lines_of(model, **arguments)[5:]
    end = next(n for n, line in enumerate(lines) if line[:1] == "━")
    rows = [line.split() for line in lines[:end]]
    return {row[0]: row[1:] for row in rows if row}


def sequential(shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


def test_rates_kl_and_bits_are_the_closed_forms():
    # -log(alpha) / 2 nats: one bit for alpha = 1/4, two for 1/16.
    arguments = {"kl": "lower_bound", "granularity": "output"}
    dense = keras_vdrop.VariationalDense(
        2, name="dense", noise="independent", **arguments
    )
    conv = keras_vdrop.VariationalConv2D(4, (3, 2), name="conv", **arguments)
    model = sequential((8, 8, 3), conv, dense)
    conv.log_alpha.assign(np.log([1 / 4, 1 / 4, 1 / 16, 1 / 16]))
    dense.log_alpha.assign(np.log([1, 1 / 4]))
    cells = cells_of(model)
    # Rates alpha / (1 + alpha) of 1/5, 1/17, 1/2.
    nats = 108 * np.log(2), 4 * np.log(2), 112 * np.log(2)
    assert cells["conv"] == [
        "independent",
        "output",
        f"{(1 / 5 + 1 / 17) / 2:.3f}",
        f"{1 / 17:.3f}",
        "0.200",
        f"{nats[0]:.1f}",
        "1.500",
        "0.0%",
    ]
    assert cells["dense"][2:] == [
        "0.350",
        "0.200",
        "0.500",
        f"{nats[1]:.1f}",
        "0.500",
        "0.0%",
    ]
    assert cells["Total"] == [f"{nats[2]:.1f}", f"{112 / 80:.3f}", "0.0%"]
    assert "Weights with noise: 80" in lines_of(model)


def test_bits_are_those_of_the_relative_deviation_and_a_constant():
    """For small alpha, as docs/insight.md has it."""
    constants = {
        "lower_bound": 0,
        "polynomial": 1.16145124 - 1.50204118 + 0.58629921,
        "exact": (np.log(2) + np.euler_gamma) / 2,
    }
    for kl, constant in constants.items():
        layer = keras_vdrop.VariationalDense(
            5, kl=kl, rate=1e-4, name="dense", noise="independent"
        )
        bits = float(cells_of(sequential((4,), layer))["dense"][6])
        expected = -np.log2(np.sqrt(1e-4)) + constant / np.log(2)
        assert abs(bits - expected) < 2e-3, kl


def test_type_a_has_a_kl_for_each_input():
    arguments = {"kl": "lower_bound", "rate": 0.2}
    dense = keras_vdrop.VariationalDense(
        5, noise="correlated", name="dense", **arguments
    )
    dropout = keras_vdrop.VariationalDropout(name="dropout", **arguments)
    cells = cells_of(sequential((4,), dropout, dense))
    nats = f"{4 * np.log(2):.1f}"
    assert cells["dense"][0] == cells["dropout"][0] == "correlated"
    assert cells["dense"][5:] == [nats, "0.200", "0.0%"]
    assert cells["dropout"][5:] == [nats, "-", "0.0%"]
    assert cells["Total"] == [f"{8 * np.log(2):.1f}", "0.200", "0.0%"]


def test_code_length():
    """A nat is 1 / log(2) bits, and layers of noise alone have no weights."""
    dense = keras_vdrop.VariationalDense(
        100, noise="independent", kl="lower_bound", rate=1e-3
    )
    dropout = keras_vdrop.VariationalDropout(kl="lower_bound", rate=1e-3)
    lines = lines_of(sequential((50,), dropout, dense))
    # A bit each is -log2(sqrt(alpha)).
    expected = 5000 * -np.log2(np.sqrt(1e-3 / 0.999)) / 8
    assert f"Code length: KL / log(2) = {expected:,.0f} bytes" in lines
    fixed = keras_vdrop.VariationalDense(2, adaptive=False)
    assert not any("Code" in x for x in lines_of(sequential((3,), fixed)))


def test_size_of_the_file(tmp_path):
    """Beside the code length: of the file that is written."""
    sparse = {"granularity": "weight", "kl": "exact", "max_alpha": None}
    layer = keras_vdrop.VariationalDense(30, **sparse)
    model = sequential((40,), layer)
    log_alpha = np.random.default_rng(0).uniform(-6, 6, (40, 30))
    layer.log_alpha.assign(log_alpha)
    lines = lines_of(model, threshold=2.0, precision=0.5)
    small = keras_vdrop.to_deterministic(
        model, prune=2.0, precision=0.5, verbose=0
    )
    path = tmp_path / "small.kvz"
    keras_vdrop.save_compressed(small, path)
    size = f"{path.stat().st_size:,} bytes"
    expected = f"File, pruned and rounded with precision 0.5: {size}"
    assert lines[-1] == expected and "Code length" in lines[-2]
    assert not any("File" in line for line in lines_of(model))


@pytest.mark.parametrize("threshold, share", [(3.0, 0.25), (-1, 0.75)])
def test_share_of_weights_that_could_go(threshold, share):
    unlimited = keras_vdrop.VariationalDense(
        2, granularity="weight", kl="exact", max_alpha=None, name="unlimited"
    )
    bounded = keras_vdrop.VariationalDense(
        4, rate=0.2, name="bounded", noise="independent"
    )
    model = sequential((2,), unlimited, bounded)
    unlimited.log_alpha.assign([[3.1, 2.9], [-0.9, -1.1]])
    cells = cells_of(model, threshold=threshold)
    assert cells["unlimited"][-1] == f"{share:.1%}"
    assert cells["bounded"][-1] == "0.0%"
    assert cells["Total"][-1] == f"{share * 4 / 12:.1%}"
    lines = lines_of(model, threshold=threshold)
    assert any(line.endswith(f"above {threshold:g}") for line in lines)


def test_rates_that_did_not_move_or_are_at_the_limit():
    still = keras_vdrop.VariationalDense(2, name="still", noise="independent")
    moved = keras_vdrop.VariationalDense(2, name="moved", noise="correlated")
    limit = keras_vdrop.VariationalDense(
        2,
        name="limit",
        granularity="output",
        max_alpha=0.5,
        noise="independent",
    )
    fixed = keras_vdrop.VariationalDense(
        2, name="fixed", adaptive=False, noise="independent"
    )
    model = sequential((3,), still, moved, limit, fixed)
    moved.log_alpha.assign(-2.0)
    limit.log_alpha.assign([-3.0, np.log(0.5)])
    text = " ".join(lines_of(model))
    assert "where they began: still." in text
    # Half of the rates are not more than half.
    assert "at the limit" not in text
    limit.log_alpha.assign([np.log(0.5), np.log(0.5)])
    text = " ".join(lines_of(model))
    assert "at the limit of `max_alpha`: limit (100%)." in text


def test_fixed_rates_have_no_kl():
    layer = keras_vdrop.VariationalDense(
        2, rate=0.9, adaptive=False, name="fixed", noise="independent"
    )
    cells = cells_of(sequential((3,), layer))
    assert cells["fixed"][2:] == ["0.900", "0.900", "0.900", "-", "-", "-"]
    assert cells["Total"] == ["-", "-", "-"]


def test_nested_shared_and_wrapped_layers_once_and_in_order():
    def dense(name):
        return keras_vdrop.VariationalDense(3, name=name, noise="independent")

    shared = dense("shared")
    plain = keras.layers.Dense(3)
    inner = sequential((4, 3), dense("b"), plain, shared, dense("c"))
    inputs = keras.Input((4, 3))
    outputs = inner(dense("a")(inputs))
    outputs = keras.layers.TimeDistributed(dense("wrapped"))(outputs)
    outputs = dense("b")(shared(shared(outputs)))
    rows = list(cells_of(keras.Model(inputs, outputs, name="whole")))
    names = [row for row in rows if row.islower()]
    assert names == ["a", "b", "shared", "c", "wrapped", "b_1"]


def test_layers_that_are_not_built_are_told():
    model = keras.Sequential(
        [
            keras_vdrop.VariationalDense(
                3, name="a", granularity="input", noise="independent"
            )
        ]
    )
    assert cells_of(model)["a"] == ["independent", "input", "not", "built"]
    assert any("call the model on some data" in x for x in lines_of(model))
    with pytest.raises(ValueError, match="before it is built"):
        plot_rates(model)


@pytest.mark.parametrize("line_length", [None, 74, 104])
def test_lines_have_a_limit(line_length, capsys):
    layer = keras_vdrop.VariationalDense(
        3, name="the_first_of_the_layers_of_this_model", noise="independent"
    )
    model = sequential((3000,), layer)
    summary(model, line_length=line_length)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= (line_length or 88)
    # A name that is too long goes on in the next lines.
    start = lines[5].split()[0]
    rest = [line for line in lines[6:] if "─" not in line]
    for line in rest:
        if start == layer.name:
            break
        start += line
    assert start == layer.name
    assert (line_length == 104) == (rest[0].startswith("Total"))


@pytest.mark.parametrize(
    "arguments, argument",
    [
        ({"line_length": 0}, "line_length"),
        ({"threshold": None}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"precision": 0.0}, "precision"),
    ],
)
def test_bad_arguments_of_summary_are_refused(arguments, argument):
    model = sequential(
        (2,), keras_vdrop.VariationalDense(1, noise="independent")
    )
    with pytest.raises(ValueError, match=f"argument `{argument}`"):
        summary(model, **arguments)


@pytest.mark.parametrize("function", [summary, plot_rates])
@pytest.mark.parametrize("model", [None, keras.Sequential()])
def test_models_without_rates_are_refused(function, model):
    with pytest.raises(ValueError, match="argument `model`"):
        function(model)


def input_layer(pixels=None, **arguments):
    layer = keras_vdrop.VariationalDense(
        2, granularity="input", name="first", noise="independent", **arguments
    )
    if pixels is not None:
        layer.build((None, pixels))
    return layer


def test_histograms_are_those_of_the_rates():
    pixels = input_layer()
    one = keras_vdrop.VariationalDense(
        3, rate=0.2, name="one", noise="independent"
    )
    last = keras_vdrop.VariationalDense(
        40, granularity="weight", max_alpha=None, kl="exact", name="last"
    )
    model = sequential((10,), pixels, one, last)
    log_alpha = np.random.default_rng(0).normal(0, 2, (3, 40))
    last.log_alpha.assign(log_alpha)
    figure = plot_rates(model, bins=20)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["first", "one", "last"]
    heights = [bar.get_height() for bar in figure.axes[2].patches]
    rates = 1 / (1 + np.exp(-log_alpha))
    expected, _ = np.histogram(rates, bins=20, range=(0, 1))
    np.testing.assert_array_equal(heights, expected)
    assert f"mean {rates.mean():.3f}" in figure.axes[2].get_xlabel()
    assert figure.axes[2].get_ylabel() == "weights"
    (line,) = figure.axes[1].lines
    np.testing.assert_allclose(line.get_xdata(), 0.2, rtol=1e-5)
    assert not figure.axes[1].patches


@pytest.mark.parametrize(
    "input_shape, image_shape, expected",
    [
        ((12,), (3, 4), (3, 4)),
        ((12,), (2, 2, 3), (2, 2)),
        ((16,), None, (4, 4)),
        ((16,), (2, 8), (2, 8)),
        ((12,), None, None),
        ((3, 4), None, (3, 4)),
        ((2, 3, 2), None, (2, 3)),
    ],
)
def test_the_image_is_over_the_input(input_shape, image_shape, expected):
    layer = input_layer()
    flatten = keras.layers.Flatten()
    # The second has a square number of inputs, which are no pixels.
    second = keras_vdrop.VariationalDense(
        9, granularity="input", noise="independent"
    )
    third = keras_vdrop.VariationalDense(
        2, granularity="input", noise="independent"
    )
    model = sequential(input_shape, flatten, layer, second, third)
    log_alpha = -np.arange(np.prod(input_shape), dtype="float32")
    layer.log_alpha.assign(log_alpha)
    figure = plot_rates(model, image_shape=image_shape)
    images = [axes.images[0] for axes in figure.axes if axes.images]
    if expected is None:
        assert not images
        return
    (image,) = images
    rates = 1 / (1 + np.exp(-log_alpha))
    rates = rates.reshape(*expected, -1).mean(axis=-1)
    np.testing.assert_allclose(image.get_array(), rates, rtol=1e-5)
    assert image.get_clim() == (0, 0.5)


def test_no_image_of_what_are_no_pixels():
    conv = keras_vdrop.VariationalConv2D(2, 1, granularity="input")
    output = keras_vdrop.VariationalDense(
        4, granularity="output", noise="independent"
    )
    hidden = [keras.layers.Dense(9), input_layer()]
    models = [
        sequential((4, 4, 4), conv),
        sequential((4,), output),
        sequential((16,), *hidden),
        input_layer(pixels=16),
    ]
    for model in models:
        assert len(plot_rates(model).axes) == 1


def test_the_figure_is_written_and_not_kept(tmp_path):
    import matplotlib.pyplot

    figure = plot_rates(sequential((16,), input_layer()))
    figure.savefig(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 5_000
    assert matplotlib.pyplot.get_fignums() == []


@pytest.mark.parametrize(
    "granularity, arguments, argument",
    [
        ("input", {"image_shape": (3, 5)}, "image_shape"),
        ("input", {"image_shape": 16}, "image_shape"),
        ("input", {"image_shape": (16,)}, "image_shape"),
        ("output", {"image_shape": (4, 4)}, "image_shape"),
        ("input", {"bins": 0}, "bins"),
    ],
)
def test_bad_arguments_of_plot_rates_are_refused(
    granularity, arguments, argument
):
    layer = keras_vdrop.VariationalDense(
        16, granularity=granularity, noise="independent"
    )
    with pytest.raises(ValueError, match=f"argument `{argument}`"):
        plot_rates(sequential((16,), layer), **arguments)


def test_plot_rates_without_matplotlib_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_rates(sequential((2,), input_layer()))


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_normalization_that_trains_with_noise_is_told(trainable):
    norm = keras.layers.BatchNormalization(trainable=trainable)
    model = sequential((3,), keras_vdrop.VariationalDense(2), norm)
    lines = lines_of(model)
    found = [line for line in lines if "update_batch_normalization" in line]
    assert len(found) == trainable
    assert max(map(len, lines)) <= 88
    shown = keras_vdrop.summary(model, print_fn=str)
    assert ("update_batch" in shown._repr_html_()) == trainable


def of_many_kinds():
    """A model of several layers of each of several kinds, in turns."""
    weights = {"granularity": "weight"}
    kinds = [
        {"noise": "correlated"},
        weights,
        {**weights, "parameterization": "additive"},
        {"granularity": "input", "noise": "independent"},
        {"adaptive": False, "rate": 0.2},
        {**weights, "kl": "normal"},
    ]
    layers = [
        keras_vdrop.VariationalDense(4, num_examples=10, **kind)
        for kind in 3 * kinds
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    generator = np.random.default_rng(0)
    for layer in layers:
        alphas = layer.kernel_noise.variable
        values = (
            generator.uniform(-3, 2, alphas.shape) / layer.kernel_noise.speed
        )
        alphas.assign(values)
    which = generator.random((4, 4)) < 0.3
    layers[7].kernel_noise.prune(which)
    return model


@pytest.mark.parametrize("few", [1, 2**16])
def test_readings_of_layers_of_a_kind(monkeypatch, few):
    monkeypatch.setattr(readings, "FEW", few)
    model = of_many_kinds()
    histogram = measures.Histogram(10, is_whole=True)
    found = report(model, threshold=0.5, histogram=histogram)
    for one, layer in zip(found, model.layers, strict=True):
        rates = layer.dropout_rates()
        numbers = one.mean, one.least, one.greatest
        expected = rates.mean(), rates.min(), rates.max()
        np.testing.assert_allclose(numbers, expected, rtol=1e-5)
        counts, _ = np.histogram(rates, 10, (0, 1))
        np.testing.assert_array_equal(one.counts, counts)
        if not layer.adaptive:
            assert one.kl is None
            continue
        np.testing.assert_allclose(one.kl, layer.kl(), rtol=1e-5)
        above = np.mean(rates > 1 / (1 + np.exp(-0.5)))
        assert one.prunable == pytest.approx(above)


def test_one_call_for_all_layers(monkeypatch):
    calls = []

    def compiled(function):
        return lambda *given: calls.append(1) or function(*given)

    monkeypatch.setattr(readings.backend, "compiled", compiled)
    layers = [
        keras_vdrop.VariationalDense(4, num_examples=10, granularity=name)
        for name in ("layer", "weight", "input", "output", "weight")
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    report(model)
    assert len(calls) == 1
    readings.read_kl(model, [layer.kernel_noise for layer in layers])
    assert len(calls) == 2
