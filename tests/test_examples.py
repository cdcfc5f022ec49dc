"""A smoke run of each example, as a newcomer would start it."""

import pathlib
import runpy
import subprocess
import sys

import keras
import pytest
from backends import environment_of

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def start(name, *arguments, folder):
    """In a process of its own: returns what it prints."""
    completed = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env=environment_of(),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs an example in this process, which has imported keras already."""

    def run(name, *arguments):
        path = str(EXAMPLES / name)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def test_quickstart(tmp_path):
    out = start("quickstart.py", "--epochs", 2, "--seeds", 1, folder=tmp_path)
    assert "Variational A" in out and "learned rates" in out
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


def test_divergences(run, tmp_path):
    out = run("divergences.py")
    assert "polynomial" in out
    assert (tmp_path / "divergences.png").stat().st_size > 10_000


def test_sparsify_and_its_resuming(run, tmp_path):
    options = ["--data", "digits", "--epochs", 2, "--seeds", 1]
    out = run("sparsify.py", *options, "--kl", "exact")
    assert "fewer weights" in out
    rows = (tmp_path / "sparsify.csv").read_text().splitlines()
    assert len(rows) == 3
    again = run("sparsify.py", *options, "--kl", "exact")
    assert "seed 0" in out and "seed 0" not in again
    assert (tmp_path / "sparsify.csv").read_text().splitlines() == rows


def test_figure1_and_its_resuming(run, tmp_path):
    options = ["digits", "--epochs", 2, "--seeds", 0, "--widths", 8]
    options += ["--backend", keras.backend.backend()]
    options += ["--rates", 0.1, 0.3, "--kl-downscale", 2]
    out = run("figure1.py", *options)
    assert "variational A2" in out and "7 runs, 0 of them done" in out
    rows = (tmp_path / "figure1_digits.csv").read_text()
    assert len(rows.splitlines()) == 8
    assert rows.count(",0.1 0.3,") == 6 and rows.count(",2.0,") == 3
    out = run("figure1.py", *options)
    assert "7 runs, 7 of them done" in out
    assert (tmp_path / "figure1_digits.csv").read_text() == rows
    pictures = [tmp_path / f"figure1_digits{x}.png" for x in ("", "_rates")]
    single = [picture.read_bytes() for picture in pictures]
    # One method, over two sizes.
    options += ["--methods", "variational_a", "--widths", 8, 12]
    assert "2 runs, 1 of them done" in run("figure1.py", *options)
    over_sizes = [picture.read_bytes() for picture in pictures]
    for before, after in zip(single, over_sizes, strict=True):
        assert before != after and min(len(before), len(after)) > 10_000


def test_networks_of_figure1(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import experiments

    for method in experiments.METHODS:
        model = experiments.convolutional_network(method, (32, 32, 3), 1)
        assert model.output_shape == (None, 10)
        shapes = [tuple(layer.kernel.shape) for layer in kernels(model)]
        assert shapes == [
            (3, 3, 3, 32),
            (3, 3, 32, 64),
            (8 * 8 * 64, 128),
            (128, 128),
            (128, 10),
        ]
        model = experiments.dense_network(method, (784,), [100] * 3)
        rates = [
            float(layer.rate)
            for layer in model.layers
            if hasattr(layer, "rate")
        ]
        assert rates == ([] if method == "none" else [0.2, 0.5, 0.5, 0.5])
        adaptive = experiments.adaptive_layers(model)
        assert bool(adaptive) == method.startswith("variational")
        experiments.compile_classifier(model, 60_000, "adam")
        for layer in adaptive:
            downscale = 3 if method == "variational_a2" else 1
            weight = float(layer.kl_weight.numpy())
            assert weight == pytest.approx(1 / (60_000 * downscale))


def kernels(model):
    return [layer for layer in model.layers if hasattr(layer, "kernel")]


def test_gradient_variance_and_its_resuming(run, tmp_path):
    options = ["--data", "digits", "--epochs", 1, 2, "--widths", 8, 8]
    options += ["--train-batch", 200, "--batch-size", 400]
    options += ["--noise", "correlated", "--example-batches", 2]
    options += ["--weights", "averaged"]
    out = run("gradient_variance.py", *options)
    assert "weight sample per data point" in out
    rows = (tmp_path / "gradient_variance.csv").read_text()
    # Two epochs, four estimators, two layers.
    assert len(rows.splitlines()) == 17
    again = run("gradient_variance.py", *options)
    assert "weights: local" in out and "weights: local" not in again
    assert (tmp_path / "gradient_variance.csv").read_text() == rows
    name = "gradient_variance_correlated_constant_0.001_averaged.png"
    assert (tmp_path / name).stat().st_size > 10_000


def test_uncertainty_and_its_resuming(run, tmp_path):
    options = ["--data", "digits", "--epochs", 1, "--seeds", 1]
    options += ["--widths", 8, "--samples", 2]
    out = run("uncertainty.py", *options)
    assert "variational_b, sampled" in out
    rows = (tmp_path / "uncertainty.csv").read_text()
    assert len(rows.splitlines()) == 8
    run("uncertainty.py", *options)
    assert (tmp_path / "uncertainty.csv").read_text() == rows
    assert (tmp_path / "uncertainty.png").stat().st_size > 10_000


def test_regression(run, tmp_path):
    options = ["--epochs", 2, "--samples", 10]
    out = run("regression.py", *options)
    assert "beyond" in out
    assert (tmp_path / "regression.png").stat().st_size > 10_000


def test_estimator_speed(run, tmp_path):
    options = ["--widths", 8, "--batch-sizes", 4, "--rounds", 2]
    out = run("estimator_speed.py", *options)
    assert "weight sample per data point" in out
    rows = (tmp_path / "estimator_speed.csv").read_text().splitlines()
    assert len(rows) == 5


def test_benchmark(tmp_path):
    options = ["--quick", "--rounds", 2, "--width", 8]
    options += ["--parts", "mlp", "inference", "memory"]
    out = start("benchmark.py", *options, folder=tmp_path)
    assert "type B, additive" in out
    rows = (tmp_path / "benchmark.csv").read_text().splitlines()
    # Ten models; four in each of two networks; on torch ten again.
    torch = keras.backend.backend() == "torch"
    assert len(rows) == 1 + 10 + 2 * 4 + 10 * torch
    (picture,) = tmp_path.glob("benchmark_*.png")
    assert picture.stat().st_size > 10_000


def test_benchmark_of_peers_without_any(tmp_path):
    assert "pip install" in start(
        "benchmark_peers.py", "--install-lines", folder=tmp_path
    )
    options = ["--rounds", 2, "--widths", 8, "--batch-size", 4]
    out = start("benchmark_peers.py", *options, folder=tmp_path)
    if keras.backend.backend() == "jax":
        assert "no peer" in out
        return
    assert "VariationalDense additive" in out
    rows = (tmp_path / "benchmark_peers.csv").read_text().splitlines()
    # Five of ours and the framework's own, by XLA again; it may be missing.
    assert len(rows) >= 1 + 5


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem
)
def test_help(path, run, capsys):
    if "ArgumentParser" not in path.read_text():
        pytest.skip("a module of the others")
    with pytest.raises(SystemExit, match="^0$"):
        run(path.name, "--help")
    assert "usage:" in capsys.readouterr().out


def test_missing_mnist_is_told_in_one_line(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    import experiments

    with pytest.raises(SystemExit, match="--data digits") as told:
        experiments.load("mnist")
    assert "\n" not in str(told.value)
