"""Installs a version of Keras into an environment of its own and tests it.

    python tests/versions.py 3.10 [--python python3.10] [arguments of run.py]

The environment has the jax backend, is kept in `build/` and is used again the
next time. `oldest` and `newest` are the ends of what the package supports. If
the Python that runs this has Keras and jax too, each reads what the other
saved.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent


def oldest():
    """The lower bound of Keras in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.search(r'"keras>=([0-9.]+)"', text)[1]


def requirement(version):
    if version == "newest":
        return "keras"
    if version == "oldest":
        version = oldest()
    if not re.fullmatch(r"3\.[0-9]+(\.[0-9]+)?", version):
        sys.exit(f"Expected 'oldest', 'newest' or 3.x. Received: {version}")
    return f"keras=={version}" + ".*" * (version.count(".") == 1)


def python_version(python):
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def exchange(python, environment):
    """Each of two versions reads what the other wrote."""
    program = str(ROOT / "tests" / "exchange.py")
    for writer, reader in ((sys.executable, python), (python, sys.executable)):
        with tempfile.TemporaryDirectory() as folder:
            for command in (
                [writer, program, "write"],
                [reader, program, "read"],
            ):
                subprocess.run([*command, folder], env=environment, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keras", help="oldest, newest, 3.x or 3.x.y")
    parser.add_argument("--python", default=sys.executable)
    options, arguments = parser.parse_known_args()
    name = f"keras-{options.keras}-python-{python_version(options.python)}"
    environment = ROOT / "build" / name
    python = str(environment / "bin" / "python")
    subprocess.run([options.python, "-m", "venv", environment], check=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--upgrade"]
        + [requirement(options.keras), "-e", f"{ROOT}[jax,test]"],
        check=True,
    )
    variables = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(ROOT),  # The checkout, also for this Python.
        "PYTHONWARNINGS": "ignore",
    }
    code = "import sys, jax, keras; print(f'Python {sys.version}', "
    code += "f'jax {jax.__version__}, Keras {keras.__version__}', sep='\\n')"
    subprocess.run([python, "-c", code], env=variables, check=True)
    if all(importlib.util.find_spec(name) for name in ("keras", "jax")):
        exchange(python, variables)
    runner = str(ROOT / "tests" / "run.py")
    return subprocess.call([python, runner, *arguments], env=variables)


if __name__ == "__main__":
    sys.exit(main())
