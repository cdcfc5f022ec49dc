"""Runs the notebooks, and keeps them small.

    python tools/notebooks.py [--check]

The cell with the tag `install` is left out. The outputs are thrown away: a
notebook is kept without them. With `--check` nothing is run.
"""

import argparse
import json
import os
import pathlib
import sys
import time

FOLDER = pathlib.Path(__file__).parent.parent / "examples" / "notebooks"
# What all outputs of a notebook may have, in characters: those of a picture.
LARGEST_OUTPUTS = 200_000


def outputs_of(notebook):
    return [
        output
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
    ]


def check(path):
    """Says what is wrong with a notebook as it is kept."""
    notebook = json.loads(path.read_text())
    size = len(json.dumps(outputs_of(notebook)))
    if size > LARGEST_OUTPUTS:
        yield f"{path.name}: outputs of {size} characters: clear them."
    install = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if "%pip" in "".join(cell["source"])
    ]
    if len(install) != 1:
        yield f"{path.name}: expected one cell that installs."


def run(path):
    """Runs a notebook in a new kernel, and raises its first error."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [
        cell
        for cell in notebook.cells
        if "install" not in cell.metadata.get("tags", [])
    ]
    nbclient.NotebookClient(notebook, timeout=300).execute()
    return notebook


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("KERAS_BACKEND", "jax")
    paths = sorted(FOLDER.glob("*.ipynb"))
    problems = [problem for path in paths for problem in check(path)]
    if problems or options.check:
        return "\n".join(problems) or None
    for path in paths:
        start = time.perf_counter()
        run(path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
