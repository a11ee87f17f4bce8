"""The format of an object of a journal in a store: `log/<number>`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from lakestore.errors import NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore_server.state.judge import ForeignLog

MAGIC, VERSION = 0x4C534F31, 1
HEADER = struct.Struct("<IIQQII")
"""An object is a header, the length of each message as u32, and the messages. Header: magic u32 · version u32 ·
number u64 · sender u64 · messages u32 · crc32c u32 of all but itself."""
_LENGTH = struct.Struct("<I")
_CRC_AT = HEADER.size - 4


def name_of(number: int) -> str:
    """The name of an object."""
    return f"log/{number:020}"


def object_of(number: int, sender: int, messages: Sequence[bytes]) -> bytes:
    """The bytes of an object."""
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    head = HEADER.pack(MAGIC, VERSION, number, sender, len(messages), 0)[:_CRC_AT]
    crc = crc32c(lengths, crc32c(head))
    for message in messages:
        crc = crc32c(message, crc)
    return b"".join((head, _LENGTH.pack(crc), lengths, *messages))


def messages_of(number: int, data: bytes) -> list[bytes]:
    """The messages of an object. The object of a stranger is one message, which the judge finds void."""
    if len(data) < HEADER.size or HEADER.unpack_from(data)[0] != MAGIC:
        return [data]
    _, version, own_number, _, count, crc = HEADER.unpack_from(data)
    if crc != crc32c(pa.py_buffer(data).slice(HEADER.size), crc32c(data[:_CRC_AT])):
        raise ForeignLog(f"object {name_of(number)} is damaged: its checksum does not fit")
    if version > VERSION:
        raise NewerFormat(f"object {name_of(number)} is of a newer release (version {version})")
    if own_number != number:
        raise ForeignLog(f"object {name_of(number)} is a copy of {name_of(own_number)}")
    at = HEADER.size + count * _LENGTH.size
    messages = []
    for length in struct.unpack_from(f"<{count}I", data, HEADER.size):
        messages.append(data[at : at + length])
        at += length
    return messages


def sender_of(data: bytes) -> tuple[int, int] | None:
    """(number, sender) of an object; None for a stranger's."""
    if len(data) < HEADER.size:
        return None
    magic, _, number, sender, _, _ = HEADER.unpack_from(data)
    return (number, sender) if magic == MAGIC else None
