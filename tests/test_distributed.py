"""The programs of `docs/distributed.md`, on CPU devices of this machine."""

import pathlib
import re
import subprocess
import sys

import keras
import pytest
from backends import environment_of
from backends import free_address

ROOT = pathlib.Path(__file__).parent.parent
PROGRAMS = ROOT / "examples" / "distributed"
DEVICES = "--xla_force_host_platform_device_count={}"


def start(folder, *arguments, **variables):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env=environment_of(**variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(*processes):
    try:
        found = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode == 0, errors
    return "".join(printed for printed, _ in found)


def on(backend):
    return pytest.mark.skipif(
        keras.backend.backend() != backend, reason=f"for {backend}"
    )


def check(printed, folder, name, losses=1):
    """Each process tells its loss, and the model can be loaded."""
    found = [float(x) for x in re.findall(r"loss ([\d.]+)", printed)]
    assert len(found) == losses and 0 < min(found) <= max(found) < 2
    assert "Code length" in printed
    loaded = keras.saving.load_model(folder / f"{name}.keras")
    assert loaded.predict(keras.ops.ones((2, 16)), verbose=0).shape == (2, 2)


@on("jax")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["data_parallel", "model_parallel"])
def test_jax(name, tmp_path):
    program = PROGRAMS / f"jax_{name}.py"
    printed = output_of(start(tmp_path, program, XLA_FLAGS=DEVICES.format(4)))
    assert "4 devices" in printed
    check(printed, tmp_path, name)


@on("jax")
@pytest.mark.slow
def test_jax_processes(tmp_path):
    arguments = [PROGRAMS / "jax_processes.py", free_address(), 2]
    flags = {"XLA_FLAGS": DEVICES.format(2)}
    processes = [start(tmp_path, *arguments, n, **flags) for n in range(2)]
    check(output_of(*processes), tmp_path, "processes_0", losses=2)


@on("tensorflow")
@pytest.mark.slow
def test_tensorflow(tmp_path):
    printed = output_of(start(tmp_path, PROGRAMS / "tensorflow_mirrored.py"))
    assert "4 devices" in printed
    check(printed, tmp_path, "mirrored")


@on("torch")
@pytest.mark.slow
def test_torch(tmp_path):
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    printed = output_of(start(tmp_path, *run, 2, PROGRAMS / "torch_ddp.py"))
    check(printed, tmp_path, "ddp", losses=2)


def test_the_page_shows_the_programs():
    page = (ROOT / "docs" / "distributed.md").read_text()
    shown = re.findall(
        r"^<!-- program (\S+) -->\n```python\n(.*?)^```", page, re.S | re.M
    )
    assert len(shown) == len(list(PROGRAMS.glob("*.py")))
    for path, code in shown:
        assert code == (ROOT / path).read_text(), path
