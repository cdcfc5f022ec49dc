"""Files of arrays: without loss, near the entropy, and safe to read."""

import zlib

import numpy as np
import pytest

from keras_vdrop.coding import arrays
from keras_vdrop.coding import container
from keras_vdrop.coding import records
from keras_vdrop.coding import streams
from keras_vdrop.coding.errors import DamagedFile

generator = np.random.default_rng(0)
ON_A_GRID = generator.integers(-9, 9, (30, 7)) * (
    generator.random((30, 7)) < 0.1
)
ARRAYS = {
    "float32": generator.normal(size=(5, 4)).astype("float32"),
    "float64": generator.normal(size=(5, 4)),
    "float16": generator.normal(size=(5, 4)).astype("float16"),
    "int8": generator.integers(-99, 99, (3, 3)).astype("int8"),
    "uint32": np.array([2**32 - 1, 0, 5], "uint32"),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "bool": np.array([True, False, True]),
    "grid": (ON_A_GRID / 8).astype("float32"),
    "grid16": (ON_A_GRID / 8).astype("float16"),
    "large": np.arange(0, 60000, 999, "float32"),
    "empty": np.zeros((0, 3), "float32"),
    "no columns": np.zeros((3, 0), "float32"),
    "scalar": np.array(0.5, "float32"),
    "zeros": np.zeros((40, 50), "float32"),
    "rank 4": np.zeros((2, 2, 3, 4), "float32") + 0.25,
    "signs": np.array([-0.0, 0.0, np.nan, np.inf, -np.inf], "float32"),
    "denormal": np.array([1e-45, -3e-45, 0], "float32"),
    "swapped": np.arange(4.0).astype(">f4") / 3,
    "strided": np.asfortranarray(generator.normal(size=(6, 5))),
    "one, far away": np.eye(1, 70_000, 69_999, dtype="float32"),
}


def read(data, found):
    header, read_arrays = container.read(data)
    return header, read_arrays([array.shape for array in found])


def check(found):
    header, again = read(container.write({"a": [1]}, found), found)
    assert header == {"a": [1]}
    for before, after in zip(found, again, strict=True):
        native = before.dtype.newbyteorder("=")
        assert after.dtype == native and after.shape == before.shape
        assert after.tobytes() == before.astype(native).tobytes()


@pytest.mark.parametrize("name", ARRAYS)
def test_bit_for_bit(name):
    check([ARRAYS[name]])


def test_all_together():
    check(list(ARRAYS.values()))


def test_random_arrays():
    generator = np.random.default_rng(1)
    for _ in range(100):
        shape = generator.integers(0, 6, generator.integers(0, 4))
        array = generator.normal(size=shape).astype("float32")
        if generator.random() < 0.7:
            array = np.round(array * 4) / 2.0 ** generator.integers(-9, 9)
        check([array + np.float32(0)])


def entropy_bytes(symbols):
    _, counts = np.unique(symbols, return_counts=True)
    return -(counts * np.log2(counts / counts.sum())).sum() / 8


def test_near_the_entropy():
    """Of the positions, each apart, and of the values."""
    generator = np.random.default_rng(2)
    shape, density = (1000, 400), 0.05
    values = np.rint(generator.normal(size=shape) * 3)
    array = np.where(generator.random(shape) < density, values, 0) + 0.0
    kept = array[array != 0]
    p = kept.size / array.size
    positions = -array.size * (p * np.log2(p) + (1 - p) * np.log2(1 - p)) / 8
    ideal = positions + entropy_bytes(kept)
    size = len(container.write({}, [array.astype("float32")]))
    assert ideal < size < 1.07 * ideal


def test_dense_floats_are_not_longer():
    array = np.random.default_rng(3).normal(size=(300, 400)).astype("float32")
    assert len(container.write({}, [array])) < array.nbytes


def test_numbers():
    for value in (0, 1, 127, 128, 300, 2**62):
        reader = records.Reader(records.number(value) + b"x")
        assert reader.number() == value and bytes(reader.rest()) == b"x"
    for value in (0, -1, 1, -149, 2**40, -(2**40)):
        assert records.Reader(records.signed(value)).signed() == value
    with pytest.raises(DamagedFile, match="too large"):
        records.Reader(b"\xff" * 20).number()
    with pytest.raises(DamagedFile, match="too early"):
        records.Reader(b"\xff").number()
    with pytest.raises(DamagedFile, match="too early"):
        records.Reader(b"abc").take(4)


def test_the_dictionary_never_changes():
    """Or no file that was written before could be read."""
    assert len(streams.dictionary()) == 30678
    assert zlib.crc32(streams.dictionary()) == DICTIONARY


DICTIONARY = 3462842226


def test_not_whole():
    found = [ARRAYS["grid"], ARRAYS["float32"]]
    data = container.write({}, found)
    for size in range(len(data)):
        with pytest.raises(DamagedFile):
            read(data[:size], found)
    with pytest.raises(DamagedFile, match="checksum"):
        read(data + b"\0", found)
    with pytest.raises(DamagedFile, match="Another version"):
        read(data[:3] + b"\x09" + data[4:], found)
    with pytest.raises(DamagedFile, match="does not begin"):
        read(b"PK" + data[2:], found)


def with_checksum(body):
    start = container.MAGIC + bytes([container.VERSION])
    return start + zlib.crc32(body).to_bytes(4, "little") + body


def test_altered_on_purpose():
    """1,000 files with a right checksum: an error, or arrays of the shapes."""
    found = [ARRAYS["grid"], ARRAYS["float32"], ARRAYS["large"]]
    body = container.write({"a": "b" * 50}, found)[8:]
    generator = np.random.default_rng(4)
    errors = 0
    for _ in range(1000):
        altered = bytearray(body)
        for _ in range(generator.integers(1, 4)):
            kind, at = generator.integers(3), generator.integers(len(altered))
            if kind == 0:
                altered[at] = generator.integers(256)
            elif kind == 1:
                del altered[at : at + generator.integers(1, 9)]
            else:
                altered[at:at] = generator.bytes(3)
        try:
            _, again = read(with_checksum(bytes(altered)), found)
            for before, after in zip(found, again, strict=True):
                assert before.shape == after.shape
        except DamagedFile:
            errors += 1
    assert errors > 500


def test_bombs():
    """What says that it is large is refused before it is unpacked."""
    data = container.write({}, [np.zeros(10, "float32")])
    most = container.most_bytes(len(data))
    stream = streams.write(bytes(most + 1))
    with pytest.raises(DamagedFile, match="larger than what it is for"):
        streams.read(records.Reader(stream), most)
    text = streams.write_text(b'"' + b"a" * 3_000_000 + b'"')
    with pytest.raises(DamagedFile, match="header is too large"):
        container.read(with_checksum(text))
    # More than is said is not unpacked.
    packed = streams._pack(bytes(10_000_000))
    stream = records.number(streams.METHODS * 100 + streams.LZMA)
    stream += records.number(len(packed)) + packed
    assert len(streams.read(records.Reader(stream), most)) == 100


def test_padding():
    """A file is long enough for the memory that its arrays need."""
    zeros = np.zeros(20_000_000, "float32")
    data = container.write({}, [zeros])
    assert zeros.nbytes <= container.most_bytes(len(data))
    assert len(data) < zeros.nbytes / 1000
    read(data, [zeros])


def test_other_shapes():
    data = container.write({}, [ARRAYS["float32"]])
    for shapes in ([], [(5, 4), (1,)], [(5, 5)], [(4, 4)], [(5, 4), (0,)]):
        with pytest.raises(DamagedFile):
            container.read(data)[1](shapes)


def test_hostile_plans():
    def plan(*parts):
        body = streams.write_text(b"{}")
        whole = b"".join(parts)
        body += records.number(len(whole)) + whole
        body += b"".join(map(streams.write, [b"", b"\1" * 9, b"\1" * 9]))
        body += streams.write_parts(b"")
        return with_checksum(body)

    grid = records.number(arrays.ON_GRID)
    signed, number = records.signed, records.number
    for parts, message in {
        (number(99),): "unknown type",
        (grid, signed(5000)): "impossible",
        (grid, signed(0), number(8), b"\x99"): "unknown length",
        (grid, signed(0), number(2**60)): "too early",
        (grid, signed(0), number(2**60), b"\x11"): "too early",
        (grid, signed(0), number(18), b"\x11"): "more weights",
    }.items():
        with pytest.raises(DamagedFile, match=message):
            container.read(plan(*parts))[1]([(5,)])
