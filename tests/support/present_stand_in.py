"""A presenter without a process: it writes one small file for each cut, and tests say when it answers, and how."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from lakestore.errors import Unavailable
from lakestore_server.catalog.locations import plain
from lakestore_server.snapshots.messages import BuildRequest, BuiltFiles
from lakestore_server.snapshots.worker_client import Fetch

FILE_BYTES = 1_000


class StandIn:
    """A `SnapshotBuilder`. `gate` lets presentings end; `asked` has every request so far."""

    def __init__(self, file_bytes: int = FILE_BYTES) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        """Released by each presenting that begins."""
        self.asked: list[BuildRequest] = []
        self.forgotten: list[int] = []
        self.runs: list[str] = []
        self.pid: int | None = None
        self._files: dict[int, Path] = {}
        self._file_bytes = file_bytes
        self._closed = False

    def start(self) -> None:
        """Begin a run."""
        if self.pid is None:
            self.runs.append(f"{id(self) & 0xFFFFFFFF:08x}{len(self.runs):08x}")
            self.pid = 1

    def kill(self) -> None:
        """The process is gone with all that it remembered; its files are there."""
        self.pid, self._files = None, {}

    def present(self, request: BuildRequest, fetch: Fetch) -> BuiltFiles:
        """One file for the cut."""
        self.start()
        self.asked.append(request)
        self.begun.release()
        if not self.gate.wait(60) or self._closed:
            raise Unavailable("the stand-in was not let go")
        file = Path(plain(f"{request.folder}/{self.runs[-1]}/cut-{request.cut_id}-{len(self.asked)}.avro"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * self._file_bytes)
        self._files[request.cut_id] = file
        rows = len(self.asked)
        first = request.base.next_row_id
        return BuiltFiles(
            f"file://{file}", rows, 1, 0, 0, self._file_bytes, self._file_bytes, first, first + rows, False
        )

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Remove the files of these cuts."""
        self.forgotten += cut_ids
        for cut_id in cut_ids:
            if file := self._files.pop(cut_id, None):
                file.unlink(missing_ok=True)

    def keep_tables(self, uuids: Collection[str]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """End."""
        self._closed = True
        self.gate.set()
