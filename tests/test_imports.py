"""Arrows never point back: what each folder may import."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "keras_vdrop"
FILES = sorted(PACKAGE.rglob("*.py"))
# The folders of the package that each folder may import from.
MAY_IMPORT = {
    "backend": {"backend"},
    "coding": {"coding"},
    "core": {"backend", "core"},
    "layers": {"backend", "core", "layers"},
    "models": {"backend", "coding", "core", "layers", "models"},
    "diagnostics": {"backend", "core", "layers", "models", "diagnostics"},
    "callbacks": {
        "backend",
        "core",
        "layers",
        "models",
        "diagnostics",
        "callbacks",
    },
}


def imports_of(path):
    """The full names of all that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "A relative import hides where it leads."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_is_known():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(MAY_IMPORT)
    assert [path.name for path in PACKAGE.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_arrows_never_point_back(folder):
    found = {
        (path.name, name)
        for path in (PACKAGE / folder).rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] == "keras_vdrop"
        and name.split(".")[1] not in MAY_IMPORT[folder]
    }
    assert not found


def test_nothing_private_of_keras():
    for path in FILES:
        for name in imports_of(path):
            assert not name.startswith("keras.src"), path
        assert "keras.src" not in path.read_text(), path


def test_coding_needs_numpy_alone():
    for path in (PACKAGE / "coding").glob("*.py"):
        assert not any(x.startswith("keras.") for x in imports_of(path)), path
