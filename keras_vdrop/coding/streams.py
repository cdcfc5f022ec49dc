"""Streams of bytes, as few as LZMA or deflate make of them."""

import functools
import importlib.resources
import lzma
import zlib

from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.coding.records import Reader
from keras_vdrop.coding.records import number

STORED, PACKED = 0, 1
LARGEST_WINDOW = 1 << 24
# Of a stream that is longer, a part tells whether it can be shorter at all.
SAMPLE = 1 << 16


def write(data: bytes) -> bytes:
    """A stream with its sizes before it."""
    packed = _pack(data) if _is_worth_it(data) else data
    method = PACKED if len(packed) < len(data) else STORED
    body = packed if method == PACKED else data
    head = number(2 * len(data) + method)
    return head + (number(len(body)) if method == PACKED else b"") + body


def read(reader: Reader, limit: int) -> bytes:
    """The next stream, of at most `limit` bytes."""
    size, method = divmod(reader.number(), 2)
    if size > limit:
        raise DamagedFile("A stream in it is larger than what it is for.")
    if method == STORED:
        return bytes(reader.take(size))
    return _unpack(bytes(reader.take(reader.number())), size)


def _is_worth_it(data: bytes) -> bool:
    if len(data) <= 4 * SAMPLE:
        return True
    middle = data[len(data) // 2 :][:SAMPLE]
    return len(zlib.compress(middle, 1)) < 0.98 * SAMPLE


def _filters(size: int) -> list[dict]:
    window = min(max(size, 4096), LARGEST_WINDOW)
    return [
        {
            "id": lzma.FILTER_LZMA1,
            "preset": 9 if size < LARGEST_WINDOW else 6,
            "dict_size": window,
            "lc": 0,
            "lp": 0,
            "pb": 0,
        }
    ]


def _pack(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_RAW, filters=_filters(len(data)))


def _unpack(data: bytes, size: int) -> bytes:
    try:
        decoder = lzma.LZMADecompressor(
            lzma.FORMAT_RAW, filters=_filters(size)
        )
        found = decoder.decompress(data, size)
    except lzma.LZMAError as error:
        raise DamagedFile("A stream in it cannot be unpacked.") from error
    if len(found) != size:
        raise DamagedFile("A stream in it ends too early.")
    return found


def write_text(text: bytes) -> bytes:
    """A stream of JSON that shares its words with the configs of Keras."""
    deflate = zlib.compressobj(
        9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, dictionary()
    )
    packed = deflate.compress(text) + deflate.flush()
    return number(len(text)) + number(len(packed)) + packed


def read_text(reader: Reader, limit: int) -> bytes:
    """The next stream of JSON, of at most `limit` bytes."""
    size = reader.number()
    if size > limit:
        raise DamagedFile("Its header is too large.")
    inflate = zlib.decompressobj(-15, dictionary())
    try:
        text = inflate.decompress(bytes(reader.take(reader.number())), size)
    except zlib.error as error:
        raise DamagedFile("Its header cannot be unpacked.") from error
    if len(text) != size:
        raise DamagedFile("Its header ends too early.")
    return text


@functools.cache
def dictionary() -> bytes:
    """Words of configs. A part of the format: it never changes."""
    folder = importlib.resources.files(__package__)
    return folder.joinpath("dictionary.json").read_bytes()
