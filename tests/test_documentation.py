"""Every example shown has run."""

import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re

import pytest

import keras_vdrop

ROOT = pathlib.Path(__file__).parent.parent
MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        keras_vdrop.__path__, prefix="keras_vdrop."
    )
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples_in(module):
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [
        test
        for test in finder.find(importlib.import_module(module))
        if test.examples
    ]


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(module):
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    for test in examples_in(module):
        assert runner.run(test).failed == 0, test.name


def test_every_public_name_has_a_docstring_and_an_example():
    examples = {test.name for module in MODULES for test in examples_in(module)}
    for module in (
        keras_vdrop,
        keras_vdrop.layers,
        keras_vdrop.callbacks,
        keras_vdrop.metrics,
        keras_vdrop.priors,
        keras_vdrop.divergence,
    ):
        for name in module.__all__:
            found = getattr(module, name)
            assert found.__doc__, name
            if not inspect.ismodule(found):
                assert f"{found.__module__}.{name}" in examples, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    if page.name == "README.md":
        assert blocks
    namespace = {"__name__": page.stem}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
