"""Streams of bytes, as few as LZMA or deflate make of them."""

import functools
import importlib.resources
import lzma
import zlib
from collections.abc import Callable

from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.coding.records import Reader
from keras_vdrop.coding.records import number

# How a stream is stored: as it is, by LZMA, or by deflate without a search for
# repetitions, which is shorter for few bytes.
STORED, LZMA, HUFFMAN = range(3)
METHODS = 3
LARGEST_WINDOW = 1 << 24
PART = 1 << 16

# Is told how many more bytes were packed.
Advance = Callable[[int], object]


def write(data: bytes, advance: Advance = abs) -> bytes:
    """A stream with its sizes before it, packed as well as can be."""
    packed = _pack(data, advance)
    found = {STORED: data, LZMA: packed, HUFFMAN: _pack_few(data)}
    method = min(found, key=lambda method: len(found[method]))
    head = number(METHODS * len(data) + method)
    if method != STORED:
        head += number(len(found[method]))
    return head + found[method]


def write_parts(data: bytes, advance: Advance = abs) -> bytes:
    """A stream of which some parts can be packed and others cannot."""
    packed = [write(part, advance) for part in _parts(data)]
    return number(len(data)) + b"".join(packed)


def read_parts(reader: Reader, limit: int) -> bytes:
    """The inverse of `write_parts`, for at most `limit` bytes."""
    size = reader.number()
    if size > limit:
        raise DamagedFile("A stream in it is larger than what it is for.")
    parts = [read(reader, PART) for _ in range(0, size, PART)]
    found = b"".join(parts)
    if len(found) != size:
        raise DamagedFile("A stream in it has other parts.")
    return found


def read(reader: Reader, limit: int) -> bytes:
    """The next stream, of at most `limit` bytes."""
    size, method = divmod(reader.number(), METHODS)
    if size > limit:
        raise DamagedFile("A stream in it is larger than what it is for.")
    if method == STORED:
        return bytes(reader.take(size))
    data = bytes(reader.take(reader.number()))
    try:
        found = (
            _unpack(data, size) if method == LZMA else _unpack_few(data, size)
        )
    except (lzma.LZMAError, zlib.error) as error:
        raise DamagedFile("A stream in it cannot be unpacked.") from error
    if len(found) != size:
        raise DamagedFile("A stream in it ends too early.")
    return found


def _filters(size: int) -> list[dict[str, int]]:
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


def _parts(data: bytes) -> list[bytes]:
    return [data[at : at + PART] for at in range(0, len(data), PART)]


def _pack(data: bytes, advance: Advance = abs) -> bytes:
    filters = _filters(len(data))
    encoder = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=filters)
    found = []
    for part in _parts(data):
        found.append(encoder.compress(part))
        advance(len(part))
    return b"".join([*found, encoder.flush()])


def _unpack(data: bytes, size: int) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(size))
    return decoder.decompress(data, size)


def _pack_few(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return deflate.compress(data) + deflate.flush()


def _unpack_few(data: bytes, size: int) -> bytes:
    # Of no bytes `zlib` would take a limit of 0 as none.
    return zlib.decompressobj(-15).decompress(data, size) if size else b""


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
        packed = bytes(reader.take(reader.number()))
        text = inflate.decompress(packed, size) if size else b""
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
