"""RPCs over a pipe: the dialog between a server and a process that it has started to answer one query.

A frame is its length u32 (of all that follows), a kind u8 and a payload. The server begins with QUESTION. The process
answers by RESULT or ERROR; before that it may CALL an RPC, OPEN a stream of answers, ask for the NEXT one, and CLOSE
it, ask for the SIZE of a lake file and READ a part of it, one at a time: each is answered by ANSWER, END or FAILED. So
neither end holds more than one message. END in answer to SIZE or READ says that the file is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

HEAD = struct.Struct("<IB")
NUMBER = struct.Struct("<I")
FILE_SIZE = struct.Struct("<Q")
FILE_PART = struct.Struct("<QI")
"""First byte and number of bytes of a part of a file; the file's location follows."""
FILE_PART_BYTES_MAX = 8 << 20
FRAME_BYTES_MAX = (1 << 31) - 1
"""Bytes of a frame of the server's."""
ASKED_BYTES_MAX = 64 << 20
"""Bytes of a frame of the process's. Its largest one is a RESULT: 4 M characters, 6 bytes of JSON for each."""


class Kind(IntEnum):
    """The kinds of frames: below 16 the server's, from 16 on the process's."""

    QUESTION = 1
    ANSWER = 2
    END = 3
    FAILED = 4
    CALL = 16
    OPEN = 17
    NEXT = 18
    CLOSE = 19
    RESULT = 20
    ERROR = 21
    SIZE = 22
    READ = 23


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on the pipe."""

    kind: Kind
    payload: bytes = b""

    def encode(self) -> bytes:
        """The frame's bytes."""
        return HEAD.pack(len(self.payload) + 1, self.kind) + self.payload

    @staticmethod
    def read(exactly: Callable[[int], bytes], bytes_max: int = FRAME_BYTES_MAX) -> Frame:
        """The next frame, by a function that gives so many bytes; `ValueError` for one that is none."""
        size, kind = HEAD.unpack(exactly(HEAD.size))
        if not 1 <= size <= bytes_max:
            raise ValueError(f"a frame of {size} bytes")
        return Frame(Kind(kind), exactly(size - 1))


def called(method: str, request: bytes) -> bytes:
    """The payload of CALL or OPEN: an RPC's name and its request."""
    return method.encode() + b"\0" + request


def parted(payload: bytes) -> tuple[str, bytes]:
    """(RPC, request) of such a payload."""
    name, _, request = payload.partition(b"\0")
    return name.decode("ascii"), request
