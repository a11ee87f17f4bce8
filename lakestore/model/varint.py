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
