"""Large merges of runs in a process of their own, which the commit loop and its callers have precedence over.

A merge beside them in one process takes their interpreter lock and their processors: upserts into 50 M keys went from
0.87 to 1.03 M rows/s without it, measured. The server's end asks for some slices after the other, so that it sets
the pace and ends a merge early. Both ends have one format of a merge: the server's own, on the disk below.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import orjson

from lakestore.errors import Unavailable
from lakestore_server.host import allocator
from lakestore_server.host.disk import RealDisk
from lakestore_server.host.priority import NICE
from lakestore_server.index.entry import key_hash
from lakestore_server.index.pipe import DAMAGED_FILES, FAILED, Answer, Op, Request
from lakestore_server.index.run import Run
from lakestore_server.index.run_merge import merge, writer_of
from lakestore_server.index.worker_client import DamagedIndex, IndexWorker

APART_MIN = 1_000_000
"""Entries of a merge from which on it is worth a process."""
MERGED = -2
"""In place of the number of entries in a slice: the merge has come to its end."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs to write as one."""

    output: Path
    inputs: Sequence[Path]
    """Newest first."""
    drops: Mapping[bytes, bool]
    """Prefixes of tables that are served to whether entries that say ABSENT go."""
    seed: bytes
    """The seed of the index's hash."""

    def encode(self) -> bytes:
        """The merge as a request has it."""
        drops = {prefix.hex(): drops for prefix, drops in self.drops.items()}
        return orjson.dumps([str(self.output), list(map(str, self.inputs)), drops, self.seed.hex()])

    @staticmethod
    def decode(data: bytes) -> Merge:
        """From a request."""
        output, inputs, drops, seed = orjson.loads(data)
        named = {bytes.fromhex(prefix): each for prefix, each in drops.items()}
        return Merge(Path(output), [Path(path) for path in inputs], named, bytes.fromhex(seed))


def merge_apart(worker: IndexWorker, wanted: Merge, pause: Callable[[int], bool]) -> bool:
    """`run_merge.merge` by another process, whose output is durable but for its name."""
    entries, _ = worker.ask(Op.MERGE_RUNS, [wanted.encode()])
    while entries != MERGED:
        if not pause(entries):
            worker.ask(Op.STOP)
            return False
        entries, _ = worker.ask(Op.GO_ON)
    return True


def serve(request: Request, requests: IO[bytes], answers: IO[bytes]) -> Answer:
    """The last answer to a merge, from its first request on; those between are read and answered here."""
    if request.op != Op.MERGE_RUNS:
        return Answer(FAILED, b"no merge goes on")
    wanted = Merge.decode(request.keys.listed()[0])

    def pause(entries: int) -> bool:
        answers.write(Answer(entries, b"").encode())
        return Request.read(requests).op == Op.GO_ON

    os.nice(max(NICE - os.nice(0), 0))  # begun by a duty, it has that already
    allocator.keep_memory()  # a third of the time would go into pages that are new for each slice
    disk = RealDisk()
    try:
        inputs = [Run(path, disk.map(path)) for path in wanted.inputs]
        with contextlib.closing(writer_of(disk, wanted.output, inputs, key_hash(wanted.seed))) as writer:
            is_whole = merge(writer, inputs, wanted.drops.__contains__, wanted.drops.__getitem__, pause)
    except DamagedIndex as error:
        return Answer(DAMAGED_FILES, error.message.encode())
    except (OSError, Unavailable) as error:
        return Answer(FAILED, str(error).encode())
    return Answer(MERGED if is_whole else 0, b"")
