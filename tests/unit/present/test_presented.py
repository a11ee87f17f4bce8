"""Loads of presented tables: one cut one answer, nothing stale, leases and what goes with them; without a process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Exhausted, Invalid, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore.model.names import PRESENTED
from lakestore.model.times import text_of
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.errors import NoSuchTable
from lakestore_server.catalog.locations import plain
from lakestore_server.snapshots.messages import Base
from lakestore_server.snapshots.presented_tables import LoadAnswer, LoadRequest, SnapshotTables
from tests.support.present_stand_in import StandIn
from tests.support.served import SCHEMA, Served

TIERED_ROWS = 70
"""Rows of the lake snapshot, by its summary."""
ORDERS = LoadRequest("shop.orders")


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def served(tmp_path: Path, stand_in: StandIn) -> Iterator[Served]:
    with _served(tmp_path, stand_in) as made:
        yield made


def _served(folder: Path, stand_in: StandIn, limits: Limits = DEFAULT) -> Served:
    made = Served(folder / "data", presenter=lambda: stand_in, limits=limits, lease_grace_seconds=100.0)
    made.lake.create_table("shop.orders", SCHEMA)
    made.lake.create_table("shop.other", SCHEMA)
    made.append("shop.orders", 1, 2)
    return made


def _presented(served: Served) -> SnapshotTables:
    return served.server.presented


def _doc(answer: LoadAnswer) -> dict[str, Any]:
    assert answer.body is not None
    said = json.loads(answer.body)
    assert said.keys() == {"metadata-location", "metadata", "config"}
    assert said["config"] == {}
    found: dict[str, Any] = said["metadata"]
    return found


def _lsn(answer: LoadAnswer) -> int:
    return position_of(_doc(answer)["properties"]["lakestore.token"]).lsn


def _runs(served: Served) -> set[str]:
    uuid = served.lake.table("shop.orders").definition.uuid
    folder = served.engine.folder / "warehouse" / PRESENTED / served.engine.timeline / uuid
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


def _files(served: Served) -> int:
    folder = served.engine.folder / "warehouse" / PRESENTED
    return sum(each.is_file() for each in folder.rglob("*"))


def _sweep(served: Served, seconds: float) -> None:
    served.clock.advance(seconds)
    _presented(served).sweep()


def test_one_cut_has_one_answer_and_is_presented_once(served: Served, stand_in: StandIn) -> None:
    first = _presented(served).load(ORDERS)
    served.append("shop.other", 9)
    again = _presented(served).load(ORDERS)
    assert (again.etag, _doc(again)["snapshots"]) == (first.etag, _doc(first)["snapshots"])
    assert _presented(served).load(LoadRequest("shop.orders", etags=f'"x", W/{first.etag}')).body is None
    assert len(stand_in.asked) == 1
    served.append("shop.orders", 3)
    newer = _presented(served).load(LoadRequest("shop.orders", etags=first.etag))
    assert newer.etag != first.etag
    assert _lsn(newer) == served.engine.view.lsn
    assert len(stand_in.asked) == 2


def test_a_token_a_time_and_the_head_of_one_cut_are_one_snapshot(served: Served, stand_in: StandIn) -> None:
    token = served.append("shop.orders", 3)
    head = _doc(_presented(served).load(ORDERS))
    served.append("shop.orders", 4)
    served.clock.advance(10)
    for position in (token, head["properties"]["lakestore.token"]):
        assert _doc(_presented(served).load(LoadRequest("shop.orders", position)))["snapshots"] == head["snapshots"]
    assert len(stand_in.asked) == 1
    v3 = _doc(_presented(served).load(LoadRequest("shop.orders", token, 3)))
    assert (v3["format-version"], v3["next-row-id"]) == (3, 2)
    assert v3["current-snapshot-id"] != head["current-snapshot-id"]


def test_a_document_is_one_snapshot_without_properties_of_writers(served: Served) -> None:
    doc = _doc(_presented(served).load(ORDERS))
    table = served.state("shop.orders")
    (snapshot,) = doc["snapshots"]
    assert doc["table-uuid"] == table.table.uuid
    assert doc["refs"] == {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
    assert snapshot["timestamp-ms"] == table.created_us // 1_000 + 1 == doc["last-updated-ms"]
    assert doc["statistics"] == doc["partition-statistics"] == doc["metadata-log"] == []
    assert (snapshot["summary"]["total-records"], snapshot["summary"]["total-data-files"]) == ("1", "1")
    shown = {"lakestore.table-uuid", "lakestore.token", "lakestore.lease-until", "gc.enabled"}
    assert set(doc["properties"]) == shown


def test_a_load_shows_every_commit_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    stand_in, stale = StandIn(), list[tuple[int, int]]()
    with _served(tmp_path, stand_in) as served:
        ended = threading.Event()

        def load(_: int) -> int:
            loads = 0
            while not ended.is_set() or loads < 2:
                known = served.engine.view.lsn
                shown = _lsn(_presented(served).load(ORDERS))
                if shown < known:
                    stale.append((shown, known))
                loads += 1
            return loads

        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(load, number) for number in range(3)]
            for value in range(25):
                served.append("shop.orders", value)
            ended.set()
            loads = sum(each.result() for each in running)
        assert not stale
        assert len(stand_in.asked) < loads


def test_loads_that_wait_are_answered_by_the_next_presenting(served: Served, stand_in: StandIn) -> None:
    stand_in.gate.clear()
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(_presented(served).load, ORDERS)
        assert stand_in.begun.acquire(timeout=60)
        served.append("shop.orders", 3)
        waiting = [pool.submit(_presented(served).load, ORDERS) for _ in range(8)]
        stand_in.gate.set()
        lsns = {_lsn(each.result(60)) for each in waiting}
        assert lsns == {served.engine.view.lsn}
        assert _lsn(first.result(60)) < served.engine.view.lsn
    assert len(stand_in.asked) == 2


def test_an_error_of_the_presenter_is_each_waiting_loads(served: Served, stand_in: StandIn) -> None:
    stand_in.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(_presented(served).load, ORDERS) for _ in range(4)]
        assert stand_in.begun.acquire(timeout=60)
        stand_in.close()
        for load in loads:
            assert isinstance(load.exception(20), Unavailable)


def test_files_go_with_the_last_lease(served: Served, stand_in: StandIn) -> None:
    presented = _presented(served)
    cut = _doc(presented.load(LoadRequest("shop.orders", seconds=50)))["current-snapshot-id"]
    served.clock.advance(40)
    assert presented.kept(LoadRequest("shop.orders", seconds=20))
    _sweep(served, 19)
    assert (_files(served), stand_in.forgotten) == (2, [])
    assert presented.status().cuts == 1
    assert presented.kept(LoadRequest("shop.orders", seconds=1))
    _sweep(served, 1.5)
    assert (_files(served), stand_in.forgotten) == (0, [cut])
    assert presented.kept(ORDERS) is None
    status = presented.status()
    assert (status.tables, status.cuts, status.files, status.bytes) == (0, 0, 0, 0)


def test_an_answer_made_anew_for_a_cut_is_not_called_the_same(served: Served) -> None:
    presented = _presented(served)
    first = presented.load(LoadRequest("shop.orders", seconds=10))
    _sweep(served, 11)
    again = presented.load(LoadRequest("shop.orders", etags=first.etag))
    assert again.body is not None
    assert _doc(again)["current-snapshot-id"] == _doc(first)["current-snapshot-id"]


def _tiered(served: Served) -> int:
    """A tier record of the head with a snapshot that the metadata has; its id."""
    snapshot = served.tier("shop.orders")
    place = Path(plain(served.engine.view.pointers["shop", "orders"].location))
    doc = json.loads(place.read_text())
    made = {"snapshot-id": snapshot, "sequence-number": 7, "timestamp-ms": 5_000, "manifest-list": "file:///m.avro",
            "summary": {"operation": "append", "total-records": str(TIERED_ROWS)}}  # fmt: skip
    place.write_text(json.dumps({**doc, "last-sequence-number": 8, "snapshots": [made]}))
    return snapshot


def test_a_cut_upon_a_snapshot_follows_it_and_holds_it_but_nothing_of_the_log(
    served: Served, stand_in: StandIn
) -> None:
    presented, leases = _presented(served), served.server.sources.leases
    before = presented.load(ORDERS)
    snapshot = _tiered(served)
    uuid = served.state("shop.orders").table.uuid
    after = _doc(presented.load(LoadRequest("shop.orders", seconds=200)))
    (shown,) = after["snapshots"]
    assert (shown["timestamp-ms"], shown["sequence-number"], after["last-sequence-number"]) == (5_001, 9, 9)
    assert stand_in.asked[-1].base == Base("file:///m.avro", snapshot, 2, 8, 0)
    assert shown["snapshot-id"] != _doc(before)["current-snapshot-id"]
    assert shown["summary"]["total-records"] == str(TIERED_ROWS + int(shown["summary"]["added-records"]))
    served.clock.advance(101)  # the grace time after the start, in which everything is held
    assert (leases.pinned(uuid), leases.starts(uuid), leases.count) == (frozenset({snapshot}), [], 1)
    for value in range(3):
        served.append("shop.orders", value)
        presented.load(LoadRequest("shop.orders", seconds=150))
    assert leases.count == 1
    served.clock.advance(149)
    assert leases.pinned(uuid) == frozenset({snapshot})
    served.clock.advance(5)
    assert leases.pinned(uuid) == frozenset()


def test_a_cut_that_gets_no_lease_leaves_no_file(tmp_path: Path) -> None:
    """The plan has the only lease, so the cut's own on the snapshot below is refused after its files were written."""
    stand_in = StandIn()
    with _served(tmp_path, stand_in, Limits(leases=1)) as served:
        _tiered(served)
        before = _files(served)
        with pytest.raises(Exhausted, match="1 reads run"):
            _presented(served).load(ORDERS)
        assert stand_in.forgotten == [each.cut_id for each in stand_in.asked]
        assert len(stand_in.asked) == 1
        assert _files(served) == before


def test_the_lease_is_what_was_asked_for_within_the_limit(tmp_path: Path, stand_in: StandIn) -> None:
    with _served(tmp_path, stand_in, Limits(present_lease_seconds=100, lease_seconds=1_000)) as served:
        presented = _presented(served)
        for asked, seconds in ((0, 100), (1_000, 1_000)):
            doc = _doc(presented.load(LoadRequest("shop.orders", seconds=asked)))
            until = served.clock.us // 1_000_000 + seconds
            assert doc["properties"]["lakestore.lease-until"] == text_of(until * 1_000_000)
        for asked in (-1, 1_001):
            with pytest.raises(Invalid, match="1 to 1000 seconds"):
                presented.load(LoadRequest("shop.orders", seconds=asked))


def test_an_answer_that_is_not_kept_is_made_anew_without_files(tmp_path: Path, stand_in: StandIn) -> None:
    with _served(tmp_path, stand_in, Limits(present_cache_bytes=0)) as served:
        first, again = _presented(served).load(ORDERS), _presented(served).load(ORDERS)
        assert first == again
        assert len(stand_in.asked) == 1


def test_presented_files_are_bounded_and_leases_get_shorter_before(tmp_path: Path) -> None:
    stand_in = StandIn(file_bytes=300_000)
    with _served(tmp_path, stand_in, Limits(present_bytes=1 << 20)) as served:
        presented = _presented(served)
        spans = []
        for value in range(4):
            served.append("shop.orders", value)
            presented.load(ORDERS)
            presented.sweep()
            held = max(cut.expires for cut in presented._held.cuts() if cut.lsn == served.engine.view.lsn)
            spans.append(round(held - served.clock.monotonic()))
        assert spans[:2] == [3_600, 3_600]
        assert 60 <= spans[3] < spans[2] < 3_600
        kept = presented.load(ORDERS)
        served.append("shop.orders", 9)
        with pytest.raises(Exhausted, match="present_bytes"):
            presented.load(ORDERS)
        token = _doc(kept)["properties"]["lakestore.token"]
        assert _doc(presented.load(LoadRequest("shop.orders", token)))["snapshots"] == _doc(kept)["snapshots"]
        _sweep(served, 3_601)
        assert _lsn(presented.load(ORDERS)) == served.engine.view.lsn


def test_nothing_is_presented_anew_on_a_full_disk(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = _presented(served).load(ORDERS)
    monkeypatch.setattr(served.disk, "free_bytes", lambda _: 0)
    served.clock.advance(2)
    assert _presented(served).load(ORDERS).etag == kept.etag
    with pytest.raises(Exhausted, match="are free"):
        _presented(served).load(LoadRequest("shop.orders", format_version=3))


def test_a_killed_presenter_is_followed_by_another_and_its_run_goes(served: Served, stand_in: StandIn) -> None:
    presented = _presented(served)
    first = presented.load(LoadRequest("shop.orders", seconds=100))
    stand_in.kill()
    assert presented.load(ORDERS).etag == first.etag
    served.append("shop.orders", 3)
    presented.load(LoadRequest("shop.orders", seconds=2_000))
    assert _runs(served) == set(stand_in.runs)
    _sweep(served, 3_700)
    assert _runs(served) == {stand_in.runs[1]}


def test_what_an_earlier_life_presented_stays_for_the_grace_time(served: Served, stand_in: StandIn) -> None:
    _presented(served).load(ORDERS)
    (old,) = _runs(served)
    again = StandIn()
    served._presenter = lambda: again
    served.restart()
    _presented(served).load(ORDERS)
    _sweep(served, 90)
    assert _runs(served) == {old, *again.runs}
    _sweep(served, 70)
    assert _runs(served) == set(again.runs)


def test_files_of_a_dropped_table_go_when_its_leases_are_over(served: Served) -> None:
    presented = _presented(served)
    uuid = served.lake.table("shop.orders").definition.uuid
    token = _doc(presented.load(LoadRequest("shop.orders", seconds=200)))["properties"]["lakestore.token"]
    folder = served.engine.folder / "warehouse" / PRESENTED / served.engine.timeline / uuid
    (folder / "indexes").mkdir()
    served.lake.drop_table("shop.orders")
    for position in ("", token):
        with pytest.raises(NoSuchTable):
            presented.load(LoadRequest("shop.orders", position))
    _sweep(served, 150)
    assert list(folder.rglob("*.avro"))
    _sweep(served, 60)
    assert not folder.exists()


def test_positions_that_cannot_be_read_are_refused(served: Served) -> None:
    presented = _presented(served)
    with pytest.raises(NoSuchTable):
        presented.load(LoadRequest("shop.none"))
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        presented.load(LoadRequest("shop.orders", "2999-01-01T00:00Z"))
    with pytest.raises(Invalid, match="did not exist"):
        presented.load(LoadRequest("shop.orders", "2001-01-01T00:00Z"))
    with pytest.raises(Invalid):
        presented.load(LoadRequest("shop.orders", "x"))


def test_twenty_thousand_positions_of_one_cut_are_one_cut(served: Served, stand_in: StandIn) -> None:
    presented, base = _presented(served), served.clock.us
    presented.load(LoadRequest("shop.orders", seconds=86_400))
    served.clock.advance(30_000)
    served.append("shop.other", 1)
    for number in range(20_000):
        presented.load(LoadRequest("shop.orders", text_of(base + number * 1_000_000)))
    assert len(stand_in.asked) == 1
    assert presented.status().cuts == 1


def test_nothing_runs_before_somebody_asks(served: Served, stand_in: StandIn) -> None:
    assert stand_in.pid is None
    assert "present" not in served.engine.supervisor.states()
    _presented(served).warm()
    assert stand_in.pid == 1


def test_no_cut_is_presented_anew_while_the_server_goes_down(served: Served) -> None:
    kept = _presented(served).load(ORDERS)
    served.engine.drain()
    assert _presented(served).load(ORDERS).etag == kept.etag
    with pytest.raises(Unavailable):
        _presented(served).load(LoadRequest("shop.orders", format_version=3))


def test_a_table_whose_lake_went_another_way_is_presented_from_its_log(served: Served, stand_in: StandIn) -> None:
    _tiered(served)
    uuid = served.state("shop.orders").table.uuid
    served.engine.lake_ahead = {uuid: "its lake is ahead"}
    Path(plain(served.engine.view.pointers["shop", "orders"].location)).unlink()
    doc = _doc(_presented(served).load(ORDERS))
    assert (stand_in.asked[-1].base, doc["table-uuid"]) == (Base("", 0, 2, 0, 0), uuid)
    assert [field["name"] for field in doc["schemas"][0]["fields"]][:1] == ["v"]


def test_a_later_version_of_the_schema_is_the_documents(served: Served, stand_in: StandIn) -> None:
    token = served.append("shop.orders", 7)
    served.lake.table("shop.orders").alter(rename={"v": "w"}, add={"x": pa.string()})
    now, then = _doc(_presented(served).load(ORDERS)), _doc(_presented(served).load(LoadRequest("shop.orders", token)))
    for doc, names in ((now, ["w", "x"]), (then, ["v"])):
        (schema,) = [each for each in doc["schemas"] if each["schema-id"] == doc["current-schema-id"]]
        assert [field["name"] for field in schema["fields"] if not field["name"].startswith("__")] == names
        assert doc["snapshots"][0]["schema-id"] == doc["current-schema-id"]
    assert stand_in.asked[0].schema["fields"][0]["name"] == "w"


def test_a_backup_has_nothing_of_what_is_presented(served: Served, tmp_path: Path) -> None:
    _presented(served).load(ORDERS)
    served.lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "copy")))
    assert [each for each in (tmp_path / "copy").rglob("*") if PRESENTED in each.parts] == []
    assert list((tmp_path / "copy" / "warehouse").rglob("*.metadata.json"))


def test_nothing_else_lies_where_presented_files_do(served: Served) -> None:
    catalog = served.server.catalog
    with pytest.raises(Invalid, match="choose another name"):
        catalog.create_namespace(PRESENTED, {})
    with pytest.raises(Invalid, match="choose another name"):
        served.lake.create_table(f"{PRESENTED}.t", SCHEMA)
    catalog.create_namespace("free", {})
    place = f"{catalog.warehouse}/{PRESENTED}/x"
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "i", "required": False, "type": "long"}]}
    with pytest.raises(Invalid, match="is for presented files: choose another"):
        catalog.create_table("free", {"name": "t", "schema": schema, "location": place})
