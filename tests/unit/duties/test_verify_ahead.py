"""A start compares what look-ups will want, for a bounded time; damage stays for whoever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore_server.duties.verify_ahead import verify_ahead
from lakestore_server.files.block_checks import BlockChecks
from lakestore_server.files.segment import Segment
from lakestore_server.index.run_blocks import Blocks
from tests.support.served import HandClock, Served

KEYS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A keyed table in segments and runs, and a log."""
    with Served(tmp_path / "data") as served:
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        keyed = served.lake.create_table("a.keyed", schema, primary_key=["id"], buckets=1)
        log = served.lake.create_table("a.log", schema, buckets=1)
        rows = pa.table({"id": range(KEYS), "text": [f"{n:030}" for n in range(KEYS)]})
        keyed.upsert(rows)
        log.append(pa.table({"id": range(KEYS), "text": [f"of a log: {n}" for n in range(KEYS)]}))
        served.checkpoint()
    return tmp_path / "data"


def test_look_ups_after_a_start_compare_nothing_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(folder) as served:
        for kind in (BlockChecks, Blocks):
            name = "is_whole" if kind is Blocks else "_is_whole"
            monkeypatch.setattr(kind, name, lambda *_: pytest.fail("a block is compared by a look-up"))
        found = served.lake.table("a.keyed").lookup(pa.table({"id": range(0, KEYS, 7)}))
        assert len(found) == len(range(0, KEYS, 7))


def test_logs_are_left_alone(folder: Path) -> None:
    with Served(folder) as served:
        (segment,) = [each for each in served.state("a.log").logs[0].chunks if isinstance(each, Segment)]
        assert not segment._body.is_needless


class Ending(HandClock):
    """A clock on which each look at it takes a tenth of a second."""

    def monotonic(self) -> float:
        """Later every time."""
        self.advance(0.1)
        return super().monotonic()


def test_it_ends_when_its_time_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.main.verify_ahead", lambda *_: None)
    with Served(folder) as served:
        compared: list[int] = []
        whole = BlockChecks._is_whole

        def counted(of: BlockChecks, block: int, *how: Any) -> bool:
            compared.append(block)
            return whole(of, block, *how)

        monkeypatch.setattr(BlockChecks, "_is_whole", counted)
        verify_ahead(served.engine.view, (), Ending(), seconds=0.5)
        assert 1 <= len(compared) <= 4
        (segment,) = [each for each in served.state("a.keyed").logs[0].chunks if isinstance(each, Segment)]
        assert not segment._body.is_needless


def test_a_damaged_block_stops_no_start_and_is_told_to_its_readers(folder: Path) -> None:
    text = b"0" * 29 + b"7"
    (path,) = [each for each in folder.rglob("*") if each.is_file() and text in each.read_bytes()]
    path.write_bytes(path.read_bytes().replace(text, b"9" + text[1:]))
    with Served(folder) as served, pytest.raises(Corrupt):
        served.lake.table("a.keyed").lookup([{"id": 7}])
