"""Arrays as streams of bytes, without loss.

An array on a grid is stored as integers: which rows have any, the gaps between
those that are not zero, and these. Any other array is stored as its bytes, all
the first bytes first. The streams of all arrays are joined, kind by kind.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vdrop.coding import grid
from keras_vdrop.coding.errors import DamagedFile
from keras_vdrop.coding.records import Reader
from keras_vdrop.coding.records import number
from keras_vdrop.coding.records import signed

DTYPES = (
    "float32 float16 float64 bool int8 uint8 int16 uint16 int32 uint32 int64 "
    "uint64"
).split()
ON_GRID = len(DTYPES)
# The streams. The last is packed in parts, of which many cannot be shorter.
ROWS, GAPS, VALUES, BYTES = range(4)
KINDS = 4


def write(arrays: Sequence[Any]) -> tuple[bytes, list[bytes]]:
    """A plan of all arrays, and their streams."""
    plan = bytearray()
    streams = [bytearray() for _ in range(KINDS)]
    for array in arrays:
        _write_one(np.asarray(array), plan, streams)
    return bytes(plan), [bytes(stream) for stream in streams]


def _write_one(array: Any, plan: bytearray, streams: list[bytearray]) -> None:
    code = DTYPES.index(array.dtype.name)
    exponent = grid.find_exponent(array)
    if exponent is None:
        plan += number(code)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        streams[BYTES] += planes(little.reshape(-1))
        return
    plan += number(ON_GRID + code) + signed(exponent)
    table = grid.to_integers(_table(array), exponent)
    used = table.any(axis=1)
    if not used.all():
        streams[ROWS] += np.packbits(used).tobytes()
    # Column by column: the weights of a unit follow each other.
    flat = table[used].T.ravel()
    found = np.flatnonzero(flat)
    gaps = np.diff(found, prepend=-1) - 1
    values = flat[found]
    codes = 2 * np.abs(values) - 1 - (values > 0)
    widths = width_of(gaps), width_of(codes)
    plan += number(len(found) * 2 + int(not used.all()))
    plan += bytes([widths[0] * 16 + widths[1]])
    streams[GAPS] += planes(gaps.astype("<u8"), widths[0])
    streams[VALUES] += planes(codes.astype("<u8"), widths[1])


def read(
    reader: Reader, shapes: Sequence[tuple[int, ...]], streams: Sequence[bytes]
) -> list[Any]:
    """The inverse of `write`, for arrays of these shapes."""
    parts = [Reader(stream) for stream in streams]
    found = [_read_one(reader, shape, parts) for shape in shapes]
    if any(len(part.rest()) for part in parts):
        raise DamagedFile("It has more weights than its model.")
    return found


def _read_one(
    reader: Reader, shape: tuple[int, ...], streams: list[Reader]
) -> Any:
    code = reader.number()
    if code >= 2 * len(DTYPES):
        raise DamagedFile("It has weights of an unknown type.")
    dtype = np.dtype(DTYPES[code % len(DTYPES)])
    size = math.prod(shape)
    if code < ON_GRID:
        data = streams[BYTES].take(size * dtype.itemsize)
        little = from_planes(data, dtype.itemsize, dtype.newbyteorder("<"))
        return little.astype(dtype, copy=False).reshape(shape)
    exponent = reader.signed()
    if not -1200 < exponent < 1200:
        raise DamagedFile("A step in it is impossible.")
    count, masked = divmod(reader.number(), 2)
    widths = divmod(reader.take(1)[0], 16)
    if not all(1 <= width <= 8 for width in widths):
        raise DamagedFile("It has integers of an unknown length.")
    columns = shape[-1] if shape else 1
    rows = size // columns if columns else 0
    used = np.ones(rows, bool)
    if masked:
        bits = np.frombuffer(streams[ROWS].take(-(-rows // 8)), "u1")
        used = np.unpackbits(bits, count=rows) > 0
    flat = np.zeros(int(used.sum()) * columns, "int64")
    gaps = _take(streams[GAPS], count, widths[0])
    codes = _take(streams[VALUES], count, widths[1])
    if count:
        if max(gaps.max(), codes.max()) >= 2**53 or count > flat.size:
            raise DamagedFile("It has more weights than its model.")
        found = np.cumsum(gaps.astype("float64") + 1) - 1
        if found[-1] >= flat.size:
            raise DamagedFile("It has more weights than its model.")
        codes = codes.astype("int64")
        values = np.where(codes % 2 == 0, 1, -1) * (codes // 2 + 1)
        flat[found.astype("int64")] = values
    table = np.zeros((rows, columns), "int64")
    table[used] = flat.reshape(columns, int(used.sum())).T
    with np.errstate(over="ignore", invalid="ignore"):
        return grid.from_integers(table, exponent, dtype).reshape(shape)


def _take(stream: Reader, count: int, width: int) -> Any:
    return from_planes(stream.take(count * width), width, "<u8")


def _table(array: Any) -> Any:
    columns = array.shape[-1] if array.ndim else 1
    return array.reshape(array.size // columns if columns else 0, columns)


def width_of(values: Any) -> int:
    """The bytes that the largest of some integers needs."""
    return max(1, (int(values.max(initial=0)).bit_length() + 7) // 8)


def planes(values: Any, width: int | None = None) -> bytes:
    """The bytes of values, all the first bytes first."""
    width = values.dtype.itemsize if width is None else width
    each = values[:, None].view("u1") if values.size else np.zeros((0, 8), "u1")
    return each[:, :width].T.tobytes()


def from_planes(data: Any, width: int, dtype: Any) -> Any:
    """The inverse of `planes`."""
    dtype = np.dtype(dtype)
    found = np.frombuffer(data, "u1").reshape(width, -1).T
    each = np.zeros((len(found), dtype.itemsize), "u1")
    each[:, :width] = found
    return each.reshape(-1).view(dtype)
