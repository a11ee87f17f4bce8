"""`lake.snapshot()`: one small call, and a cut that stays readable, of all tables, until its end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestore.client.snapshot import Snapshot
from lakestore.errors import Invalid, PositionExpired, Unavailable
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.state.catalog_change import CatalogChange, SetPointer
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served
from tests.support.waiting import until

LOG = "t.log"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as opened:
        opened.lake.create_table(LOG, SCHEMA, buckets=1, retention="1h")
        yield opened


def old_and_new(served: Served) -> Snapshot:
    """Rows, a snapshot and other rows, all older than the retention."""
    served.append(LOG, 0, 1)
    served.checkpoint()
    cut = served.lake.snapshot(lease_seconds=DAY)
    served.append(LOG, 2)
    served.append(LOG, 3)
    served.checkpoint()
    served.append(LOG, 4)
    served.tier(LOG)
    served.clock.advance(7_200)
    return cut


def lease_lives(served: Served) -> int:
    return served.server.sources.leases.count


class Calls:
    """A transport that counts its calls."""

    def __init__(self, real: Any) -> None:
        self.real, self.made = real, list[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.made.append(name)
            return getattr(self.real, name)(*arguments)

        return call


def test_the_log_is_held_for_tables_that_the_snapshot_has_not_read(served: Served) -> None:
    cut = old_and_new(served)
    served.run()
    decision = served.server.retention.decision(served.state(LOG).table.uuid)
    assert decision is not None
    assert decision.holders() == ["lease"]
    assert served.state(LOG).log_start_lsn <= position_of(cut.token).lsn
    assert cut.scan(LOG).count() == 2
    cut.close()
    served.run()
    assert served.state(LOG).log_start_lsn > position_of(cut.token).lsn
    with pytest.raises(PositionExpired):
        served.lake.at(cut.token).scan(LOG).count()
    with pytest.raises(Invalid, match="closed"):
        cut.scan(LOG).count()


def test_a_snapshot_and_a_moving_log_start_cannot_miss_each_other(served: Served) -> None:
    leases, uuid = served.server.sources.leases, served.state(LOG).table.uuid
    held = leases.grant_cut(5, 10)
    assert leases.cuts(uuid) == [5]
    assert leases.raise_log_start(uuid, (1,), range(0, 5)), "the start may come up to the cut"
    assert not leases.raise_log_start(uuid, (2,), range(0, 6))
    assert leases.raise_log_start(uuid, (2,), range(6, 8)), "a table that is younger than the cut"
    leases.release(held)
    assert leases.raise_log_start(uuid, (2,), range(0, 9))
    with pytest.raises(Unavailable, match="log start moves"):
        leases.grant_cut(8, 10)
    leases.release(leases.grant_cut(9, 10))


def test_a_lake_snapshot_that_a_read_at_the_cut_needs_does_not_expire(served: Served) -> None:
    ledger, tables = served.server.catalog.ledger, served.engine.view.names
    served.append(LOG, 1, 2)
    first = served.tier(LOG)
    cut = served.lake.snapshot()
    served.append(LOG, 3)
    second = served.tier(LOG)
    assert ledger.pinned_snapshots(tables[LOG]) == {first}
    pointer = served.engine.view.pointers["t", "log"]
    gone = CatalogChange((SetPointer("t", "log", pointer.location, pointer, (), (first,)),))
    with pytest.raises(Exception, match="read has begun"):
        ledger.commit(gone)
    assert cut.scan(LOG).count() == 2
    cut.close()
    ledger.commit(gone)
    assert set(served.state(LOG).tiers) == {second}


def test_a_snapshot_reads_one_cut_of_all_tables_whatever_happens_behind_it(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        tierer = LogTierer(served.server, served.lake.transport)
        served.lake.create_table(LOG, SCHEMA, buckets=1, retention={"bytes": 1})
        served.append(LOG, 1)
        tierer.flush(LOG)
        served.append(LOG, 2)
        cut = served.lake.snapshot()
        served.append(LOG, 3)
        served.checkpoint()
        tierer.flush(LOG)
        served.run()
        assert sorted(cut.scan(LOG).to_arrow().column("v").to_pylist()) == [1, 2]
        assert cut.sql(f"SELECT sum(v) AS s FROM {LOG}").to_pylist() == [{"s": 3}]
        cut.close()
        served.run()
        assert served.state(LOG).log_start_lsn > position_of(cut.token).lsn


def test_a_snapshot_is_one_call_and_lets_go_when_it_is_garbage(served: Served) -> None:
    calls = Calls(served.lake.transport)
    cut = Snapshot.of_head(calls, None, None)
    assert calls.made == ["head"]
    scan = cut.scan(LOG)
    del cut
    gc.collect()
    assert lease_lives(served) == 1, "a scan that is not begun needs it"
    assert scan.count() == 0
    del scan
    gc.collect()
    until(lambda: lease_lives(served) == 0, "the release of a snapshot that is garbage")
    with served.lake.snapshot() as held:
        assert lease_lives(served) == 1
        scan = held.scan(LOG)
    assert lease_lives(served) == 0
    with pytest.raises(Invalid, match="closed"):
        scan.count()


def test_a_hold_is_renewed_as_it_is_read_and_a_lost_one_is_no_error(served: Served) -> None:
    time = [0.0]
    calls = Calls(served.lake.transport)
    answer = served.lake.transport.head(pb.HeadRequest(lease_seconds=30))
    cut = Snapshot(calls, answer.token, lease=answer.lease, lease_seconds=30, clock=lambda: time[0])
    for seconds, renewed in ((9.0, 0), (10.0, 1), (19.0, 1), (20.5, 2)):
        time[0] = seconds
        cut.scan(LOG).count()
        assert calls.made.count("renew_lease") == renewed
    served.clock.advance(31)
    time[0] = 40.0
    assert cut.scan(LOG).count() == 0, "what it needs is still there"
    assert lease_lives(served) == 0
    cut.close()


def test_a_lease_of_no_time_and_too_long_a_time_is_refused(served: Served) -> None:
    with pytest.raises(Invalid, match="lease"):
        served.lake.snapshot(lease_seconds=1 << 30)
    assert lease_lives(served) == 0
    assert served.lake.transport.head(pb.HeadRequest()).lease == ""
