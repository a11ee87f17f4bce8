"""Retention: what may leave a log and what holds it, and that everybody reads on exactly."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakestore.errors import Exhausted, Invalid, PositionExpired
from lakestore.model import table as schema
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.retention import Retention, parse_retention
from lakestore.union.cut import Cut
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.catalog_change import CatalogChange, SetPointer
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served

NAME = "t.log"


def create(served: Served, retention: object = "1d", buckets: int = 1) -> None:
    served.lake.create_table(NAME, SCHEMA, buckets=buckets, retention=retention)  # type: ignore[arg-type]


def old_and_new(served: Served) -> tuple[str, str]:
    """Two commits that are two days old, in a segment, and two of now; the tokens of the first and the third."""
    first = served.append(NAME, 0, 1)
    served.append(NAME, 2)
    served.checkpoint()
    served.clock.advance(2 * DAY)
    served.run()
    third = served.append(NAME, 3)
    served.append(NAME, 4)
    return first, third


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("7d", Retention(7 * DAY)),
        ({"age": "30m", "bytes": "10GB"}, Retention(1_800, 10**10)),
        ({"bytes": 5}, Retention(None, 5)),
        (60, Retention(60)),
        (None, None),
    ],
)
def test_a_retention_is_read_and_stored(given: object, expected: Retention | None) -> None:
    assert parse_retention(given) == expected
    table = schema.define("a.b", SCHEMA, retention=given)
    assert schema.Table.from_json(table.to_json()) == table
    assert table.retention == expected


@pytest.mark.parametrize("given", ["7", "d", {"age": "1d", "size": 3}, {}, 0, {"bytes": True}, -1, 1.5])
def test_a_retention_that_says_nothing_is_refused(given: object) -> None:
    with pytest.raises(Invalid, match="retention"):
        schema.define("a.b", SCHEMA, retention=given)


def test_tiering_disabled_longer_than_retention(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that is not in the lake ever goes, and the log and the status say who holds it."""
    create(served)
    old_and_new(served)
    with caplog.at_level(logging.WARNING, "lakestore.retention"):
        for _ in range(3):
            served.clock.advance(DAY / 3)
            served.run()
    assert served.values(NAME) == [0, 1, 2, 3, 4]
    decision = served.server.retention.decision(served.state(NAME).table.uuid)
    assert decision is not None
    assert decision.holders() == ["lake"]
    assert decision.held_bytes > 0
    assert caplog.text.count("held back by what is not in the lake yet") == 1


def test_old_rows_in_the_lake_leave_the_log_and_their_files_at_the_next_checkpoint(
    served: Served, tmp_path: Path
) -> None:
    create(served)
    first, third = old_and_new(served)
    served.tier(NAME)
    files = list((tmp_path / "segments").glob("*/*"))
    assert files
    served.run()
    assert served.state(NAME).starts() == (3,)
    assert served.values(NAME) == [3, 4]
    assert served.values(NAME, third) == [4]
    with pytest.raises(PositionExpired, match="LSN 3 "):
        served.values(NAME, first)
    served.checkpoint()
    assert not any(file.exists() for file in files)


def test_the_log_start_survives_restarts_with_and_without_a_checkpoint(served: Served) -> None:
    create(served, buckets=3)
    old_and_new(served)
    served.tier(NAME)
    served.run()
    state = served.state(NAME)
    for _ in range(2):
        served.restart()
        again = served.state(NAME)
        assert [log.base for log in again.logs] == [log.base for log in state.logs]
        assert again.heads() == state.heads()
        assert [log.at_head.live_sum for log in again.logs] == [log.at_head.live_sum for log in state.logs]
        assert served.values(NAME) == [3, 4]
    served.append(NAME, 5)
    assert served.values(NAME) == [3, 4, 5]


def test_the_log_start_survives_a_kill(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of the journal alone: no checkpoint has it yet."""
    create(served)
    old_and_new(served)
    served.tier(NAME)
    monkeypatch.setattr(served.server.retention, "_wake_checkpoint", lambda: None)
    served.run()
    served.kill()
    served.open(tmp_path, RealDisk())
    assert served.state(NAME).starts() == (3,)
    assert served.values(NAME) == [3, 4]


def test_bytes_beyond_the_retention_go_oldest_first(served: Served) -> None:
    create(served, {"bytes": "1KB"})
    for i in range(6):
        served.append(NAME, *range(i * 100, i * 100 + 100))
        served.tier(NAME)
    served.run()
    assert served.values(NAME) == list(range(500, 600))


def test_idle_bucket_neither_stalls_nor_overstates(served: Served) -> None:
    """A bucket without new commits does not hold the others back, and its log start is not beyond its head."""
    served.lake.create_table(
        NAME, pa.schema([("k", pa.string()), ("v", pa.int64())]), buckets=2, bucket_key=["k"], retention="1d"
    )
    table = served.lake.table(NAME)
    table.append([{"k": name, "v": 0} for name in "abcdefgh"])
    idle = 0 if served.state(NAME).heads()[0] else 1
    busy = next(n for n in "abcdefgh" if _bucket(served, n) != idle)
    for _ in range(4):
        served.clock.advance(DAY)
        table.append([{"k": busy, "v": 1}])
        served.checkpoint()
        served.tier(NAME)
        served.run()
    state = served.state(NAME)
    assert all(start <= head for start, head in zip(state.starts(), state.heads(), strict=True))
    assert sum(state.heads()) - sum(state.starts()) < 4
    assert served.server.catalog.ledger.live_sums_at(state.table.uuid, tuple(state.heads())) is not None


def _bucket(served: Served, name: str) -> int:
    stream = served.lake.table(NAME).changes(until="now")
    rows = [row for batch in stream for row in batch.to_pylist() if row["k"] == name]
    return int(rows[0]["__bucket"])


def test_a_slow_table_is_cut_into_segments_that_can_go(served: Served) -> None:
    """Small segments are merged, but not to one that always holds something new: a day keeps about a day."""
    create(served)
    for i in range(60):
        served.append(NAME, i)
        served.clock.advance(DAY / 24)
        served.checkpoint()
        served.tier(NAME)
        served.run()
    assert 23 <= len(served.values(NAME)) <= 27


def test_a_lease_holds_the_log_that_its_read_needs(served: Served) -> None:
    create(served)
    old_and_new(served)
    with Cut(served.lake.transport, [NAME], lease_seconds=600) as cut:
        served.tier(NAME)
        served.run()
        assert served.state(NAME).starts() == (0,)
        decision = served.server.retention.decision(served.state(NAME).table.uuid)
        assert decision is not None
        assert decision.holders() == ["lease"]
        cut.keep()
    served.run()
    assert served.state(NAME).starts() == (3,)


def test_a_read_and_a_moving_log_start_cannot_miss_each_other(served: Served) -> None:
    """Between the decision and its frame no read gets a lease on what goes; it plans anew, above the new start."""
    create(served)
    old_and_new(served)
    served.tier(NAME)
    leases = served.server.sources.leases
    uuid = served.state(NAME).table.uuid
    assert leases.raise_log_start(uuid, (3,))
    with pytest.raises(Exception, match="log start moves"):
        leases.grant({}, 10, {uuid: (2,)})
    held = leases.grant({}, 10, {uuid: (3,)})
    assert not leases.raise_log_start(uuid, (4,))
    leases.release(held)


def test_grace_after_a_start_holds_everything(tmp_path: Path) -> None:
    served = Served(tmp_path, lease_grace_seconds=600.0)
    create(served)
    served.append(NAME, 1)
    served.tier(NAME)
    served.clock.advance(2 * DAY)
    served.restart()
    served.run()
    assert served.state(NAME).starts() == (0,)
    served.clock.advance(601)
    served.run()
    assert served.state(NAME).starts() == (1,)
    served.close()


def test_a_clock_in_doubt_holds_what_its_age_would_let_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Served(tmp_path / "data", believes_clock=False) as served:
        create(served)
        served.append(NAME, 1)
        served.tier(NAME)
        served.clock.jump(2 * DAY)
        served.run()
        assert "the clock is 172800 s ahead" in caplog.text
        assert served.values(NAME) == [1]
        served.restart()
        served.run()
        assert "retention of table" in caplog.text
        assert "is held back by a clock in doubt" in caplog.text
        assert served.values(NAME) == [1]
        served.clock.advance(300)
        served.run()
        assert served.values(NAME) == []


def test_a_table_without_retention_keeps_everything(served: Served) -> None:
    create(served, None)
    old_and_new(served)
    served.tier(NAME)
    served.run()
    assert served.values(NAME) == [0, 1, 2, 3, 4]


def test_a_refused_frame_moves_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the view stays, and reads of the old part go on."""
    create(served)
    first, _ = old_and_new(served)
    served.tier(NAME)

    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(served.journal_file, "write", full)
        with pytest.raises(Exception, match="free space"):
            served.run()
    assert served.values(NAME, first) == [2, 3, 4]
    with Cut(served.lake.transport, [NAME], lease_seconds=5, at=first):
        pass
    served.run()
    assert served.state(NAME).starts() == (3,)


def test_an_expiry_that_is_refused_leaves_its_snapshots_readable(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(served)
    first = served.append(NAME, 1)
    snapshot = served.tier(NAME)
    state, view = served.state(NAME), served.engine.view
    pointer = view.pointers[state.table.namespace, state.table.short_name]
    expiry = SetPointer(state.table.namespace, state.table.short_name, pointer.location, pointer, (), (snapshot,))

    def full(*_: object) -> int:
        raise OSError(28, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(served.journal_file, "write", full)
        with pytest.raises(Exhausted, match="free space"):
            served.server.catalog.ledger.commit(CatalogChange((expiry,)))
    asked = pb.PlanRequest(tables=[NAME], at=first)
    assert served.lake.transport.plan(asked).tables[0].snapshot_id == snapshot
    served.server.catalog.ledger.commit(CatalogChange((expiry,)))
    assert served.lake.transport.plan(asked).tables[0].snapshot_id == 0


def test_union_reads_stay_exact_over_lake_and_log(tmp_path: Path) -> None:
    """A real lake, written by PyIceberg: every cut from the log start on, also those older than the newest snapshot."""
    served = Served(tmp_path, ports=True)
    create(served, {"bytes": 1}, buckets=2)
    table = served.lake.table(NAME)
    tierer = LogTierer(served.server, served.lake.transport)
    tokens = [served.append(NAME, i) for i in range(4)]
    tierer.flush(NAME)
    tokens += [served.append(NAME, i) for i in range(4, 8)]
    stream = table.changes(tokens[5], subscription="holder", until="now")
    next(stream)
    stream.close()
    tierer.flush(NAME)
    tokens.append(served.append(NAME, 8))
    served.run()
    assert sum(served.state(NAME).starts()) == 6, "the log starts where the subscription stands"
    assert table.scan().count() == 9
    for newest, token in enumerate(tokens):
        if newest < 5:
            with pytest.raises(PositionExpired, match="its log starts there"):
                table.scan(at=token).to_arrow()
            continue
        assert sorted(table.scan(at=token).to_arrow()["v"].to_pylist()) == list(range(newest + 1))
        assert table.scan(at=token, where="v >= 3").count() == newest - 2
        assert table.scan(at=token).count() == newest + 1
        assert served.lake.at(token).sql(f"SELECT max(v) AS m FROM {NAME}").to_pylist() == [{"m": newest}]
        assert served.values(NAME, token) == list(range(newest + 1, 9))
    assert sorted(served.values(NAME, "snapshot")) == list(range(9))
    for batch in table.changes("snapshot", until="now", columns=["__offset"]):
        assert set(batch.table.schema.names) <= set(SYSTEM_TYPES), "from the lake as from the log"
    found = verify(served.lake.transport, NAME)
    assert found.same, found.problems()
    served.close()


def test_verify_begins_anew_when_the_log_start_passes_its_cut(tmp_path: Path) -> None:
    served = Served(tmp_path, ports=True)
    create(served, {"bytes": 1})
    tierer, transport = LogTierer(served.server, served.lake.transport), served.lake.transport
    audit, asked = transport.audit, []

    def overtaken(request: pb.AuditRequest) -> pb.AuditAnswer:
        asked.append(audit(request))
        if len(asked) == 1:
            served.append(NAME, 2)
            tierer.flush(NAME)
            served.run()
        return asked[-1]

    served.append(NAME, 1)
    with patch.object(transport, "audit", overtaken, create=True):
        assert verify(transport, NAME).same
    assert len(asked) == 2
    served.close()
