"""Files that look-ups will want, asked of the disk when a server starts: a machine that has begun holds none of them.

Without that, each key costs the disk two reads of its own: 600 look-ups a second of 10 M keys in the first seconds. The
runs of the index come first, then segments of primary-key tables, the newest first, up to a part of the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa

from lakestore_server.files.segment import Segment
from lakestore_server.host import priority
from lakestore_server.host.mapping import will_need
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.index.run import Run
from lakestore_server.state.view import View

MEMORY_PART = 4
"""The part of the machine's memory that is filled so, at most: the memory divided by this."""
PIECE_BYTES = 8 << 20


class ReadAhead:
    """A thread that asks for these files, and ends."""

    def __init__(self, supervisor: Supervisor, view: View, runs: Iterable[Run], memory: int) -> None:
        """`memory` is the machine's."""
        self._pieces = _pieces(view, tuple(runs), memory // MEMORY_PART)
        self._is_closed = threading.Event()
        self._thread = supervisor.once("read-ahead", self._run)

    def close(self) -> None:
        """End with the piece that is asked for."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        priority.give_way()
        for piece in self._pieces:
            if self._is_closed.is_set():
                return
            will_need(piece)


def _pieces(view: View, runs: Iterable[Run], room: int) -> Iterator[pa.Buffer]:
    for data in _wanted(view, runs):
        end = min(data.size, room)
        for at in range(0, end, PIECE_BYTES):
            yield data.slice(at, min(PIECE_BYTES, end - at))
        room -= end
        if room <= 0:
            return


def _wanted(view: View, runs: Iterable[Run]) -> Iterator[pa.Buffer]:
    """The bytes that look-ups read, the most wanted first."""
    yield from (run.data for run in runs)
    chunks = (chunk for state in view.tables.values() for log in state.logs if log.keyed for chunk in log.chunks)
    segments = [chunk for chunk in chunks if isinstance(chunk, Segment)]
    yield from (segment.body for segment in sorted(segments, key=lambda each: each.end, reverse=True))
