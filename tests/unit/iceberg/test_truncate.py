"""A truncate takes all rows away at once: log, index and lake, for every reader, and tells who has to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lakestore.errors import Invalid, LakestoreError, PositionExpired
from lakestore.union.cut import Cut
from lakestore.union.verify import verify
from lakestore_server.catalog.contents import Name
from lakestore_server.commit.request import Operation
from lakestore_server.segments.compaction import Base
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import View
from tests.support.log_tierer import LogTierer
from tests.support.served import Served

KEYED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
LOG = pa.schema([("v", pa.int64())])


@pytest.fixture(name="served", scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("truncate") / "data", ports=True) as served:
        yield served


def test_the_lake_has_an_empty_snapshot_in_the_same_commit_and_tiering_goes_on(served: Served) -> None:
    table = served.lake.create_table("lake.log", LOG, buckets=2)
    tierer = LogTierer(served.server, served.lake.transport)
    served.append("lake.log", *range(20))
    tierer.flush("lake.log")
    served.append("lake.log", 20, 21)
    before = served.state("lake.log")
    answer = table.truncate()
    assert answer.rows == 22
    state = served.state("lake.log")
    (tier,) = state.tiers.values()
    assert tier.tier_point == state.starts() == tuple(before.heads()), "T and L are at H"
    assert tier.live_sums == (0, 0)
    catalog = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg")
    seen = catalog.load_table("lake.log")
    assert seen.scan().to_arrow().num_rows == 0
    snapshot = seen.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.snapshot_id == tier.snapshot_id
    assert snapshot.summary.additional_properties["deleted-records"] == "20"
    assert table.scan().count() == 0
    served.append("lake.log", 30, 31, 32)
    tierer.flush("lake.log")
    assert sorted(row["v"] for row in catalog.load_table("lake.log").scan().to_arrow().to_pylist()) == [30, 31, 32]
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [30, 31, 32]
    assert verify(served.lake.transport, "lake.log").same


def test_a_tier_commit_that_was_planned_before_is_fenced(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("lake.raced", LOG, buckets=1)
    tierer = LogTierer(served.server, served.lake.transport)
    served.append("lake.raced", 1, 2)
    tierer.flush("lake.raced")
    served.append("lake.raced", 3)
    flush = tierer._catalog.load_table

    def loaded(name: str) -> object:
        monkeypatch.undo()
        table.truncate()
        return flush(name)

    monkeypatch.setattr(tierer._catalog, "load_table", loaded)
    with pytest.raises(Exception, match=r"plan anew|tier"):
        tierer.flush("lake.raced")
    assert table.scan().count() == 0


def test_reads_that_hold_an_earlier_cut_go_on_and_others_are_told(served: Served) -> None:
    table = served.lake.create_table("a.read", KEYED, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": "x"} for i in range(50)])
    token = served.lake.last_token
    with Cut(served.lake.transport, ["a.read"], lease_seconds=60) as cut, served.lake.snapshot() as whole:
        table.truncate()
        served.checkpoint()
        scan = table.scan(at=token)
        assert whole.scan("a.read").count() == 50, "planned after the truncate, at a cut that is held"
        assert scan.count() == 50, "as long as somebody holds that cut"
        assert cut.plan.scan("a.read").buckets
    with pytest.raises(PositionExpired, match="truncate"):
        table.scan(at=token).count()
    with pytest.raises(PositionExpired):
        list(table.changes(token, until="now"))
    leases = served.verbs("Plan")._leases
    leases.pre_truncate.keep(served.state("a.read"), 0, ())
    assert not leases.pre_truncate._kept, "nothing is kept once nobody reads it"


def test_consumers_at_the_head_are_told_too(served: Served) -> None:
    table = served.lake.create_table("a.told", KEYED, primary_key=["k"], buckets=1)
    table.upsert([{"k": 1, "v": "x"}, {"k": 2, "v": "x"}])
    for shared in (False, True):
        name = f"s-{shared}"
        for batch in table.changes(subscription=name, shared=shared, until="now"):
            batch.ack()
    stream = table.changes("latest")
    assert stream.next(timeout=0.05) is None
    assert table.truncate(check_only=True).subscriptions == ("s-False", "s-True")
    table.truncate()
    with pytest.raises(PositionExpired, match="truncate"):
        stream.next(timeout=60)
    table.upsert([{"k": 3, "v": "y"}])
    listed = {each.name: each for each in served.lake.subscriptions()}
    assert listed["s-False"].expired
    assert listed["s-True"].expired
    for shared in (False, True):
        name = f"s-{shared}"
        with pytest.raises(PositionExpired, match=f"subscriptions reset {name} --to snapshot"):
            list(table.changes(subscription=name, shared=shared, until="now"))
        served.lake.reset_subscription(name, "snapshot")
        found = [
            row["k"] for b in table.changes(subscription=name, shared=shared, until="now") for row in b.to_pylist()
        ]
        assert found == [3]
    assert not any(each.expired for each in served.lake.subscriptions())


def test_a_commit_that_waited_is_made_of_the_emptied_table(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that were encoded before a truncate are another table's in the index by then."""
    table = served.lake.create_table("a.waited", KEYED, primary_key=["k"], buckets=1)
    table.upsert([{"k": 1, "v": "x"}])
    producers = served.verbs("UploadPart")
    submit = producers._engine.submit

    def late(request: object) -> None:
        monkeypatch.undo()
        table.truncate()
        submit(request)

    monkeypatch.setattr(producers._engine, "submit", late)
    assert table.upsert([{"k": 1, "v": "y"}]).result.inserted == 1
    assert table.lookup([{"k": 1}]).to_pylist() == [{"k": 1, "v": "y"}]
    assert verify(served.lake.transport, "a.waited").same


def test_a_truncate_that_is_refused_leaves_no_file_and_no_raised_log_start(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = served.lake.create_table("lake.refused", LOG, buckets=1)
    tierer = LogTierer(served.server, served.lake.transport)
    served.append("lake.refused", 1)
    tierer.flush("lake.refused")
    folder = Path(served.engine.view.pointers["lake", "refused"].location.removeprefix("file://")).parent
    before = sorted(each.name for each in folder.iterdir())

    submit = served.engine.submit

    def failing(operation: Operation[object]) -> None:
        plan = operation.plan

        def refused(state: State, record: CommitRecord) -> object:
            plan(state, record)
            raise Invalid("as a test says")

        operation.plan = refused
        submit(operation)

    monkeypatch.setattr(served.engine, "submit", failing)
    with pytest.raises(LakestoreError):
        table.truncate()
    monkeypatch.undo()
    assert sorted(each.name for each in folder.iterdir()) == before
    assert table.scan().to_arrow()["v"].to_pylist() == [1]


def test_what_compaction_knew_of_a_bucket_is_forgotten(served: Served) -> None:
    table = served.lake.create_table("a.base", KEYED, primary_key=["k"], buckets=1)
    table.upsert([{"k": i % 3, "v": str(i)} for i in range(9)])
    table.delete([{"k": 0}])
    known = Base()
    known.advance(served.state("a.base").from_lsn(served.engine.view.lsn).logs[0], 0, 0)
    assert known.dead
    table.truncate()
    known.advance(served.state("a.base").logs[0], 0, 0)
    assert not known.dead


@pytest.mark.parametrize("keyed", [True, False])
def test_a_checkpoint_that_began_before_brings_nothing_back(
    served: Served, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    name = f"a.frozen-{keyed}".replace("-", "_")
    table = served.lake.create_table(name, KEYED, primary_key=["k"] if keyed else None, buckets=1)
    write = table.upsert if keyed else table.append
    write([{"k": i, "v": "x"} for i in range(9)])
    loop = served.engine.loop
    install = loop.install

    def after_a_truncate(change: Callable[[State], View]) -> None:
        table.truncate()
        install(change)

    monkeypatch.setattr(loop, "install", after_a_truncate)
    served.checkpoint()
    monkeypatch.undo()
    assert served.state(name).logs[0].chunks == ()
    write([{"k": 1, "v": "y"}])
    served.checkpoint()
    assert verify(served.lake.transport, name).same
    assert table.scan().count() == 1


def test_after_a_start_a_read_of_before_a_truncate_keeps_its_snapshot_for_the_grace_time(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True, lease_grace_seconds=60.0) as served:
        table = served.lake.create_table("a.log", LOG, buckets=1)
        served.append("a.log", 1, 2)
        LogTierer(served.server, served.lake.transport).flush("a.log")
        state = served.state("a.log")
        (before,) = state.tiers
        table.truncate()
        served.restart()
        ledger, name = served.server.catalog.ledger, Name("a", "log")
        assert before in ledger.pinned_snapshots(state.table.uuid), "who reads it is not known after a start"
        refs = served.server.catalog.load(name).doc["refs"].values()
        assert before in {ref["snapshot-id"] for ref in refs}, "expiry by any engine leaves it out"
        served.clock.advance(61)
        assert before not in ledger.pinned_snapshots(state.table.uuid)
