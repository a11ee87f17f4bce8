"""The server's end of the pipe to the presenter's process.

A process that was ended by somebody is started again, and the request asked once more: a presenting changes nothing
that anybody has seen. One that is silent for too long, because it is stopped or stuck, is ended and counts as gone.
"""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from lakestore.errors import Internal, LakestoreError, Unavailable
from lakestore.iceberg.offset_cache import remove_groups
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.errors import defect
from lakestore_server.host import own_process
from lakestore_server.host.bounded_pipe import BoundedPipe, Silent, ended
from lakestore_server.snapshots import messages
from lakestore_server.snapshots.messages import DEFAULT_ROOM, BuildRequest, BuiltFiles, Frame, Kind, Room

END_SECONDS = 5.0
SILENCE_SECONDS = 60.0
_WORKER = "lakestore_server.snapshots.worker"
Fetch = Callable[[pb.FetchRequest], Iterator[pb.RowBatch]]
"""Rows of one split, as `Plans.fetch` gives them."""


class _Gone(Exception):
    """The process ended, or was ended, while a request was on its way."""


class SnapshotBuilderProcess:
    """A worker process, started by `start` or the first request; one request at a time. Thread-safe."""

    def __init__(self, room: Room = DEFAULT_ROOM, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: BoundedPipe | None = None
        self._silence_seconds, self._room = silence_seconds, room
        self._runs: list[str] = []

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process else None

    @property
    def runs(self) -> Sequence[str]:
        """The folder names of this server's runs, the newest last: a run is one life of the process."""
        return tuple(self._runs)

    def start(self) -> None:
        """Start the process if it is not there, without waiting for it, or for a request that it is at."""
        if not self._lock.acquire(blocking=False):
            return  # whoever talks with it has started it, or is ending it
        try:
            if not self._closed:
                self._opened()
        finally:
            self._lock.release()

    def present(self, request: BuildRequest, fetch: Fetch) -> BuiltFiles:
        """The files of a table at a cut; `fetch` is called in this thread."""
        frame = request.encode()
        with self._lock:
            try:
                return self._presented(frame, fetch)
            except _Gone:
                return self._again(frame, fetch)

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Let go of cuts whose leases are over; a process that is gone has forgotten them."""
        with self._lock:
            if self._process is None or self._closed or not cut_ids:
                return
            try:
                self._exchange(messages.forget(cut_ids), _no_rows)
            except _Gone:
                return

    def keep_tables(self, uuids: Collection[str]) -> None:
        """Remove the index files of other tables than these."""
        if self._room.offsets_folder:
            remove_groups(Path(self._room.offsets_folder), uuids)

    def close(self) -> None:
        """End the process for good; a request that has no answer soon is broken off."""
        self._closed = True
        if not self._lock.acquire(timeout=END_SECONDS):
            if (process := self._process) is not None:
                process.kill()
            self._lock.acquire()
        try:
            self._ended()
        finally:
            self._lock.release()

    def _again(self, frame: Frame, fetch: Fetch) -> BuiltFiles:
        try:
            return self._presented(frame, fetch)
        except _Gone as error:
            raise Unavailable(f"the process that presents tables {error}: try again") from error

    def _presented(self, frame: Frame, fetch: Fetch) -> BuiltFiles:
        return BuiltFiles.decode(self._exchange(frame, fetch).payload)

    def _exchange(self, frame: Frame, fetch: Fetch) -> Frame:
        """The answer to a request; whatever the process fetches meanwhile is served."""
        if self._closed:
            raise Unavailable("the server is closing: try again")
        pipe = self._opened()
        try:
            pipe.write(frame.encode())
            while True:
                answer = Frame.read(pipe)
                if answer.kind == Kind.FETCH:
                    self._serve(pipe, answer, fetch)
                elif answer.kind == Kind.ERROR:
                    raise messages.error_in(answer.payload)
                elif answer.kind != Kind.WORKING:
                    return answer
        except (EOFError, OSError, ValueError) as error:
            self._lost(error)

    def _serve(self, pipe: BoundedPipe, question: Frame, fetch: Fetch) -> None:
        frames = _frames(pb.FetchRequest.FromString(question.payload), fetch)
        for frame in frames:
            pipe.write(frame.encode())

    def _lost(self, error: Exception) -> NoReturn:
        """End what is left of the process, and raise `_Gone`."""
        was_silent = isinstance(error, Silent)
        if was_silent and self._process is not None:
            self._process.kill()
        self._ended()
        raise _Gone(f"gave no answer for {self._silence_seconds:g} s" if was_silent else "was ended") from error

    def _opened(self) -> BoundedPipe:
        if self._process is None or self._pipe is None:
            run = uuid.uuid4().hex[:16]
            self._process = own_process.begun(_WORKER, run, self._room.encode(), reads_stores=True)
            self._runs.append(run)
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            self._pipe = BoundedPipe(stdin, stdout, self._silence_seconds)
        return self._pipe

    def _ended(self) -> None:
        """End the process if there is one: it ends with its pipe, else it is killed."""
        process, self._process, self._pipe = self._process, None, None
        if process is not None:
            ended(process, END_SECONDS)


def _frames(request: pb.FetchRequest, fetch: Fetch) -> Iterator[Frame]:
    """The rows of a split as frames, and their end or what broke them off."""
    try:
        for batch in fetch(request):
            yield Frame(Kind.ROWS, batch.SerializeToString())
    except LakestoreError as error:
        yield messages.error_frame(Kind.FAILED, error)
    except Exception as error:  # the process waits for an end, and its answer tells whoever asks of the defect
        yield messages.error_frame(Kind.FAILED, defect(error, "no"))
    else:
        yield Frame(Kind.END)


def _no_rows(request: pb.FetchRequest) -> Iterator[pb.RowBatch]:
    raise Internal(f"a presenter that was told to forget asked for rows of table {request.table_uuid}")
