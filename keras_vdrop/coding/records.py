"""Bytes that are written and read one part after the other."""

from keras_vdrop.coding.errors import DamagedFile

# Seven bits a byte: no number that is written has more.
LONGEST = 9


def number(value: int) -> bytes:
    """An integer from 0 on, seven bits to a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def signed(value: int) -> bytes:
    """Any integer."""
    return number(2 * value if value >= 0 else -2 * value - 1)


class Reader:
    """Reads what was written, and never beyond its end."""

    def __init__(self, data: bytes | memoryview):
        self.data = memoryview(data)
        self.position = 0

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        if not 0 <= count <= len(self.data) - self.position:
            raise DamagedFile("It ends too early.")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self) -> int:
        value = 0
        for place in range(LONGEST):
            (byte,) = self.take(1)
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise DamagedFile("A number in it is too large.")

    def signed(self) -> int:
        value = self.number()
        return -(value + 1) // 2 if value & 1 else value // 2

    def rest(self) -> memoryview:
        """All that was not read yet."""
        return self.take(len(self.data) - self.position)
