"""A smoke run of each example, as a newcomer would start it."""

import csv
import os
import pathlib
import runpy
import subprocess
import sys

import keras
import numpy as np
import pytest
from backends import environment_of

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
PROGRAMS = [
    path
    for path in sorted(EXAMPLES.rglob("*.py"))
    if '"__main__"' in path.read_text()
]
pytestmark = pytest.mark.slow


def start(name, *arguments, folder):
    """Runs an example in a new process and returns what it prints."""
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
def importable(monkeypatch):
    """Makes the modules of the examples importable."""
    for folder in ("", "reproduction"):
        monkeypatch.syspath_prepend(EXAMPLES / folder)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs an example in this process, which has imported keras already."""

    def run(name, *arguments):
        path = str(EXAMPLES / name)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        # As in a new process: the folder of the program, and no other.
        monkeypatch.syspath_prepend(os.path.dirname(path))
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


def test_compress_and_its_resuming(run, tmp_path):
    options = ["--network", "digits", "--epochs", 2, "--seeds", 0]
    out = run("compress.py", *options)
    rows = read_rows(tmp_path / "compress.csv")
    assert len(rows) == 12 and "| gradual magnitude, 2 times" in out
    sizes = {(x["method"], x["format"]): int(x["bytes"]) for x in rows}
    assert sizes["posterior, 0.01", ".kvz"] <= sizes["posterior, 0.003", ".kvz"]
    assert sizes["posterior, 0.01", ".kvz"] < sizes["float32", "Keras"] / 4
    run("compress.py", *options)
    assert read_rows(tmp_path / "compress.csv") == rows
    # Without the models of the last stages: they go on from the others.
    for path in (tmp_path / "compress_state").glob("*round_1.keras"):
        path.unlink()
    run("compress.py", *options)
    assert read_rows(tmp_path / "compress.csv") == rows


def test_rounds_go_on_with_what_is_left(importable, monkeypatch, tmp_path):
    import keras_vdrop
    from shared import rounds
    from shared.sparse import load_split

    steps = [rounds.Round(-1.0, 1), rounds.Round(1.0, 1)]
    monkeypatch.setitem(rounds.ROUNDS, "digits", steps)
    data = load_split("digits", None)[:2]
    stages = rounds.Rounds("digits", 0, data, str(tmp_path), epochs=1)
    noisy, first = stages.model("noisy"), stages.round(1)
    plain = keras_vdrop.to_deterministic(noisy, prune=-1.0, verbose=0)
    for layer, other in zip(plain.layers, first.layers, strict=True):
        removed = keras.ops.convert_to_numpy(layer.kernel) == 0
        trained = keras.ops.convert_to_numpy(other.kernel)
        assert trained.shape == removed.shape and removed.any()
        np.testing.assert_array_equal(trained[removed], 0)
        assert np.count_nonzero(trained[~removed]) > 0
    second = stages.last()
    count = sum(layer.kernel.shape[1] for layer in second.layers)
    assert count <= sum(layer.kernel.shape[1] for layer in first.layers)


@pytest.mark.parametrize("kept", [[200, 30, 50], 9000])
def test_gradual_pruning(kept, importable, tmp_path):
    from shared.magnitude import gradual
    from shared.magnitude import masks_of
    from shared.rounds import Rounds
    from shared.sparse import kernels
    from shared.sparse import load_split

    data = load_split("digits", None)[:2]
    stages = Rounds("digits", 0, data, str(tmp_path), epochs=6)
    model = gradual(stages, kept, 3, "gradual")
    values = [keras.ops.convert_to_numpy(x) for x in kernels(model)]
    counts = [np.count_nonzero(value) for value in values]
    assert sum(counts) == kept if isinstance(kept, int) else counts == kept
    # What is left was trained on, but for the weights of empty pixels.
    plain = kernels(stages.model("plain"))
    for value, before in zip(values, plain, strict=True):
        moved = value != keras.ops.convert_to_numpy(before)
        assert moved[value != 0].mean() > 0.5
    # Those that are kept are the largest, and their number is a cubic.
    generator = np.random.default_rng(0)
    values = [generator.normal(size=shape) for shape in ((40, 9), (9, 10))]
    masks = masks_of(values, 50, 0.5**3)
    size = np.concatenate([np.abs(value).ravel() for value in values])
    mask = np.concatenate([mask.ravel() for mask in masks])
    assert mask.sum() == 50 + 400 / 8
    assert size[mask].min() > size[~mask].max()


@pytest.fixture
def random_data(importable, monkeypatch):
    """Random images in the place of data sets, for programs in this process."""
    generator = np.random.default_rng(0)
    shapes = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}

    def load(data, data_dir):
        return [
            (generator.random((n, *shapes[data]), "float32"), np.arange(n) % 10)
            for n in (40, 20)
        ]

    monkeypatch.setattr("shared.data.load_tfds", load)


def test_batch_normalization_and_its_resuming(run, random_data, tmp_path):
    options = ["--epochs", 1, "--seeds", 1, "--width", 2, "--images", 40]
    options += ["--batch-size", 20, "--rates", 0.3]
    out = run("batch_normalization.py", *options)
    assert out.count("| type B | 0.3 | 1 |") == 3
    rows = (tmp_path / "batch_normalization.csv").read_text()
    assert len(rows.splitlines()) == 4
    run("batch_normalization.py", *options)
    assert (tmp_path / "batch_normalization.csv").read_text() == rows


@pytest.mark.parametrize("network", ["lenet5", "mobilenet"])
def test_pruned_speed(network, run, random_data, monkeypatch, tmp_path):
    # That is for a process of its own.
    monkeypatch.setattr("shared.timing.limit_threads", lambda number: None)
    options = [network, "--epochs", 1, "--rounds", 2]
    out = run("pruned_speed.py", *options)
    assert out.count(f"| {network} | 0 | ") == 3
    rows = read_rows(tmp_path / "pruned_speed.csv")
    plain, zeros, pruned = (int(row["parameters"]) for row in rows)
    assert pruned <= zeros == plain
    assert rows[1]["error"] == rows[2]["error"]
    run("pruned_speed.py", *options)
    assert read_rows(tmp_path / "pruned_speed.csv") == rows


@pytest.mark.parametrize("task", ["transformer", "lstm", "rows"])
def test_sequences_and_its_resuming(task, run, tmp_path):
    if task != "rows":
        pytest.importorskip("babel")
    options = [task, "--epochs", 1, "--seeds", 0, "--limit", 12]
    options += ["--samples", 2]
    out = run("sequences.py", *options)
    assert out.count("| variational, sampled | learned | 1 | 1 |") == 1
    rows = read_rows(tmp_path / "sequences.csv")
    # Of a plain network there is the mean alone.
    assert len(rows) == 1 + 2 * 3 + 2
    run("sequences.py", *options)
    assert read_rows(tmp_path / "sequences.csv") == rows


def test_names_are_in_one_part_in_all_languages(importable):
    pytest.importorskip("babel")
    from sequences import LANGUAGES
    from sequences import load_names
    from sequences import names

    parts = load_names(seed=0, limit=None)
    assert sum(len(x) for x, _ in parts) == len(names()) * len(LANGUAGES)
    for x, y in parts:
        assert np.bincount(y).tolist() == [len(x) // len(LANGUAGES)] * 16
        assert (x[:, 0] > 0).all()
    assert parts[0][0].min() == 0 and 1 not in parts[0][0]


def test_fine_tuning_and_its_resuming(run, random_data, tmp_path):
    options = ["--epochs", 1, "--seeds", 0, "--shots", 1, "--samples", 2]
    out = run("fine_tuning.py", *options, "--base-epochs", 1)
    assert "| variational, last layer only, sampled | learned | 1 |" in out
    rows = read_rows(tmp_path / "fine_tuning.csv")
    assert len(rows) == 1 + 2 * 3 + 2 + 2
    # All kernels have a rate of their own, or that of the last layer alone.
    numbers = {row["method"]: len(row["rates"].split()) for row in rows}
    assert numbers == {"plain": 0, "dropout": 0, "variational": 3, "last": 1}
    run("fine_tuning.py", *options, "--base-epochs", 1)
    assert read_rows(tmp_path / "fine_tuning.csv") == rows


def test_the_rate_is_chosen_on_validation_examples(importable):
    from shared.candidates import chosen

    rows = [
        {"rate": rate, "validation_nll": nll, "test_nll": 1 - float(nll)}
        for rate, nll in (
            ("0.1", "0.4"),
            ("0.1", "0.6"),
            ("0.3", "0.7"),
            ("0.3", "0.2"),
            ("0.5", "0.1"),
        )
    ]
    # The mean over the seeds counts, and 0.5 has one seed only.
    assert chosen(rows) == rows[2:4]


def test_mc_dropout_has_the_masks_of_training(importable):
    from shared.predictions import mean_prediction
    from shared.predictions import sampled_prediction

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
    x = 3 * np.eye(4, dtype="float32")[:1]
    mean = np.exp(x) / np.exp(x).sum()
    np.testing.assert_allclose(mean_prediction(model, x), mean, atol=1e-6)
    # The 3 is 0 or 6, each with probability 1/2.
    found = sampled_prediction(model, x, 400)[0]
    high = np.exp(6) / (np.exp(6) + 3)
    error = 5 * (high - 0.25) / 2 / np.sqrt(400)
    assert found[0] == pytest.approx((0.25 + high) / 2, abs=error)


def test_figure1_and_its_resuming(run, tmp_path):
    options = ["digits", "--epochs", 2, "--seeds", 0, "--widths", 8]
    options += ["--backend", keras.backend.backend(), "--protocol", "short"]
    options += ["--rates", 0.1, 0.3, "--kl-downscale", 2]
    out = run("reproduction/figure1.py", *options)
    assert "variational A2" in out and "7 runs, 0 of them done" in out
    rows = (tmp_path / "figure1_digits.csv").read_text()
    assert len(rows.splitlines()) == 8
    assert rows.count(",0.1 0.3,") == 6 and rows.count(",2.0,") == 3
    out = run("reproduction/figure1.py", *options)
    assert "7 runs, 7 of them done" in out
    assert (tmp_path / "figure1_digits.csv").read_text() == rows
    pictures = [tmp_path / f"figure1_digits{x}.png" for x in ("", "_rates")]
    single = [picture.read_bytes() for picture in pictures]
    # One method, over two sizes.
    options += ["--methods", "variational_a", "--widths", 8, 12]
    assert "2 runs, 1 of them done" in run("reproduction/figure1.py", *options)
    over_sizes = [picture.read_bytes() for picture in pictures]
    for before, after in zip(single, over_sizes, strict=True):
        assert before != after and min(len(before), len(after)) > 10_000


on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="the protocol is for jax"
)


@on_jax
def test_figure1_to_convergence(run, tmp_path):
    options = ["digits", "--epochs", 3, "--seeds", 0, 5, "--widths", 8]
    options += ["--methods", "none", "variational_a2"]
    out = run("reproduction/figure1.py", *options)
    assert "4 runs, 0 of them done" in out
    assert "variational A2 " in out and "± its standard error" in out
    rows = read_rows(tmp_path / "figure1_digits_converged.csv")
    assert [row["seed"] for row in rows] == ["0", "5", "0", "5"]
    assert {row["train_examples"] for row in rows} == {"1297"}
    assert rows[2]["rates"] != rows[3]["rates"]
    choices = read_rows(tmp_path / "figure1_digits_converged_validation.csv")
    for choice, row in zip(choices, rows[::2], strict=True):
        seeds = [choice[f"errors_{seed}"].split() for seed in (0, 1)]
        means = np.array(seeds, float).mean(axis=0)
        assert means.shape == (3,) and seeds[0] != seeds[1]
        assert row["best_epoch"] == str(np.argmin(means) + 1)
    assert "4 runs, 4 of them done" in run("reproduction/figure1.py", *options)


@on_jax
def test_figure1_interrupted_and_resumed(
    run, importable, monkeypatch, tmp_path
):
    import converged

    options = ["digits", "--epochs", 5, "--seeds", 3, "--widths", 8]
    options += ["--methods", "variational_a", "--checkpoint-minutes", 0]
    run("reproduction/figure1.py", *options, "--out", "whole.csv")
    save = converged.Checkpoint.save_if_due

    def save_and_stop(checkpoint, training):
        save(checkpoint, training)
        saved.append(checkpoint.path)
        if len(saved) == 3:
            raise KeyboardInterrupt

    options += ["--out", "parts.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(converged.Checkpoint, "save_if_due", save_and_stop)
        # While the epochs are chosen, and in the training after that.
        for part in ("choice", "3"):
            saved = []
            with pytest.raises(KeyboardInterrupt):
                run("reproduction/figure1.py", *options)
            assert saved[-1].endswith(f"_{part}.npz")
    assert ": epoch 1," not in run("reproduction/figure1.py", *options)
    for ending in ("", "_validation"):
        whole, parts = (
            read_rows(tmp_path / f"{name}{ending}.csv")
            for name in ("whole", "parts")
        )
        for row in (*whole, *parts):
            del row["seconds"]
        assert whole == parts and len(whole) == 1
    assert not list((tmp_path / "parts_state").iterdir())


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@on_jax
@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("method", ["none", "variational_a", "variational_b"])
def test_scanned_training_is_fit(method, scan, importable):
    from scanned_training import ScannedTraining
    from shared.data import load_digits
    from shared.networks import dense_network
    from shared.training import compile_classifier
    from shared.training import set_num_examples

    x, y = (array[:60] for array in load_digits()[0])

    def build():
        # With such a rate the noise is below the precision of the weights.
        rates = (1e-12, 1e-12)
        model = dense_network(method, (64,), [8], rates=rates)
        set_num_examples(model, len(x))
        return model

    training = ScannedTraining(build, (x, y), batch_size=10, scan=scan)
    state = training.begin(seed=3)
    keras.utils.set_random_seed(3)
    model = build()
    compile_classifier(model, len(x), "adam")
    for _ in range(2):
        order = np.random.default_rng([3, int(state.steps)]).permutation(60)
        state, loss = training.epoch(state, seed=3)
        history = model.fit(
            x[order], y[order], batch_size=10, shuffle=False, verbose=0
        )
        assert loss == pytest.approx(history.history["loss"][0], rel=1e-5)
    for variable, value in zip(
        model.trainable_variables, state.trainable, strict=True
    ):
        np.testing.assert_allclose(variable, value, atol=1e-5)


@on_jax
def test_average_of_scanned_training(importable):
    from scanned_training import ScannedTraining
    from shared.data import load_digits
    from shared.networks import dense_network

    data = [array[:10] for array in load_digits()[0]]
    training = ScannedTraining(
        lambda: dense_network("none", (64,), [8]),
        data,
        batch_size=10,
        average_epochs=4,
    )
    state, kernels = training.begin(seed=0), []
    for _ in range(6):  # An epoch is a step.
        state, _ = training.epoch(state, seed=0)
        kernels.append(np.array(state.trainable[0]))
    weights = 0.75 ** np.arange(6)[::-1]
    expected = np.tensordot(weights / weights.sum(), kernels, axes=1)
    np.testing.assert_allclose(state.average[0], expected, rtol=1e-4)


def test_networks_of_figure1(importable):
    from shared.methods import METHODS
    from shared.networks import adaptive_layers
    from shared.networks import convolutional_network
    from shared.networks import dense_network
    from shared.training import compile_classifier

    for method in METHODS:
        model = convolutional_network(method, (32, 32, 3), 1)
        assert model.output_shape == (None, 10)
        shapes = [tuple(layer.kernel.shape) for layer in kernels(model)]
        assert shapes == [
            (3, 3, 3, 32),
            (3, 3, 32, 64),
            (8 * 8 * 64, 128),
            (128, 128),
            (128, 10),
        ]
        model = dense_network(method, (784,), [100] * 3)
        rates = [
            float(layer.rate)
            for layer in model.layers
            if hasattr(layer, "rate")
        ]
        assert rates == ([] if method == "none" else [0.2, 0.5, 0.5, 0.5])
        adaptive = adaptive_layers(model)
        assert bool(adaptive) == method.startswith("variational")
        compile_classifier(model, 60_000, "adam")
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
    out = run("reproduction/gradient_variance.py", *options)
    assert "weight sample per data point" in out
    rows = (tmp_path / "gradient_variance.csv").read_text()
    # Two epochs, four estimators, two layers.
    assert len(rows.splitlines()) == 17
    again = run("reproduction/gradient_variance.py", *options)
    assert "weights: local" in out and "weights: local" not in again
    assert (tmp_path / "gradient_variance.csv").read_text() == rows
    name = "gradient_variance_correlated_constant_0.001_averaged.png"
    assert (tmp_path / name).stat().st_size > 10_000


def test_uncertainty_and_its_resuming(run, tmp_path):
    options = ["--data", "digits", "--epochs", 1, "--seeds", 0]
    options += ["--widths", 8, "--samples", 2, "--angles", 0, 90]
    options += ["--methods", "plain", "MC dropout", "ensemble of 5"]
    options += ["plain, then its last layer"]
    out = run("uncertainty.py", *options)
    assert "| ensemble of 5 |" in out and "| MC dropout |" in out
    rows = read_rows(tmp_path / "uncertainty.csv")
    assert len(rows) == 4
    turned = [float(x) for x in rows[0]["rotated_error"].split()]
    assert turned[0] == pytest.approx(float(rows[0]["error"]), rel=1e-3)
    # A network is chosen by the likelihood of the validation images.
    choices = read_rows(tmp_path / "uncertainty_validation.csv")
    own = [row for row in choices if row["network"] == "dropout"]
    best = min(own, key=lambda row: float(row["nll"]))
    (dropout,) = [row for row in rows if row["method"] == "MC dropout"]
    assert dropout["choice"] == best["candidate"]
    again = run("uncertainty.py", *options)
    assert "epoch" in out and "epoch" not in again
    assert read_rows(tmp_path / "uncertainty.csv") == rows
    for ending in ("", "_risk", "_rotated"):
        picture = tmp_path / f"uncertainty{ending}.png"
        assert picture.stat().st_size > 10_000


def test_networks_of_the_uncertainty_of_images(importable):
    from shared.uncertainty_methods import CANDIDATES
    from shared.uncertainty_networks import build

    x = np.zeros((2, 8, 8, 3), "float32")
    for name, (first, *_) in CANDIDATES.items():
        if not name.startswith("converted"):
            model = build(name, first, x.shape[1:], widths=["k=1"])
            assert model(x).shape == (2, 10)
            assert model.count_params() >= 32 * 28 + 64 * 289


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch only")
def test_uncertainty_of_peers(run, tmp_path):
    options = ["--data", "digits", "--epochs", 1, "--seeds", 0]
    options += ["--widths", 8, "--samples", 2, "--angles", 0]
    out = run("benchmarks/uncertainty_torch.py", *options)
    found = {row["method"] for row in read_rows(tmp_path / "uncertainty.csv")}
    assert "plain, torch" in found
    for name in ("last-layer Laplace", "IVON"):
        assert (f"Without {name}: pip install" in out) != (name in found)
    again = run("benchmarks/uncertainty_torch.py", *options)
    assert "epoch" in out and "epoch" not in again


def test_regression_and_its_resuming(run, tmp_path):
    generator = np.random.default_rng(0)
    table = generator.normal(size=(60, 4))
    np.savetxt(tmp_path / "own.csv", table, delimiter=",", header="a,b,c,d")
    options = ["--epochs", 2, "--samples", 4, "--splits", 1, "--width", 4]
    options += ["--methods", "plain", "variational", "MC dropout"]
    for data in (["--csv", "own.csv", "--noise", "predicted"], []):
        out = run("regression.py", *options, *data)
        assert "| MC dropout |" in out
    rows = read_rows(tmp_path / "regression.csv")
    assert len(rows) == 6
    for row in rows:
        assert 0 <= float(row["coverage_0.5"]) <= float(row["coverage_0.95"])
        assert (float(row["weights_std"]) == 0) == (row["method"] == "plain")
    run("regression.py", *options)
    assert read_rows(tmp_path / "regression.csv") == rows
    assert (tmp_path / "regression.png").stat().st_size > 10_000


def test_active_learning_and_its_resuming(run, tmp_path):
    options = ["--data", "digits", "--seeds", 0, "--widths", 8, "--steps", 10]
    options += ["--first", 20, "--each", 10, "--most", 40, "--pool", 50]
    out = run("active_learning.py", *options)
    assert "| mutual information |" in out and "| random |" in out
    rows = read_rows(tmp_path / "active_learning.csv")
    assert [row["labels"] for row in rows] == 2 * ["20", "30", "40"]
    # Both begin with the same images and the same weights.
    assert rows[0]["accuracy"] == rows[3]["accuracy"]
    assert "20," not in run("active_learning.py", *options)
    assert read_rows(tmp_path / "active_learning.csv") == rows
    assert (tmp_path / "active_learning.png").stat().st_size > 10_000


def test_estimator_speed(run, tmp_path):
    options = ["--widths", 8, "--batch-sizes", 4, "--rounds", 2]
    out = run("reproduction/estimator_speed.py", *options)
    assert "weight sample per data point" in out
    rows = (tmp_path / "estimator_speed.csv").read_text().splitlines()
    assert len(rows) == 5


def test_benchmark(tmp_path):
    options = ["--quick", "--rounds", 2, "--width", 8]
    options += ["--parts", "mlp", "inference", "memory"]
    out = start("benchmarks/benchmark.py", *options, folder=tmp_path)
    assert "type B, additive" in out
    rows = (tmp_path / "benchmark.csv").read_text().splitlines()
    # Ten models; four in each of two networks; on torch ten again.
    torch = keras.backend.backend() == "torch"
    assert len(rows) == 1 + 10 + 2 * 4 + 10 * torch
    (picture,) = tmp_path.glob("benchmark_*.png")
    assert picture.stat().st_size > 10_000


def test_prediction(tmp_path):
    options = ["--rounds", 2, "--samples", 2, "--batch-sizes", 4]
    out = start("benchmarks/prediction.py", *options, folder=tmp_path)
    assert "samples of the weights" in out
    rows = read_rows(tmp_path / "prediction.csv")
    assert [row["network"] for row in rows] == 3 * ["mlp"] + 3 * ["cnn"]


def test_prediction_programs(run, tmp_path):
    if keras.backend.backend() != "torch":
        pytest.skip("tests/test_programs.py counts those of jax.")
    options = ["--networks", "mlp", "--batch-sizes", 4, "--samples", 3]
    run("benchmarks/prediction_programs.py", *options)
    rows = read_rows(tmp_path / "programs_prediction_torch.csv")
    counts = {(x["sampling"], x["way"]): int(x["operations"]) for x in rows}
    for sampling in ("weights", "local"):
        assert counts[sampling, "at once"] < counts[sampling, "in turn"]


def test_benchmark_tables(run):
    path = EXAMPLES.parent / "docs" / "performance" / "benchmark.csv"
    out = run("benchmarks/benchmark_tables.py", path)
    text = (path.parents[1] / "performance.md").read_text()
    # The page has what the program prints.
    for line in out.splitlines():
        if line.startswith("| JAX, type A"):
            assert line in text
    assert "| JAX, type A" in out


def test_equal_time(tmp_path):
    options = ["--data", "digits", "--seconds", 0.05, "--seeds", 0]
    options += ["--widths", 8, "--batch-size", 16, "--samples", 2]
    name = "VariationalDense type A"
    options += ["--draws", 2, "--models", "keras Dense", name]
    out = start("benchmarks/equal_time.py", *options, folder=tmp_path)
    if keras.backend.backend() == "jax":
        assert "no peer" in out
        return
    plain, ours = read_rows(tmp_path / "equal_time.csv")
    assert ours["model"] == name and f"| {name} | 1 |" in out
    # Without noise the gradient of a minibatch is always the same.
    variances = [float(row["gradient_variance"]) for row in (plain, ours)]
    assert variances[0] < 1e-12 < variances[1]


def test_sparse_kernels(tmp_path):
    name = "benchmarks/sparse_kernels.py"
    start(name, "--rounds", 2, "--largest", 800, folder=tmp_path)
    rows = read_rows(tmp_path / "sparse_kernels.csv")
    assert {row["batch_size"] for row in rows} == {"1", "256"}
    assert {row["ratio"] for row in rows[:1]} == {"1.000"}
    assert len(rows) == (6 if keras.backend.backend() == "jax" else 4)


def test_benchmark_of_peers_without_any(tmp_path):
    assert "pip install" in start(
        "benchmarks/benchmark_peers.py", "--install-lines", folder=tmp_path
    )
    options = ["--rounds", 2, "--widths", 8, "--batch-size", 4]
    out = start("benchmarks/benchmark_peers.py", *options, folder=tmp_path)
    if keras.backend.backend() == "jax":
        assert "no peer" in out
        return
    assert "VariationalDense additive" in out
    rows = (tmp_path / "benchmark_peers.csv").read_text().splitlines()
    # Five of ours and the framework's own, by XLA again; it may be missing.
    assert len(rows) >= 1 + 5


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help(path, run, capsys):
    with pytest.raises(SystemExit, match="^0$"):
        run(path.relative_to(EXAMPLES), "--help")
    assert "usage:" in capsys.readouterr().out


def test_results_refuse_other_columns(importable, tmp_path):
    from shared.results import Results

    results = Results(str(tmp_path / "new" / "results.csv"))
    results.append({"seed": 0, "error": 1.5})
    results.append({"error": 2.5, "seed": 1})
    assert results.select(seed=1) == [{"seed": "1", "error": "2.5"}]
    with pytest.raises(SystemExit, match="other columns"):
        results.append({"seed": 2})
    assert len(results.rows()) == 2


def test_missing_mnist_is_told_in_one_line(importable, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    from shared.data import load

    with pytest.raises(SystemExit, match="--data digits") as told:
        load("mnist")
    assert "\n" not in str(told.value)
