"""What layers know beyond their config and weights: vocabularies, files."""

import base64
import contextlib
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import keras

LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def copy_assets(source: keras.Layer, target: keras.Layer) -> None:
    """Copies what a layer would write into a file beside its weights."""
    if isinstance(source, LOOKUPS):
        copy_vocabulary(source, target)
    elif hasattr(source, "save_assets") and hasattr(target, "load_assets"):
        with tempfile.TemporaryDirectory() as folder:
            source.save_assets(folder)
            target.load_assets(folder)


def copy_vocabulary(source: keras.Layer, target: keras.Layer) -> None:
    """Copies the vocabulary of a lookup, with its weights if it has some.

    Not as a file: Keras's has a word on each line (3.15,
    layers/preprocessing/index_lookup.py), and words can have line breaks.
    """
    vocabulary = source.get_vocabulary()
    # One that is in the config is there already, and one that was never
    # adapted has none, which could not be set.
    if vocabulary != target.get_vocabulary():
        set_vocabulary(target, vocabulary, _frequencies(source))


def set_vocabulary(
    target: keras.Layer, vocabulary: Sequence[Any], frequencies: Any
) -> None:
    """Sets words, and their weights if they have some."""
    if frequencies is None:
        target.set_vocabulary(vocabulary)
        return
    # Keras fills up with zeros what it filled up before.
    frequencies = frequencies[: len(vocabulary)]
    target.set_vocabulary(vocabulary, idf_weights=frequencies)


def _frequencies(layer: keras.Layer) -> Any:
    """The weights of a lookup, or `None`."""
    weights: dict[str, Any] = {}
    # One that was never adapted has none, and Keras looks for them (3.15,
    # layers/preprocessing/index_lookup.py).
    with contextlib.suppress(AttributeError):
        layer.save_own_variables(weights)
    return weights.get("idf_weights")


def save_assets(layers: Sequence[keras.Layer]) -> list[Any]:
    """The assets of layers as JSON, each with the number of its layer."""
    found: list[Any] = []
    for number, layer in enumerate(layers):
        if isinstance(layer, LOOKUPS):
            words = [_as_json(word) for word in layer.get_vocabulary()]
            same = type(layer).from_config(layer.get_config())
            if words == [_as_json(word) for word in same.get_vocabulary()]:
                continue
            frequencies = _frequencies(layer)
            if frequencies is not None:
                frequencies = [float(x) for x in frequencies]
            found.append([number, words, frequencies])
        elif hasattr(layer, "save_assets"):
            files = _files_of(layer)
            found += [[number, files]] if files else []
    return found


def load_assets(layers: Sequence[keras.Layer], assets: Sequence[Any]) -> None:
    """The inverse of `save_assets`."""
    for number, *content in assets:
        layer = layers[number]
        if isinstance(layer, LOOKUPS):
            set_vocabulary(layer, *content)
        else:
            _load_files(layer, *content)


def _as_json(word: Any) -> Any:
    return word if isinstance(word, str) else int(word)


def _files_of(layer: Any) -> dict[str, str]:
    """All files that a layer writes, by their paths."""
    with tempfile.TemporaryDirectory() as folder:
        layer.save_assets(folder)
        return {
            path.relative_to(folder).as_posix(): base64.b64encode(
                path.read_bytes()
            ).decode()
            for path in sorted(pathlib.Path(folder).rglob("*"))
            if path.is_file()
        }


def _load_files(layer: Any, files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = os.path.normpath(os.path.join(folder, name))
            if not path.startswith(folder + os.sep):
                raise ValueError(f"'{name}' leads out of its folder.")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            pathlib.Path(path).write_bytes(base64.b64decode(content))
        layer.load_assets(folder)
