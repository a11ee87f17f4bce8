"""The process of one large merge of runs, on the pipes of `host/child.py`: `merge_apart` is the server's end.

The process has a lower priority than the server. It does without Arrow, whose import would take 36 MB and half of the
start.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from lakestore.errors import Corrupt, Unavailable
from lakestore_server.host import allocator
from lakestore_server.host.child import Parent
from lakestore_server.host.disk import RealDisk
from lakestore_server.host.priority import NICE
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.index.entry import DamagedIndex, key_hash
from lakestore_server.index.merge_apart import MERGED, SLICE, Merge
from lakestore_server.index.run import Run
from lakestore_server.index.run_merge import merge, writer_of


def main() -> None:
    """Make the merge that the server asks for."""
    os.nice(max(NICE - os.nice(0), 0))  # a process started by a duty has this niceness already
    allocator.keep_memory()  # a third of the time would go into new pages for each slice
    parent = Parent()
    parent.reply(lambda _verb, question: _merged(parent, Merge.decode(question)))


def _merged(parent: Parent, wanted: Merge) -> bytes:
    """The answer to a merge. Each slice is a question; each 4 MB that are checked and 2 MB that are written are a sign
    of life."""

    def pause(entries: int) -> bool:
        return bool(list(parent.ask(0, SLICE.pack(entries))))

    try:
        with at_yield_points(parent.working):
            inputs = [Run(path, _mapped(path)) for path in wanted.inputs]
            with contextlib.closing(writer_of(RealDisk(), wanted.output, inputs, key_hash(wanted.seed))) as writer:
                is_whole = merge(writer, inputs, wanted.drops.__contains__, wanted.drops.__getitem__, pause)
    except DamagedIndex as error:
        raise Corrupt(error.message) from error
    except (OSError, Unavailable) as error:
        raise Unavailable(f"runs of the key index cannot be merged ({error}): free space on the disk") from error
    return MERGED if is_whole else b""


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


if __name__ == "__main__":
    main()
