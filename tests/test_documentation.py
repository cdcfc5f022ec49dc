"""Every example shown has run."""

import doctest
import importlib
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


def test_every_public_name_has_a_docstring_and_most_an_example():
    for name in keras_vdrop.__all__:
        assert getattr(keras_vdrop, name).__doc__, name
    examples = {
        test.name.split(".")[-1]
        for module in MODULES
        for test in examples_in(module)
    }
    public = {name for name in keras_vdrop.__all__ if name != name.lower()}
    assert public | {"set_num_examples"} <= examples


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
