"""Files of Keras whose members are packed by LZMA."""

import io
import json
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import keras

from keras_vdrop.coding import container
from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.models.dry_run import check_size
from keras_vdrop.models.rebuild import copy_weights
from keras_vdrop.models.rebuild import rebuild

ENDING = ".keras"
CONFIG = "config.json"
# What Keras writes compressed members of, and what `write` does.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
# The header of a member, before its name; and of LZMA in it.
HEADER, LZMA_HEADER = 30, 9
LARGEST_WINDOW = 1 << 26
# So much is packed before the progress is told.
PART = 1 << 16


def is_archive(data: bytes) -> bool:
    return data[:2] == b"PK"


def write(
    model: keras.Model, path: str, progress: Callable[[int, int], object]
) -> None:
    """Saves as `model.save` does, without the optimizer, packed."""
    if getattr(model, "optimizer", None) is not None:
        same = rebuild(model, lambda *_: None, safe_mode=False)
        copy_weights(model, same)
        model = same
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "model.keras")
        model.save(plain)
        with (
            zipfile.ZipFile(plain) as source,
            zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as target,
        ):
            size, done = sum(x.file_size for x in source.infolist()), 0
            for member in source.infolist():
                with (
                    source.open(member) as whole,
                    target.open(member.filename, "w") as packed,
                ):
                    while part := whole.read(PART):
                        packed.write(part)
                        done += len(part)
                        progress(done, size)
        _pad(path)


def _pad(path: str) -> None:
    """Makes a file large enough for what is in it, by its comment."""
    with zipfile.ZipFile(path) as file:
        total = sum(member.file_size for member in file.infolist())
    missing = (total - container.FLOOR) // container.EXPANSION
    missing -= os.path.getsize(path)
    if missing > 0:
        with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as file:
            file.writestr("padding", bytes(missing))


def read(
    data: bytes, path: str, custom_objects: Any, safe_mode: bool
) -> keras.Model:
    """Loads with Keras what was found to be whole."""
    most = container.most_bytes(len(data))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            _check_members(file, data, most)
            # Reads all, and compares the checksums.
            broken = file.testzip()
            config = json.loads(file.read(CONFIG))
    except (
        EOFError,
        KeyError,
        NotImplementedError,
        OSError,
        RecursionError,
        RuntimeError,
        ValueError,
        lzma.LZMAError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DamagedFile(f"It is not whole: {error}") from error
    if broken is not None:
        raise DamagedFile(f"It is not whole: '{broken}' is damaged.")
    if safe_mode:
        check_size(config, custom_objects, most)
    try:
        return keras.saving.load_model(
            path, custom_objects, compile=False, safe_mode=safe_mode
        )
    except Exception as error:
        raise DamagedFile(f"Keras cannot load it: {error}") from error


def _check_members(file: zipfile.ZipFile, data: bytes, most: int) -> None:
    members = file.infolist()
    if sum(member.file_size for member in members) > most:
        raise DamagedFile("Its members are larger than its size allows.")
    for member in members:
        if member.compress_type not in METHODS:
            raise DamagedFile("It is packed in an unknown way.")
        if member.compress_type == zipfile.ZIP_LZMA:
            at = member.header_offset
            lengths = data[at + 26 : at + HEADER]
            start = at + HEADER + sum(lengths[::2]) + 256 * sum(lengths[1::2])
            window = data[start + 5 : start + LZMA_HEADER]
            if int.from_bytes(window, "little") > LARGEST_WINDOW:
                raise DamagedFile("Its members need too large a window.")
