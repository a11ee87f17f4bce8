"""The server's end of the pipe to the key index's own process.

A process that was ended by somebody is started again. One that gives no answer in time, because it is stopped or
stuck, is ended, and its request asked again if that changes nothing; the second time in a row the index counts as lost.
A process that ended by a signal of its own (a map that is cut short, a page that is garbage), or that says so, has
damaged files.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from lakestore.errors import Unavailable
from lakestore.limits import DEFAULT
from lakestore_server.host import own_process
from lakestore_server.host.bounded_pipe import BoundedPipe, Silent, ended
from lakestore_server.index.packed import PackedKeys
from lakestore_server.index.pipe import DAMAGED_FILES, FAILED, Answer, Op, Request

END_SECONDS = 5.0
_WORKER = "lakestore_server.index.worker"
_OWN_SIGNALS = {-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


class DamagedIndex(Unavailable):
    """The files of the index cannot be trusted: the index must be rebuilt."""


class IndexWorker(Protocol):
    """An LMDB environment of one folder, as the server asks it. Thread-safe."""

    @property
    def pid(self) -> int | None:
        """The process that has it open, if there is one of its own."""

    def ask(
        self,
        op: Op,
        keys: Sequence[bytes] | PackedKeys = (),
        number: int = 0,
        *,
        again: bool = False,
    ) -> tuple[int, bytes]:
        """(index LSN, data) of one request; `Unavailable` or `DamagedIndex` if there is none."""

    def close(self) -> None:
        """Let go of the environment for good."""


IndexOf = Callable[[Path, float], IndexWorker]
"""Gives the worker of an index's folder, which must not be silent for so many seconds."""


def taken(answer: Answer) -> tuple[int, bytes]:
    """(index LSN, data) of an answer, or the error that it tells of."""
    if answer.lsn == FAILED:
        raise Unavailable(f"the key index cannot be read or written ({answer.data.decode()}): free space on the disk")
    if answer.lsn == DAMAGED_FILES:
        raise DamagedIndex(answer.data.decode())
    return answer.lsn, answer.data


class IndexProcess:
    """A worker process, started by the first request; one request at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        map_bytes: int = 0,
        read_only: bool = False,
        silence_seconds: float = DEFAULT.index_silence_seconds,
    ) -> None:
        self._arguments = str(folder), str(map_bytes), str(int(read_only))
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: BoundedPipe | None = None
        self._silence_seconds, self._silences = silence_seconds, 0

    def _started(self) -> subprocess.Popen[bytes]:
        return own_process.begun(_WORKER, *self._arguments)

    @property
    def pid(self) -> int | None:
        """The process, if there is one yet."""
        return self._process.pid if self._process else None

    def ask(
        self,
        op: Op,
        keys: Sequence[bytes] | PackedKeys = (),
        number: int = 0,
        *,
        again: bool = False,
    ) -> tuple[int, bytes]:
        """(index LSN, data) of one request; `again` repeats one that changes nothing when the process was ended."""
        message = Request.of(op, keys, number).encode()
        with self._lock:
            try:
                answer = self._exchange(message)
            except Unavailable:
                if not again or self._closed:
                    raise
                answer = self._exchange(message)
        return taken(answer)

    def _exchange(self, message: bytes) -> Answer:
        if self._closed:
            raise Unavailable("the key index is closed: try again")
        process, pipe = self._opened()
        try:
            pipe.write(message)
            answer = Answer.read(pipe)
        except (EOFError, OSError, ValueError) as error:
            is_silent = isinstance(error, Silent)
            if is_silent:
                process.kill()
            code = ended(process, END_SECONDS)
            self._process = self._pipe = None
            raise self._lost(code, is_silent=is_silent) from error
        self._silences = 0
        return answer

    def _opened(self) -> tuple[subprocess.Popen[bytes], BoundedPipe]:
        if self._process is None or self._pipe is None:
            self._process = self._started()
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            self._pipe = BoundedPipe(stdin, stdout, self._silence_seconds)
        return self._process, self._pipe

    def _lost(self, code: int, *, is_silent: bool) -> Unavailable:
        """The error of a request whose process is gone."""
        if is_silent:
            self._silences += 1
            said = f"its process gave no answer for {self._silence_seconds:g} s"
            return DamagedIndex(f"{said} twice") if self._silences > 1 else Unavailable(f"key index: {said}: try again")
        if code in _OWN_SIGNALS:
            return DamagedIndex(f"its process ended by {signal.Signals(-code).name}")
        return Unavailable("the key index's process was ended and is started again: try again")

    def close(self) -> None:
        """End the process for good; a request that has no answer soon is broken off."""
        self._closed = True
        if not self._lock.acquire(timeout=END_SECONDS):
            if (process := self._process) is not None:
                process.kill()
            self._lock.acquire()
        try:
            if self._process is not None:
                ended(self._process, END_SECONDS)
                self._process = self._pipe = None
        finally:
            self._lock.release()


def in_process(folder: Path, silence_seconds: float) -> IndexWorker:
    """The worker of a folder in a process of its own."""
    return IndexProcess(folder, silence_seconds=silence_seconds)
