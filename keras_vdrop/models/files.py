"""Files that are whole or not there."""

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """A path to write to, which becomes `path` once that is done.

    After an error or a crash `path` is as it was.
    """
    folder, name = os.path.split(os.path.abspath(path))
    # Of the same ending, by which Keras knows the format.
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as inside:
        new = os.path.join(inside, name)
        yield new
        with open(new, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
