"""Frames of the pipe between a query process and the server that started it.

- The process asks one question at a time (`Verb`) and waits for the answer, so each end holds one message at most.
- An answer has one part or none. An empty answer to NEXT is the end of the stream; an empty answer to SIZE or READ
  means that the lake file no longer exists.
"""

from __future__ import annotations

import struct
from enum import IntEnum

NUMBER = struct.Struct("<I")
FILE_SIZE = struct.Struct("<Q")
FILE_PART = struct.Struct("<QI")
"""First byte and number of bytes of a part of a file. The location of the file follows."""
FILE_PART_BYTES_MAX = 8 << 20
ASKED_BYTES_MAX = 64 << 20
"""The most bytes of a frame from the process. Its result is the largest: 4 M characters of 6 bytes of JSON each."""


class Verb(IntEnum):
    """The questions of the process: call an RPC; open a stream, read it, close it; a file's size and a part
    of it; who may read which tables."""

    CALL = 1
    OPEN = 2
    NEXT = 3
    CLOSE = 4
    SIZE = 5
    READ = 6
    READERS = 7


def called(method: str, request: bytes) -> bytes:
    """The payload of CALL or OPEN: an RPC's name and its request."""
    return method.encode() + b"\0" + request


def parted(payload: bytes) -> tuple[str, bytes]:
    """(RPC, request) of a payload of CALL or OPEN."""
    name, _, request = payload.partition(b"\0")
    return name.decode("ascii"), request
