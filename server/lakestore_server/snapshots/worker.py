"""The presenter's process: requests from standard input, answers to standard output, one at a time.

Ends with its pipe. Imports little, for its start is part of the first answer.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from lakestore.errors import LakestoreError
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.errors import defect
from lakestore_server.snapshots import messages
from lakestore_server.snapshots.builder import SnapshotBuilder
from lakestore_server.snapshots.messages import BuildRequest, Frame, Kind, Room

WORKING_SECONDS = 1.0
"""Seconds between two signs of life."""


class Worker:
    """The process's end of the pipe."""

    def __init__(self, run: str, room: Room) -> None:
        self._from, self._to = os.fdopen(0, "rb", buffering=1 << 20), os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)  # libraries in C++ print, as AWS's SDK does, and a word of theirs in the pipe ends the request
        self._presenter, self._told = SnapshotBuilder(run, self._working, room), 0.0

    def serve(self) -> None:
        """Answer requests until the pipe closes."""
        try:
            while True:
                self._send(self._answered(Frame.read(self._from)))
                self._presenter.tidy()
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            self._presenter.close()

    def _answered(self, request: Frame) -> Frame:
        try:
            if request.kind == Kind.FORGET:
                self._presenter.forget(messages.forgotten(request.payload))
                return Frame(Kind.DONE)
            return self._presenter.present(BuildRequest.decode(request.payload), self._fetch).encode()
        except (EOFError, BrokenPipeError):
            raise
        except LakestoreError as error:
            return messages.error_frame(Kind.ERROR, error)
        except Exception as error:  # the boundary of the process: whoever asks is told of the defect
            return messages.error_frame(Kind.ERROR, defect(error, "no"))

    def _fetch(self, request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        self._send(Frame(Kind.FETCH, request.SerializeToString()))
        while True:
            frame = Frame.read(self._from)
            if frame.kind == Kind.END:
                return
            if frame.kind == Kind.FAILED:
                raise messages.error_in(frame.payload)
            message = pb.RowBatch.FromString(frame.payload)
            yield from ipc.decode_trusted(message.rows, crc=message.crc32c)

    def _working(self) -> None:
        """Say that an answer is on its way."""
        if time.monotonic() - self._told > WORKING_SECONDS:
            self._told = time.monotonic()
            self._send(Frame(Kind.WORKING))

    def _send(self, frame: Frame) -> None:
        left = memoryview(frame.encode())
        while left:
            left = left[self._to.write(left) :]


def main(run: str, room: str) -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server ends the process by its pipe
    Worker(run, Room.decode(room)).serve()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
