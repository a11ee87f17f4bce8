"""The process of one large merge of runs: the merge from standard input, answers to standard output.

`merge_apart` says what they are. The process has a lower priority than the server, and ends with its pipe. It does
without Arrow, whose import would take 36 MB and half of the start.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import IO

from lakestore.errors import Unavailable
from lakestore_server.host import allocator
from lakestore_server.host.disk import RealDisk
from lakestore_server.host.priority import NICE
from lakestore_server.index.entry import DamagedIndex, key_hash
from lakestore_server.index.merge_apart import DAMAGED, FAILED, GO_ON, MERGED, Merge, answer
from lakestore_server.index.run import Run
from lakestore_server.index.run_merge import merge, writer_of


def main() -> None:
    """Make the merge that the pipe asks for."""
    os.nice(max(NICE - os.nice(0), 0))  # begun by a duty, it has that already
    allocator.keep_memory()  # a third of the time would go into pages that are new for each slice
    requests, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(1, "wb", buffering=0)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        answers.write(_merged(Merge.read(requests), requests, answers))


def _merged(wanted: Merge, requests: IO[bytes], answers: IO[bytes]) -> bytes:
    """The last answer; those between are written here."""

    def pause(entries: int) -> bool:
        answers.write(answer(entries))
        return requests.read(len(GO_ON)) == GO_ON

    try:
        inputs = [Run(path, _mapped(path)) for path in wanted.inputs]
        with contextlib.closing(writer_of(RealDisk(), wanted.output, inputs, key_hash(wanted.seed))) as writer:
            is_whole = merge(writer, inputs, wanted.drops.__contains__, wanted.drops.__getitem__, pause)
    except DamagedIndex as error:
        return answer(DAMAGED, error.message)
    except (OSError, Unavailable) as error:
        return answer(FAILED, str(error))
    return answer(MERGED) if is_whole else b""


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


if __name__ == "__main__":
    main()
