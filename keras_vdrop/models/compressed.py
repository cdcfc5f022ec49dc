"""Models in small files, without loss."""

import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vdrop.coding import container
from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.core import validation
from keras_vdrop.models import archive
from keras_vdrop.models.assets import load_assets
from keras_vdrop.models.assets import save_assets
from keras_vdrop.models.dry_run import check_size
from keras_vdrop.models.files import replaced
from keras_vdrop.models.rebuild import load_own_weights
from keras_vdrop.models.rebuild import own_weights
from keras_vdrop.models.traversal import every_layer


def save_compressed(
    model: keras.Model, path: str | os.PathLike[str], verbose: int = 0
) -> None:
    """Saves any Keras model in a small file, without loss.

    The file has all that `model.save` writes but the optimizer: the config of
    the model, and the weights bit for bit. Weights that are multiples of a
    power of two, as `to_deterministic(model, prune=..., precision=...)` makes
    them, are stored as integers, and their zeros as gaps. All other weights
    are stored as bytes. Then both are packed by LZMA.

    With a path that ends in `.keras` it is an ordinary file of Keras, whose
    members are packed. `keras.saving.load_model` opens it without this
    library. Any other file is smaller, and only `load_compressed` opens it.

    The file is written beside `path` first. An interruption leaves the old
    file as it was.

    Args:
        model: A built `keras.Model` with a config.
        path: The file. A common ending is `.kvz`.
        verbose: 0 or 1, whether to show a progress bar. A million weights that
            are no multiples take a second.

    Example:

    >>> import os, tempfile
    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.kvz")
    >>> keras_vdrop.save_compressed(model, path)
    >>> same = keras_vdrop.load_compressed(path)
    >>> bool((same.get_weights()[0] == model.get_weights()[0]).all())
    True
    """
    path = _check_path(path)
    if not isinstance(model, keras.Model) or not model.built:
        raise validation.invalid(
            "model",
            "a built keras.Model",
            model,
            "Call it on some data first, or give it a `keras.Input`.",
        )
    progress = _Progress(verbose)
    with replaced(path) as new:
        if path.endswith(archive.ENDING):
            archive.write(model, new, progress)
        else:
            with open(new, "wb") as file:
                file.write(to_bytes(model, progress))


def load_compressed(
    path: str | os.PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    safe_mode: bool = True,
) -> keras.Model:
    """Loads a model that `save_compressed` has written.

    A file that is truncated, altered or made by an enemy gets an error. The
    config is Keras's own, loaded in its safe mode: no code of the file runs.
    The weights of the model need at most 1,024 times the size of the file, and
    16 MiB. This is known before they are allocated.

    Args:
        path: The file, of either kind.
        custom_objects: Dict of classes and functions by name, as in
            `keras.saving.load_model`.
        safe_mode: Boolean, whether to refuse Python code in the config, and to
            look at the size of the model before it is built. Pass `False` for
            files that you trust.

    Returns:
        The model, built and not compiled, on the backend in use.

    Example:

    >>> import os, tempfile
    >>> import keras
    >>> import keras_vdrop
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.keras")
    >>> keras_vdrop.save_compressed(model, path)
    >>> keras_vdrop.load_compressed(path).count_params()
    8
    """
    path = _check_path(path)
    validation.check_bool("safe_mode", safe_mode)
    with open(path, "rb") as file:
        data = file.read()
    try:
        if archive.is_archive(data):
            return archive.read(data, path, custom_objects, safe_mode)
        return from_bytes(data, custom_objects, safe_mode)
    except DamagedFile as error:
        raise validation.invalid(
            "path",
            "a file that `save_compressed` has written",
            path,
            str(error),
        ) from error


class _Progress:
    """Shows how many bytes of how many are packed."""

    def __init__(self, verbose: int):
        self.bar = keras.utils.Progbar(None, verbose=verbose, unit_name="byte")

    def __call__(self, done: int, total: int) -> None:
        self.bar.target = total
        self.bar.update(done)


def to_bytes(
    model: keras.Model, progress: Callable[[int, int], object] | None = None
) -> bytes:
    """The file of a model."""
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    names: dict[str, Any] = {}
    arrays: list[Any] = []
    for number, layer in enumerate(every_layer(model)):
        weights = {k: _plain(w) for k, w in own_weights(layer).items()}
        if not _is_usual(layer, weights):
            names[str(number)] = {k: w.shape for k, w in weights.items()}
        arrays += weights.values()
    header = {"model": config}
    assets = save_assets(every_layer(model))
    header.update({"weights": names} if names else {})
    header.update({"assets": assets} if assets else {})
    return container.write(header, arrays, progress)


def from_bytes(
    data: bytes, custom_objects: dict[str, Any] | None, safe_mode: bool
) -> keras.Model:
    """The model of a file."""
    header, read_arrays = container.read(data)
    try:
        config, names = header["model"], header.get("weights", {})
        assets = header.get("assets", [])
    except (AttributeError, KeyError, TypeError) as error:
        raise DamagedFile("Its header has no model.") from error
    if safe_mode:
        check_size(config, custom_objects, container.most_bytes(len(data)))
    model = build(config, custom_objects, safe_mode)
    shapes = [
        _shapes(layer, names.get(str(number)))
        for number, layer in enumerate(every_layer(model))
    ]
    size = sum(int(np.prod(x, dtype="float64")) for s in shapes for x in s[1])
    if size > container.most_bytes(len(data)):
        raise DamagedFile("It has more weights than a file of its size.")
    arrays = iter(read_arrays([x for s in shapes for x in s[1]]))
    try:
        load_assets(every_layer(model), assets)
        for layer, (keys, _) in zip(every_layer(model), shapes, strict=True):
            load_own_weights(layer, {key: next(arrays) for key in keys})
    except Exception as error:
        raise DamagedFile(
            f"Its weights are not those of its model: {error}"
        ) from error
    return model


def build(config: Any, custom_objects: Any, safe_mode: bool) -> keras.Model:
    """The model of a config, with new weights."""
    try:
        model = keras.saving.deserialize_keras_object(
            config, custom_objects=custom_objects, safe_mode=safe_mode
        )
    except Exception as error:
        raise DamagedFile(f"Its model cannot be built: {error}") from error
    if not isinstance(model, keras.Model) or not model.built:
        raise DamagedFile("Its config is not that of a model.")
    return model


def _check_path(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise validation.invalid("path", "the path of a file", path)
    return os.fspath(path)


def _plain(array: Any) -> Any:
    """The same numbers in a type of numpy's own."""
    name = array.dtype.name
    if name.startswith(("bfloat", "float8")):
        return array.astype("float32")
    if name in ("int4", "uint4"):
        return array.astype(f"{name[:-1]}8")
    return array


def _is_usual(layer: Any, weights: dict[str, Any]) -> bool:
    """Whether a layer that is built anew tells the names and the shapes."""
    own = layer._trainable_variables + layer._non_trainable_variables
    return list(weights) == [str(n) for n in range(len(own))] and all(
        tuple(a.shape) == tuple(b.shape)
        for a, b in zip(own, weights.values(), strict=True)
    )


def _shapes(
    layer: keras.Layer, stored: Any
) -> tuple[Sequence[str], list[tuple[int, ...]]]:
    """Names and shapes of the weights of a layer, of the file or its own."""
    if stored is None:
        own = {k: w.shape for k, w in own_weights(layer).items()}
        return list(own), list(own.values())
    try:
        shapes = [tuple(int(n) for n in shape) for shape in stored.values()]
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedFile("Its weights have no shapes.") from error
    if any(n < 0 for shape in shapes for n in shape):
        raise DamagedFile("Its weights have no shapes.")
    return list(stored), shapes
