"""Retention of primary-key tables: the log start moves, what lives below it stays, and every reader is still exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import PositionExpired
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.disk import RealDisk
from tests.support.log_start import move_log_start
from tests.support.served import DAY, Served

NAME = "t.keyed"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def create(served: Served, *, retention: Any = "1d", buckets: int = 1) -> None:
    served.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=buckets, retention=retention)


def upsert(served: Served, rows: dict[int, int]) -> str:
    """One commit, a second after the last; its token."""
    served.clock.advance(1)
    return served.lake.table(NAME).upsert([{"k": k, "v": v} for k, v in rows.items()])


def delete(served: Served, *keys: int) -> str:
    served.clock.advance(1)
    return served.lake.table(NAME).delete([{"k": k} for k in keys])


def rows(served: Served, at: str | None = None) -> dict[int, int]:
    return {row["k"]: row["v"] for row in served.lake.table(NAME).scan(at=at).to_arrow().to_pylist()}


def changes(served: Served, start: str = "earliest") -> list[tuple[str, int, int]]:
    stream = served.lake.table(NAME).changes(start, until="now", before_images=True)
    return [(r["__change"], r["k"], r["v"]) for batch in stream for r in batch.to_arrow().to_pylist()]


def check(served: Served, expected: dict[int, int]) -> None:
    """Scan, look-up, snapshot stream and audit agree."""
    table = served.lake.table(NAME)
    assert rows(served) == expected
    found = table.lookup([{"k": k} for k in sorted(expected)]) if expected else pa.table({"k": []})
    assert [row["v"] for row in found.to_pylist()] == [expected[k] for k in sorted(expected)]
    assert {k: v for _, k, v in changes(served, "snapshot")} == expected
    assert verify(served.lake.transport, NAME).problems() == []


def old_and_new(served: Served) -> tuple[str, str]:
    """Rows that are two days old, some of them superseded then and some now; the tokens of the first and last old."""
    first = upsert(served, {1: 10, 2: 20, 3: 30, 4: 40})
    upsert(served, {1: 11})
    last = delete(served, 4)
    served.checkpoint()
    served.clock.advance(2 * DAY)
    upsert(served, {2: 21})
    delete(served, 3)
    return first, last


def test_the_log_start_moves_and_live_rows_stay(served: Served) -> None:
    create(served)
    first, last = old_and_new(served)
    served.tier(NAME)
    served.run()
    state = served.state(NAME)
    assert state.starts() == (6,)
    assert changes(served) == [("-U", 2, 20), ("+U", 2, 21), ("-D", 3, 30)]
    assert changes(served, last) == changes(served)
    for start in (first, "2026-01-01T00:00:00Z"):
        with pytest.raises(PositionExpired):
            changes(served, start)
    with pytest.raises(PositionExpired):
        rows(served, first)


@pytest.mark.parametrize("again", ["go on", "restart", "kill", "index lost"])
def test_a_moved_log_start_changes_no_read(served: Served, tmp_path: Path, again: str) -> None:
    create(served, retention=None, buckets=2)
    _, last = old_and_new(served)
    before = rows(served, last)
    move_log_start(served.engine, NAME, served.state(NAME).log_start_lsn + 4)
    if again == "restart":
        served.restart()
    elif again == "kill":
        served.kill()
        served.open(tmp_path, RealDisk())
    elif again == "index lost":
        served.engine.index.found_problem("a test says so", damaged=False)
        _await_index(served)
    check(served, {1: 11, 2: 21})
    assert rows(served, last) == before == {1: 11, 2: 20, 3: 30}
    upsert(served, {1: 12, 3: 31})
    check(served, {1: 12, 2: 21, 3: 31})


def _await_index(served: Served) -> None:
    while not served.engine.index.ready:
        served.engine.wait_beyond(1 << 60, 0.01)


def test_nothing_is_held_by_what_lies_below_the_log_start(served: Served) -> None:
    """`bytes` counts the log, not the base; a second round moves nothing."""
    create(served, retention={"bytes": "1B"})
    old_and_new(served)
    served.checkpoint()
    served.tier(NAME)
    served.run()
    state = served.state(NAME)
    assert state.starts() == (8,)
    served.run()
    decision = served.server.retention.decision(state.table.uuid)
    assert decision is not None
    assert (decision.lsn, decision.held_bytes) == (state.log_start_lsn, 0)


def test_a_tierer_that_is_down_for_longer_than_the_retention_loses_nothing(served: Served) -> None:
    create(served)
    old_and_new(served)
    for _ in range(3):
        served.clock.advance(DAY)
        served.run()
    assert served.state(NAME).starts() == (0,)
    assert len(changes(served)) == 10
    served.tier(NAME)
    served.run()
    assert served.state(NAME).starts() == (8,)
    assert changes(served) == []


def test_a_read_without_a_snapshot_holds_the_log_start_at_its_cut(served: Served) -> None:
    create(served, retention=None)
    _, last = old_and_new(served)
    uuid = served.state(NAME).table.uuid
    leases = served.server.sources.leases
    lease = served.lake.transport.plan(pb.PlanRequest(tables=[NAME], at=last, lease_seconds=60)).lease
    assert leases.starts(uuid) == [(6,)]
    assert leases.raise_log_start(uuid, (6,))
    assert not leases.raise_log_start(uuid, (7,))
    served.lake.transport.release_lease(pb.LeaseRequest(lease=lease))
    assert leases.raise_log_start(uuid, (7,))


def test_a_bucket_that_was_quiet_has_its_position_at_the_log_start(served: Served) -> None:
    """Its last commit lies far below: positions behind the log start are its base, however they are asked for."""
    create(served, retention=None, buckets=2)
    upsert(served, dict.fromkeys(range(20), 0))
    busy = next(row["k"] for row in _stream(served) if row["__bucket"] == 1)
    move_log_start(served.engine, NAME)
    upsert(served, {busy: 2})
    log = served.state(NAME).logs[0]
    assert log.head == log.base.end
    assert log.at_lsn(served.engine.view.lsn) == log.base
    assert log.lsn_beyond(0) is None
    check(served, dict.fromkeys(range(20), 0) | {busy: 2})


def _stream(served: Served) -> list[dict[str, Any]]:
    return [row for batch in served.lake.table(NAME).changes(until="now") for row in batch.to_arrow().to_pylist()]
