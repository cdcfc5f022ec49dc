"""What a user reads who has no backend of Keras."""

import pathlib

import keras
import pytest
from backends import run_python

from keras_vdrop.backend import missing

# A name that is `None` in `sys.modules` cannot be imported.
IMPORT_WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
try:
    import keras_vdrop
except ImportError as error:
    print(error)
"""


def test_no_backend_at_all():
    message = run_python(IMPORT_WITHOUT, *missing.BACKENDS)
    assert f"'{keras.backend.backend()}', which is not installed" in message
    for name in missing.BACKENDS:
        assert f'pip install "keras-vdrop[{name}]"' in message


@pytest.mark.parametrize("name", missing.BACKENDS)
def test_extras_exist(name):
    root = pathlib.Path(__file__).parent.parent.parent
    assert f"\n{name} = [" in (root / "pyproject.toml").read_text()


def test_another_backend_is_installed():
    message = missing.message("no_such_backend")
    assert f"KERAS_BACKEND={message.split('Installed: ')[1][:3]}" in message
    assert keras.backend.backend() in message


def test_a_backend_that_is_broken_tells_its_own_error():
    name = keras.backend.backend()
    error = ModuleNotFoundError("no such part", name=f"{name}.part")
    assert missing.backend_of(error) is None


def test_other_imports_that_fail_are_told_as_they_are():
    message = run_python(IMPORT_WITHOUT, "numpy")
    assert "numpy" in message and "keras-vdrop[" not in message
