"""The file format: a header in JSON, and arrays.

    4 bytes   "KVZ" and the version of the format
    4 bytes   CRC-32 of all that follows, the lowest byte first
    header    its size, its packed size, and deflated JSON
    plan      its size, and how each array is stored
    streams   rows, gaps, values and bytes of the arrays
    zeros     so many that the arrays are at most `EXPANSION` times as large

Sizes are numbers of seven bits a byte. Reading a file of n bytes allocates at
most `EXPANSION * n + FLOOR` bytes for the arrays, and for each stream.
"""

import json
import zlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_vdrop.coding import arrays
from keras_vdrop.coding import streams
from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.coding.records import Reader
from keras_vdrop.coding.records import number

MAGIC, VERSION = b"KVZ", 1
EXPANSION = 1024
FLOOR = 1 << 24
# Of the header: configs are made of a few words.
HEADER_EXPANSION = 64
HEADER_FLOOR = 1 << 20


def write(
    header: Any,
    weights: Sequence[Any],
    progress: Callable[[int, int], object] | None = None,
) -> bytes:
    """A file of a header that JSON can hold, and of arrays.

    `progress` is told the bytes that are done, and the bytes of all streams.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    plan, parts = arrays.write(weights)
    body = streams.write_text(text) + number(len(plan)) + plan
    size, done = sum(map(len, parts)), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, size)

    *integers, floats = parts
    body += b"".join(streams.write(stream, advance) for stream in integers)
    body += streams.write_parts(floats, advance)
    total = sum(array.nbytes for array in weights) - FLOOR
    shortest = max(
        -(-total // EXPANSION),
        -(-(len(text) - HEADER_FLOOR) // HEADER_EXPANSION),
    )
    body += bytes(max(0, shortest - len(body) - 8))
    start = MAGIC + bytes([VERSION])
    return start + zlib.crc32(body).to_bytes(4, "little") + body


def most_bytes(size: int) -> int:
    """The most that the arrays of a file of this size may need."""
    return EXPANSION * size + FLOOR


def read(data: bytes) -> tuple[Any, Callable[..., list[Any]]]:
    """The header of a file, and a function of shapes that gives the arrays."""
    if data[:3] != MAGIC:
        raise DamagedFile("It does not begin as a compressed model does.")
    if data[3:4] != bytes([VERSION]):
        raise DamagedFile(
            "Another version of keras_vdrop has written it: install the newest."
        )
    if zlib.crc32(data[8:]) != int.from_bytes(data[4:8], "little"):
        raise DamagedFile("It is not whole: its checksum is another.")
    reader = Reader(data[8:])
    limit = HEADER_EXPANSION * len(data) + HEADER_FLOOR
    text = streams.read_text(reader, limit)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFile("Its header is no JSON.") from error
    plan = Reader(reader.take(reader.number()))

    def read_arrays(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        most = most_bytes(len(data))
        parts = [streams.read(reader, most) for _ in range(arrays.BYTES)]
        parts.append(streams.read_parts(reader, most))
        found = arrays.read(plan, shapes, parts)
        if len(plan.rest()) or any(reader.rest()):
            raise DamagedFile("It has more weights than its model.")
        return found

    return header, read_arrays
