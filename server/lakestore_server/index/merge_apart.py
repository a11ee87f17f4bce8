"""Large merges of runs in a process of their own, which the commit loop and its callers have precedence over.

A merge beside them in one process takes their interpreter lock and their processors: upserts into 50 M keys went from
0.87 to 1.03 M rows/s without it, measured. The process begins with a merge and ends with it. After each slice it asks
whether to go on, so the server sets the pace.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from lakestore.errors import Corrupt, Internal, Unavailable
from lakestore_server.host.child import Child, Gone
from lakestore_server.index.entry import DamagedIndex

APART_MIN = 1_000_000
"""A merge with at least this many entries runs in a process."""
SILENCE_SECONDS = 60.0
"""The process sends a frame after each slice, which takes 15 ms, and else a sign of life a second: it hangs if none
comes. A disk of 1 MB/s writes or reads what lies between two signs in 4 s."""
SLICE = struct.Struct("<q")
"""The process's question: the entries of a slice. One part in answer, of any bytes, is to go on; none is to end."""
MERGED = b"merged"
"""The process's answer if the merge came to its end."""
_WORKER = "lakestore_server.index.worker"


class MergeLost(Unavailable):
    """The process of a merge failed, ended or was silent. This says nothing about the runs: only a checksum does."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs to write as one."""

    output: Path
    inputs: Sequence[Path]
    """Newest first."""
    drops: Mapping[bytes, bool]
    """Prefix of each served table to whether its entries with ABSENT can be dropped."""
    seed: bytes
    """The seed of the index's hash."""

    def encode(self) -> bytes:
        """The server's question."""
        drops = {prefix.hex(): drops for prefix, drops in self.drops.items()}
        return orjson.dumps([str(self.output), list(map(str, self.inputs)), drops, self.seed.hex()])

    @staticmethod
    def decode(data: bytes) -> Merge:
        """The merge that `encode` wrote."""
        output, inputs, drops, seed = orjson.loads(data)
        named = {bytes.fromhex(prefix): each for prefix, each in drops.items()}
        return Merge(Path(output), [Path(path) for path in inputs], named, bytes.fromhex(seed))


def merge_apart(wanted: Merge, pause: Callable[[int], bool]) -> bool:
    """`run_merge.merge` by another process, whose output is durable but for its name; whether it came to its end.

    Raises `MergeLost` if the process has a defect, is ended or is silent, `DamagedIndex` if a checksum or the format of
    a run is wrong, and `Unavailable` if the disk takes no bytes.
    """

    def serve(_verb: int, question: bytes) -> Sequence[bytes]:
        (entries,) = SLICE.unpack(question)
        return [b""] if pause(entries) else []

    process = Child("a merge of index runs", _WORKER, silence_seconds=SILENCE_SECONDS)
    try:
        return process.ask(0, wanted.encode(), serve) == MERGED
    except Corrupt as error:
        raise DamagedIndex(error.message) from error
    except (Gone, Internal) as error:
        raise MergeLost(error.message) from error
    finally:
        process.close()
