"""The server's end of the process that builds snapshots.

A request is asked once more if the process ends: it changes nothing that anybody has seen.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from lakestore.iceberg.cache import DerivedCache
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.host.child import Child, Gone
from lakestore_server.snapshots.messages import DEFAULT_ROOM, BuildRequest, BuiltFiles, Room, Verb

SILENCE_SECONDS = 60.0
_WORKER = "lakestore_server.snapshots.worker"
Fetch = Callable[[pb.FetchRequest], Iterator[RowMessage]]
"""Fetches the rows of one split, like `Plans.fetch`."""


class SnapshotBuilderProcess:
    """A process, started by `start` or the first request; one request at a time. Thread-safe."""

    def __init__(self, room: Room = DEFAULT_ROOM, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._room = room
        self._runs: list[str] = []
        self._child = Child(
            "presented tables", _WORKER, self._arguments, silence_seconds=silence_seconds, reads_stores=True
        )

    @property
    def pid(self) -> int | None:
        """The process id; None if there is no process."""
        return self._child.pid

    @property
    def runs(self) -> Sequence[str]:
        """Folder names of this server's runs, the newest last. A run is one start of the process."""
        return tuple(self._runs)

    def start(self) -> None:
        """Start the process if it does not run. Does not wait for it, nor for a running request."""
        self._child.start()

    def present(self, request: BuildRequest, fetch: Fetch) -> BuiltFiles:
        """The files of a table at a cut. `fetch` is called in this thread."""

        def serve(_verb: int, question: bytes) -> Iterator[bytes]:
            for batch in fetch(pb.FetchRequest.FromString(question)):
                yield batch.encoded()

        return BuiltFiles.decode(self._child.ask(Verb.PRESENT, request.encode(), serve, again=True))

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Forget cuts whose leases have expired. A process that ended has forgotten them already."""
        if cut_ids and self.pid is not None:
            with suppress(Gone):
                self._child.ask(Verb.FORGET, json.dumps(list(cut_ids)).encode())

    def keep_tables(self, uuids: Collection[str]) -> None:
        """Remove the cached values of other tables than these."""
        if self._room.cache_folder:
            DerivedCache(Path(self._room.cache_folder)).remove_groups(uuids)

    def close(self) -> None:
        """End the process for good. A request that is not answered soon is aborted."""
        self._child.close()

    def _arguments(self) -> Sequence[str]:
        self._runs.append(uuid.uuid4().hex[:16])
        return self._runs[-1], self._room.encode()
