"""What an Arrow IPC message says of itself before it is decoded: whether its buffers are compressed.

Six kilobytes of zstd can unfold to 200 MB, so rows from outside must come uncompressed. The message's metadata is a
flatbuffer, verified by Arrow when the message is read; here one optional field of it is looked for.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DICTIONARY_DATA, _COMPRESSION = 1, 3


def has_compressed(data: bytes) -> bool:
    """Whether any message of an IPC stream is compressed."""
    reader = pa.ipc.MessageReader.open_stream(data)
    try:
        return any(is_compressed(bytes(message.metadata)) for message in reader)
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message's metadata is damaged: {error}") from error


def is_compressed(metadata: bytes) -> bool:
    """Whether a message is, by its metadata, which Arrow has verified."""
    root = struct.unpack_from("<I", metadata)[0]
    place = _field(metadata, root, _HEADER_TYPE)
    kind = metadata[place] if place else 0
    header = _table(metadata, root, _HEADER)
    if kind == _DICTIONARY_BATCH:
        header = _table(metadata, header, _DICTIONARY_DATA)
    elif kind != _RECORD_BATCH:
        return False
    return _field(metadata, header, _COMPRESSION) != 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """The place of a field of a flatbuffer table; 0 when it is absent."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    size = struct.unpack_from("<H", metadata, vtable)[0]
    at = 4 + 2 * number
    offset = int(struct.unpack_from("<H", metadata, vtable + at)[0]) if at < size else 0
    return table + offset if offset else 0


def _table(metadata: bytes, table: int, number: int) -> int:
    """The place of the table that a field points to."""
    place = _field(metadata, table, number)
    return place + int(struct.unpack_from("<I", metadata, place)[0])
