"""A smoke run of each example, as a newcomer would start it."""

import pathlib
import subprocess
import sys

import pytest
from backends import environment_of

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def run(name, *arguments, folder):
    completed = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env=environment_of(),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_quickstart(tmp_path):
    out = run("quickstart.py", "--epochs", 2, "--seeds", 1, folder=tmp_path)
    assert "Variational A" in out and "learned rates" in out
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


def test_divergences(tmp_path):
    out = run("divergences.py", folder=tmp_path)
    assert "polynomial" in out
    assert (tmp_path / "divergences.png").stat().st_size > 10_000


def test_sparsify_and_its_resuming(tmp_path):
    options = ["--data", "digits", "--epochs", 2, "--seeds", 1]
    out = run("sparsify.py", *options, "--kl", "exact", folder=tmp_path)
    assert "fewer weights" in out
    rows = (tmp_path / "sparsify.csv").read_text().splitlines()
    assert len(rows) == 3
    again = run("sparsify.py", *options, "--kl", "exact", folder=tmp_path)
    assert "seed 0" in out and "seed 0" not in again
    assert (tmp_path / "sparsify.csv").read_text().splitlines() == rows


@pytest.mark.parametrize("name", ["quickstart.py", "sparsify.py"])
def test_help(name, tmp_path):
    assert "--epochs" in run(name, "--help", folder=tmp_path)


def test_missing_mnist_is_told_in_one_line(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    import datasets

    with pytest.raises(SystemExit, match="--data digits") as told:
        datasets.load("mnist")
    assert "\n" not in str(told.value)
