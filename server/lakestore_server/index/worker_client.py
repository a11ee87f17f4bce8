"""A process that holds the key index's LMDB environment, and the pipe to it.

One that was ended by somebody is started again. One that ended by a signal of its own (a map that is cut short, a
page that is garbage), or that says so, has damaged files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lakestore.errors import Unavailable
from lakestore_server.index import worker
from lakestore_server.index.keys import Packed

Ints = npt.NDArray[np.int64]
END_SECONDS = 10.0
_OWN_SIGNALS = {-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


class DamagedIndex(Unavailable):
    """The files of the index cannot be trusted; it must be rebuilt."""


class IndexProcess:
    """A worker process, started when it is first asked; one request at a time."""

    def __init__(self, folder: Path, *, map_bytes: int = 0, read_only: bool = False) -> None:
        self._command = [sys.executable, "-EP", worker.__file__, str(folder), str(map_bytes), str(int(read_only))]
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    def _started(self) -> subprocess.Popen[bytes]:
        # It computes nothing in parallel, and threads for that would be half of what its start takes.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    @property
    def pid(self) -> int | None:
        """The process, if there is one yet."""
        return self._process.pid if self._process else None

    def ask(
        self,
        op: int,
        keys: Sequence[bytes] | Packed = (),
        values: Ints | None = None,
        lsn: int = 0,
        *,
        again: bool = False,
    ) -> tuple[int, bytes]:
        """(index LSN, answer) of one request; `again` repeats one that changes nothing when the process was ended."""
        message = _message(op, keys, values, lsn)
        with self._lock:
            try:
                answer_lsn, data = self._exchange(message)
            except Unavailable:
                if not again or self._closed:
                    raise
                answer_lsn, data = self._exchange(message)
        if answer_lsn == worker.FAILED:
            raise Unavailable(f"the key index cannot be read or written ({data.decode()}): free space on the disk")
        if answer_lsn == worker.DAMAGED_FILES:
            raise DamagedIndex(data.decode())
        return answer_lsn, data

    def _exchange(self, message: bytes) -> tuple[int, bytes]:
        if self._closed:
            raise Unavailable("the key index is closed: try again")
        process = self._process = self._process or self._started()
        try:
            stdin, stdout = process.stdin, process.stdout
            assert stdin is not None
            assert stdout is not None
            stdin.write(message)
            stdin.flush()
            answer_lsn, size = worker.REPLY.unpack(worker.read_exactly(stdout, worker.REPLY.size))
            return answer_lsn, worker.read_exactly(stdout, size)
        except (EOFError, OSError, ValueError) as error:
            code = self._end(process)
            self._process = self._started()
            if code in _OWN_SIGNALS:
                raise DamagedIndex(f"its process ended by {signal.Signals(-code).name}") from error
            raise Unavailable("the key index's process was ended and is started again: try again") from error

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> int:
        """End a process; its exit code."""
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe:
                    pipe.close()
            except OSError:
                continue  # what was still to be written to a process that has ended
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._process is not None:
                    self._end(self._process)


def _message(op: int, keys: Sequence[bytes] | Packed, values: Ints | None, lsn: int) -> bytes:
    lengths = b""
    if isinstance(keys, Packed):
        blob, width = keys.blob, keys.width
    else:
        blob = b"".join(keys)
        width = len(keys[0]) if keys and len(blob) == len(keys) * len(keys[0]) else 0
        if keys and (not width or len(max(keys, key=len)) != width):
            width = 0
            lengths = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys)).tobytes()
    head = worker.REQUEST.pack(op, len(keys), width, len(blob), lsn)
    return b"".join((head, lengths, blob, values.tobytes() if values is not None else b""))
