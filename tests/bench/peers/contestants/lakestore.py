"""Lakestore itself, as this checkout has it, with the settings that it is shipped with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import lakestore
from lakestore.release import RELEASE
from tests.bench.blobs import appended, batch_of
from tests.bench.peers.contest import Contestant, Failed
from tests.support.process import ServerProcess

FAIRNESS = "Every commit is synced to the disk before it is acknowledged."


class Lakestore:
    """A server and a connection to it."""

    def __init__(self, server: ServerProcess, lake: lakestore.Lake) -> None:
        self.server, self.lake = server, lake

    def log(self, name: str, batches: Sequence[Sequence[bytes]]) -> Callable[[int], float]:
        """Make a log of one column and return what appends so many of the batches, in seconds until all are durable."""
        table = self.lake.create_table(f"bench.{name}", pa.schema([("value", pa.binary())]), buckets=1)
        ready = [batch_of(rows) for rows in batches]
        total = 0

        def append(count: int) -> float:
            nonlocal total
            rows = count * len(batches[0])
            seconds = rows / appended(table, ready, count)
            total += rows
            if (stored := table.scan().count()) != total:
                raise Failed(f"{stored:,} rows of {total:,} are there")
            return seconds

        return append


@contextmanager
def _started(folder: Path) -> Iterator[Lakestore]:
    with ServerProcess(folder) as server, lakestore.connect(server.address) as lake:
        yield Lakestore(server, lake)


CONTESTANT = Contestant("Lakestore", RELEASE, _started, FAIRNESS)
