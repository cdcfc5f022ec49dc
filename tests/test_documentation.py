"""Every example shown has run."""

import doctest
import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import runpy

import keras
import pytest

import keras_vdrop
from keras_vdrop.backend.missing import BACKENDS

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
ROOT = pathlib.Path(__file__).parent.parent


def backend_of(module):
    """Of `torch.py`, and of `torch_random.py`."""
    return module.split(".")[-1].split("_")[0]


MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        keras_vdrop.__path__, prefix="keras_vdrop."
    )
    # A backend that is not installed cannot be imported.
    if not module.name.startswith("keras_vdrop.backend.")
    or backend_of(module.name) not in BACKENDS
    or importlib.util.find_spec(backend_of(module.name))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]


def examples_in(module):
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [
        test
        for test in finder.find(importlib.import_module(module))
        if test.examples
    ]


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(module):
    if module.endswith("reversible_embedding"):
        assert keras.layers.ReversibleEmbedding  # Not in Keras 3.10.
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
        keras_vdrop.losses,
        keras_vdrop.metrics,
        keras_vdrop.priors,
        keras_vdrop.divergence,
    ):
        for name in module.__all__:
            found = getattr(module, name)
            assert found.__doc__, name
            if not inspect.ismodule(found):
                assert f"{found.__module__}.{name}" in examples, name


def blocks_of(page):
    """The code of a page that is for this backend."""
    # A program has a file of its own, which `test_distributed.py` runs.
    programs = r"^<!-- program \S+ -->\n```python\n.*?^```"
    found = re.findall(
        r"^(?:<!-- (\w+) alone -->\n)?```python\n(.*?)^```",
        re.sub(programs, "", page.read_text(), flags=re.S | re.M),
        re.S | re.M,
    )
    here = keras.backend.backend()
    return [code for backend, code in found if backend in ("", here)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if page.name == "README.md":
        assert blocks
    namespace = {"__name__": page.stem}
    for block in blocks:
        try:
            exec(compile(block, str(page), "exec"), namespace)
        except ImportError as error:
            if "tensorflow" in str(error) and not HAS_TENSORFLOW:
                pytest.skip("Keras exports with tensorflow")
            raise


@pytest.mark.parametrize(
    "page", PAGES + OTHER_PAGES, ids=lambda page: page.name
)
def test_links_between_files(page):
    """As the rendering of a repository follows them."""
    for target, anchor in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()
    ):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in [anchor_of(x) for x in headings], (target, anchor)


def anchor_of(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_notebooks_are_kept_small():
    tools = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
    paths = sorted(tools["FOLDER"].glob("*.ipynb"))
    assert len(paths) >= 2
    assert [x for path in paths for x in tools["check"](path)] == []
