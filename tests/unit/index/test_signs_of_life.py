"""The process of a merge says that it works: no long part of a merge is silent, so silence means that it hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lakestore_server.host import even_writes
from lakestore_server.host.child import Parent
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import run_blocks, worker
from lakestore_server.index.entry import key_hash, table_prefix
from lakestore_server.index.keys import ByteKeys, NumberKeys
from lakestore_server.index.merge_apart import MERGED, Merge
from lakestore_server.index.run_store import write
from lakestore_server.index.run_writer import RunWriter

HASH = key_hash(bytes(32))
ENTRIES = 1_000_000
BYTES_MAX = 9 << 20
"""What a slice of 262,144 entries takes, and a piece of 2 MB. The numbers' run has 17 MB, its samples and filter 2."""


class Work:
    """The server's end: notes how many bytes were written and checked between two frames."""

    def __init__(self, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._output, self._before, self._checked = output, 0, 0
        self.most = self.questions = self.opening = self.closing = 0
        is_whole = run_blocks.Blocks.is_whole

        def check(blocks: run_blocks.Blocks, block: int, *crc_of: Any) -> bool:
            self._checked += run_blocks.BLOCK_BYTES
            return is_whole(blocks, block, *crc_of)

        monkeypatch.setattr(run_blocks.Blocks, "is_whole", check)

    def _note(self) -> None:
        size = self._output.stat().st_size if self._output.exists() else 0
        self.most = max(self.most, size - self._before, self._checked)
        self._before, self._checked = size, 0

    def working(self) -> None:
        self.opening += not self._output.exists()
        self.closing += 1
        self._note()

    def ask(self, _verb: int, _question: bytes) -> Iterator[bytes]:
        self.questions += 1
        self.closing = 0
        self._note()
        yield b""


@pytest.mark.parametrize("kind", ["numbers", "bytes"])
def test_no_part_of_a_merge_is_silent(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading samples and filters, slices, hashes, and the samples and the filter of the output at the end."""
    paths = []
    for at in range(2):
        numbers = np.arange(at, 2 * ENTRIES, 2, dtype=np.uint64)
        keys: Any = NumberKeys(table_prefix(1), 8, numbers)
        if kind == "bytes":
            keys = ByteKeys([table_prefix(1) + b"%d" % number for number in numbers[: ENTRIES // 4]])
        paths.append(tmp_path / f"{at}.run")
        writer = RunWriter(RealDisk(), paths[-1], HASH, at)
        write(writer, keys, np.arange(len(keys)))
        writer.finish()
    monkeypatch.setattr(run_blocks, "AHEAD", 4)
    monkeypatch.setattr(even_writes, "PIECE_BYTES", 256 << 10)
    work = Work(tmp_path / "2.run", monkeypatch)
    wanted = Merge(tmp_path / "2.run", paths, {table_prefix(1): True}, HASH.seed)
    assert worker._merged(cast("Parent", work), wanted) == MERGED
    assert work.questions > 1
    assert work.opening >= (8 if kind == "numbers" else 2), "samples and filters are read in pieces"
    assert work.closing >= 2, "samples and filter are written in pieces behind the last slice"
    assert work.most <= BYTES_MAX
