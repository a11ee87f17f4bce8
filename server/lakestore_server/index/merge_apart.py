"""Large merges of runs in a process of their own, which the commit loop and its callers have precedence over.

A merge beside them in one process takes their interpreter lock and their processors: upserts into 50 M keys went from
0.87 to 1.03 M rows/s without it, measured. The process begins with a merge and ends with it. It answers after each
slice and waits for `GO_ON`, so the server sets the pace; a closed pipe ends a merge early.

Request: bytes u32, then the merge as JSON. Answer: entries i64 · bytes u32, then the text of an error.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from lakestore.errors import Unavailable
from lakestore_server.host import own_process
from lakestore_server.host.bounded_pipe import BoundedPipe, Readable, Silent, ended, exactly
from lakestore_server.index.entry import DamagedIndex

APART_MIN = 1_000_000
"""Entries of a merge from which on it is worth a process."""
SILENCE_SECONDS, END_SECONDS = 60.0, 5.0
"""A process without an answer for so long is stopped or stuck, and is killed; a slice takes 15 ms."""
GO_ON = b"\1"
MERGED, FAILED, DAMAGED = -2, -9, -10
"""In place of the entries of a slice: the merge is whole; it failed and may succeed later; a run is damaged."""
_WORKER = "lakestore_server.index.worker"
_OWN_SIGNALS = {-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}
"""Ends of a process by a map that is cut short, or by a page that is garbage."""
_REQUEST, _ANSWER = struct.Struct("<I"), struct.Struct("<qI")


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
        """The bytes of a request."""
        drops = {prefix.hex(): drops for prefix, drops in self.drops.items()}
        data = orjson.dumps([str(self.output), list(map(str, self.inputs)), drops, self.seed.hex()])
        return _REQUEST.pack(len(data)) + data

    @staticmethod
    def read(pipe: Readable) -> Merge:
        """The merge of a request; EOFError at the pipe's end."""
        (size,) = _REQUEST.unpack(exactly(pipe, _REQUEST.size))
        output, inputs, drops, seed = orjson.loads(exactly(pipe, size))
        named = {bytes.fromhex(prefix): each for prefix, each in drops.items()}
        return Merge(Path(output), [Path(path) for path in inputs], named, bytes.fromhex(seed))


def answer(entries: int, text: str = "") -> bytes:
    """The bytes of an answer."""
    said = text.encode()
    return _ANSWER.pack(entries, len(said)) + said


def merge_apart(wanted: Merge, pause: Callable[[int], bool]) -> bool:
    """`run_merge.merge` by another process, whose output is durable but for its name; whether it came to its end.

    `Unavailable` if the process fails or is ended, `DamagedIndex` if a run is damaged.
    """
    process = MergeProcess()
    try:
        entries = process.ask(wanted.encode())
        while entries != MERGED:
            if not pause(entries):
                return False
            entries = process.ask(GO_ON)
        return True
    finally:
        process.close()


class MergeProcess:
    """The server's end of the pipe to the process of one merge."""

    def __init__(self) -> None:
        self._process = own_process.begun(_WORKER)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self._pipe = BoundedPipe(stdin, stdout, SILENCE_SECONDS)

    def ask(self, message: bytes) -> int:
        """The entries of the next slice, or MERGED."""
        try:
            self._pipe.write(message)
            entries, size = _ANSWER.unpack(exactly(self._pipe, _ANSWER.size))
            text = exactly(self._pipe, size).decode()
        except (EOFError, OSError) as error:
            raise self._lost(is_silent=isinstance(error, Silent)) from error
        if entries == DAMAGED:
            raise DamagedIndex(text)
        if entries == FAILED:
            raise Unavailable(f"runs of the key index cannot be merged ({text}): free space on the disk")
        return int(entries)

    def _lost(self, *, is_silent: bool) -> Unavailable:
        """The error of a merge whose process is gone."""
        if is_silent:
            self._process.kill()
        code = ended(self._process, END_SECONDS)
        if is_silent:
            return Unavailable(f"the process that merges the key index gave no answer for {SILENCE_SECONDS:g} s")
        if code in _OWN_SIGNALS:
            return DamagedIndex(f"the process that merges it ended by {signal.Signals(-code).name}")
        return Unavailable("the process that merges the key index was ended")

    def close(self) -> None:
        """End the process with its pipe, or kill it if that takes long."""
        ended(self._process, END_SECONDS)
