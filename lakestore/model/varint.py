"""Numbers as varints, the form of protobuf and Thrift: seven bits in a byte, the lowest first."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """A number that is not negative, as a varint."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def read(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number of the varint at a place, and the place behind it. Raises `ValueError` if there is none."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("no varint")
