"""RPCs over a pipe: the questions that the process of a query asks the server that has started it.

The process may CALL an RPC, OPEN a stream of answers, ask for the NEXT one, and CLOSE it, ask for the SIZE of a lake
file and READ a part of it, one at a time. Each answer has one part or none; none in answer to NEXT is the stream's end,
and in answer to SIZE or READ it says that the file is gone. So neither end holds more than one message.
"""

from __future__ import annotations

import struct
from enum import IntEnum

NUMBER = struct.Struct("<I")
FILE_SIZE = struct.Struct("<Q")
FILE_PART = struct.Struct("<QI")
"""First byte and number of bytes of a part of a file; the file's location follows."""
FILE_PART_BYTES_MAX = 8 << 20
ASKED_BYTES_MAX = 64 << 20
"""Bytes of a frame of the process's. Its largest one is the answer: 4 M characters, 6 bytes of JSON for each."""


class Verb(IntEnum):
    """The questions."""

    CALL = 1
    OPEN = 2
    NEXT = 3
    CLOSE = 4
    SIZE = 5
    READ = 6


def called(method: str, request: bytes) -> bytes:
    """The payload of CALL or OPEN: an RPC's name and its request."""
    return method.encode() + b"\0" + request


def parted(payload: bytes) -> tuple[str, bytes]:
    """(RPC, request) of such a payload."""
    name, _, request = payload.partition(b"\0")
    return name.decode("ascii"), request
