"""Retention of primary-key tables: the log start moves, what lives below it stays, and every reader is still exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import PositionExpired
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.disk import RealDisk
from tests.support.kept import DAY, Kept
from tests.support.log_start import move_log_start

NAME = "t.keyed"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    running = Kept(tmp_path)
    yield running
    running.close()


def create(kept: Kept, *, retention: Any = "1d", buckets: int = 1) -> None:
    kept.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=buckets, retention=retention)


def upsert(kept: Kept, rows: dict[int, int]) -> str:
    """One commit, a second after the last; its token."""
    kept.clock.advance(1)
    return kept.lake.table(NAME).upsert([{"k": k, "v": v} for k, v in rows.items()])


def delete(kept: Kept, *keys: int) -> str:
    kept.clock.advance(1)
    return kept.lake.table(NAME).delete([{"k": k} for k in keys])


def rows(kept: Kept, at: str | None = None) -> dict[int, int]:
    return {row["k"]: row["v"] for row in kept.lake.table(NAME).scan(at=at).to_arrow().to_pylist()}


def changes(kept: Kept, start: str = "earliest") -> list[tuple[str, int, int]]:
    stream = kept.lake.table(NAME).changes(start, until="now", before_images=True)
    return [(r["__change"], r["k"], r["v"]) for batch in stream for r in batch.to_arrow().to_pylist()]


def check(kept: Kept, expected: dict[int, int]) -> None:
    """Scan, look-up, snapshot stream and audit agree."""
    table = kept.lake.table(NAME)
    assert rows(kept) == expected
    found = table.lookup([{"k": k} for k in sorted(expected)]) if expected else pa.table({"k": []})
    assert [row["v"] for row in found.to_pylist()] == [expected[k] for k in sorted(expected)]
    assert {k: v for _, k, v in changes(kept, "snapshot")} == expected
    assert verify(kept.lake.transport, NAME).problems() == []


def old_and_new(kept: Kept) -> tuple[str, str]:
    """Rows that are two days old, some of them superseded then and some now; the tokens of the first and last old."""
    first = upsert(kept, {1: 10, 2: 20, 3: 30, 4: 40})
    upsert(kept, {1: 11})
    last = delete(kept, 4)
    kept.server.upkeep.checkpoint()
    kept.clock.advance(2 * DAY)
    upsert(kept, {2: 21})
    delete(kept, 3)
    return first, last


def test_the_log_start_moves_and_live_rows_stay(kept: Kept) -> None:
    create(kept)
    first, last = old_and_new(kept)
    kept.tier(NAME)
    kept.run()
    state = kept.state(NAME)
    assert state.starts() == (6,)
    assert changes(kept) == [("-U", 2, 20), ("+U", 2, 21), ("-D", 3, 30)]
    assert changes(kept, last) == changes(kept)
    for start in (first, "2026-01-01T00:00:00Z"):
        with pytest.raises(PositionExpired):
            changes(kept, start)
    with pytest.raises(PositionExpired):
        rows(kept, first)


@pytest.mark.parametrize("again", ["go on", "restart", "kill", "index lost"])
def test_a_moved_log_start_changes_no_read(kept: Kept, tmp_path: Path, again: str) -> None:
    create(kept, retention=None, buckets=2)
    _, last = old_and_new(kept)
    before = rows(kept, last)
    move_log_start(kept.server.engine, NAME, kept.state(NAME).log_start_lsn + 4)
    if again == "restart":
        kept.restart()
    elif again == "kill":
        kept.kill()
        kept.open(tmp_path, RealDisk())
    elif again == "index lost":
        kept.server.engine.index.found_problem("a test says so", damaged=False)
        _await_index(kept)
    check(kept, {1: 11, 2: 21})
    assert rows(kept, last) == before == {1: 11, 2: 20, 3: 30}
    upsert(kept, {1: 12, 3: 31})
    check(kept, {1: 12, 2: 21, 3: 31})


def _await_index(kept: Kept) -> None:
    while not kept.server.engine.index.ready:
        kept.server.engine.wait_beyond(1 << 60, 0.01)


def test_nothing_is_held_by_what_lies_below_the_log_start(kept: Kept) -> None:
    """`bytes` counts the log, not the base; a second round moves nothing."""
    create(kept, retention={"bytes": "1B"})
    old_and_new(kept)
    kept.server.upkeep.checkpoint()
    kept.tier(NAME)
    kept.run()
    state = kept.state(NAME)
    assert state.starts() == (8,)
    kept.run()
    decision = kept.server.retention.decision(state.table.uuid)
    assert decision is not None
    assert (decision.lsn, decision.held_bytes) == (state.log_start_lsn, 0)


def test_a_tierer_that_is_down_for_longer_than_the_retention_loses_nothing(kept: Kept) -> None:
    create(kept)
    old_and_new(kept)
    for _ in range(3):
        kept.clock.advance(DAY)
        kept.run()
    assert kept.state(NAME).starts() == (0,)
    assert len(changes(kept)) == 10
    kept.tier(NAME)
    kept.run()
    assert kept.state(NAME).starts() == (8,)
    assert changes(kept) == []


def test_a_read_without_a_snapshot_holds_the_log_start_at_its_cut(kept: Kept) -> None:
    create(kept, retention=None)
    _, last = old_and_new(kept)
    uuid = kept.state(NAME).table.uuid
    leases = kept.server.retention._leases
    lease = kept.lake.transport.plan(pb.PlanRequest(tables=[NAME], at=last, lease_seconds=60)).lease
    assert leases.starts(uuid) == [(6,)]
    assert leases.raise_log_start(uuid, (6,))
    assert not leases.raise_log_start(uuid, (7,))
    kept.lake.transport.release_lease(pb.LeaseRequest(lease=lease))
    assert leases.raise_log_start(uuid, (7,))


def test_a_bucket_that_was_quiet_has_its_position_at_the_log_start(kept: Kept) -> None:
    """Its last commit lies far below: positions behind the log start are its base, however they are asked for."""
    create(kept, retention=None, buckets=2)
    upsert(kept, dict.fromkeys(range(20), 0))
    busy = next(row["k"] for row in _stream(kept) if row["__bucket"] == 1)
    move_log_start(kept.server.engine, NAME)
    upsert(kept, {busy: 2})
    log = kept.state(NAME).logs[0]
    assert log.head == log.base.end
    assert log.at_lsn(kept.server.engine.view.lsn) == log.base
    assert log.lsn_beyond(0) is None
    check(kept, dict.fromkeys(range(20), 0) | {busy: 2})


def _stream(kept: Kept) -> list[dict[str, Any]]:
    return [row for batch in kept.lake.table(NAME).changes(until="now") for row in batch.to_arrow().to_pylist()]
