"""An erasure removes every byte of rows from the server's folder, whatever is killed, and says what it waits for.

The lake's part is a test of its own, with Spark: tests/lake/test_erase.py.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakestore as ls
from jepsen.raw_bytes import hits, holds
from lakestore.client.erasure import Erasure
from lakestore.client.writer import change
from lakestore.errors import Conflict, Invalid, PlanExpired, PositionExpired
from lakestore.limits import Limits
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.model.table import Table
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.duties import erased_scan
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.duties.erased_rows import LogSearch
from lakestore_server.duties.erasure import ErasureDuty
from lakestore_server.duties.scanned_object import ScannedObject
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from tests.support.served import DAY, Served
from tests.support.waiting import until

SCHEMA = pa.schema(
    [pa.field("email", pa.string(), nullable=False), ("name", pa.string()), ("age", pa.int64()), ("at", pa.int64())]
)
MERGES: dict[str, dict[str, Any]] = {
    "upsert": {"merge": "upsert"},
    "refusing": {"merge": "upsert", "deletes": "refuse"},
    "partial": {"merge": "partial"},
    "first_row": {"merge": "first_row"},
    "versioned": {"merge": ls.versioned("at")},
    "aggregate": {"merge": ls.aggregate({"age": "sum", "name": "last", "at": "max"})},
}
USERS = 60
NAME = "shop.people"


def marker(user: int) -> str:
    """Text that only one user's rows have."""
    return f"mark-{user * 7919:09d}-{user:05d}é"


def rows(users: range, age: int) -> list[dict[str, Any]]:
    """One version of each user's row."""
    return [{"email": marker(user), "name": f"of {marker(user)} {age}", "age": age, "at": age} for user in users]


@pytest.fixture(autouse=True)
def without_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests take each step, and there is no lake."""
    monkeypatch.setattr(ErasureDuty, "wake", lambda _: None)
    monkeypatch.setattr(ErasureDuty, "_lake_of", lambda *_, **__: [])


@pytest.fixture(name="served")
def one_server(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", limits=Limits(extent_bytes=2_000)) as served:
        yield served


def fill(served: Served, merge: str = "upsert") -> ls.Table:
    """Versions in several segments, shared files, kept journal files and the journal, beside rows of other tables."""
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["email"], buckets=2, **MERGES[merge])
    other = served.lake.create_table("shop.other", SCHEMA, primary_key=["email"])
    draw, extents = random.Random(7), served.engine.folder / "segments" / "extents"
    log = served.lake.create_table("shop.log", pa.schema([("v", pa.binary())]))
    for age in range(4):
        table.upsert(rows(range(USERS), age))
        other.upsert([{"email": f"other {age}", "name": "x" * 100, "age": age, "at": age}])
        log.append(pa.table({"v": [draw.randbytes(200_000)]}))
        served.checkpoint()
    assert hits([extents], marker(8).encode()), "a kept journal file has the rows of all tables"
    if MERGES[merge].get("deletes") != "refuse":
        table.delete([{"email": marker(7), **({"at": 9} if merge == "versioned" else {})}])
    table.upsert(rows(range(0, USERS, 2), 5))
    return table


def ask(table: ls.Table, *users: int, within: str | int = "30d") -> Erasure:
    """An erasure of some users."""
    where = " OR ".join(f"email = '{marker(user)}'" for user in users)
    return table.erase(where=where, within=within, why="they asked")


def end(served: Served, asked: Erasure) -> Erasure:
    """The end of an erasure."""
    for _ in range(5):
        served.server.erasure.run_once()
        found = next(each for each in served.lake.table(asked.table).erasures() if each.id == asked.id)
        if found.is_done:
            return found
    raise AssertionError(found.held_back_by)


def places(served: Served, *users: int) -> list[str]:
    """The files with bytes of one of the users."""
    return [place for user in users for place in hits([served.engine.folder], marker(user).encode())]


@pytest.mark.parametrize("merge", MERGES)
def test_no_file_has_a_byte_of_the_rows(served: Served, merge: str) -> None:
    table = fill(served, merge)
    before = {row["email"]: row for row in table.scan().to_arrow().to_pylist()}
    assert places(served, 6)
    done = end(served, ask(table, 6, 7))
    assert places(served, 6, 7) == []
    assert len(places(served, 8)) > 0
    left = {row["email"]: row for row in table.scan().to_arrow().to_pylist()}
    assert left == {email: row for email, row in before.items() if email not in (marker(6), marker(7))}
    assert done.keys == 2
    assert verify(served.lake.transport, NAME).same
    assert served.lake.table("shop.log").scan().count() == 4
    certificate = done.certificate
    assert certificate is not None
    assert served.lake.verify_erased(certificate).findings == ()
    assert marker(6) not in json.dumps(certificate, ensure_ascii=False)
    table.upsert(rows(range(6, 7), 70))
    served.restart()
    assert served.lake.verify_erased(certificate).findings == ()
    assert served.lake.table(NAME).lookup([{"email": marker(6)}]).num_rows == 1


class Died(BaseException):
    """The process is gone."""


class MortalDisk(RealDisk):
    """A disk at one of whose crash points, in the thread of the duty, the process dies."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.left: int | None = None
        self.passed = 0

    def reach(self, point: CrashPoint) -> None:
        """Die at the point whose turn it is."""
        if threading.get_ident() != self.thread:
            return
        self.passed += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Died(point)


def test_a_kill_at_any_step_costs_a_repetition(tmp_path: Path) -> None:
    """The duty dies at a crash point, the server is killed, and the next one ends the erasure. Without a kill it passes
    `steps` points; the tests dies at every third."""
    steps, at = None, 1
    while steps is None or at < steps:
        disk = MortalDisk()
        with Served(tmp_path / f"{at}", disk=disk, limits=Limits(extent_bytes=2_000)) as served:
            table = fill(served)
            asked = ask(table, 6, 7)
            before = disk.passed
            disk.left = at if steps is not None else None
            try:
                end(served, asked)
            except Died:
                assert steps is not None
                served.kill()
                served.start()
            done = end(served, asked)
            if steps is None:
                steps = disk.passed - before
            else:
                at += 3
            assert done.keys == 2
            assert places(served, 6, 7) == [], at
            assert served.lake.table(NAME).scan().count() == USERS - 2
            assert verify(served.lake.transport, NAME).same
            certificate = done.certificate
            assert certificate is not None
            assert served.lake.verify_erased(certificate).findings == ()
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir(exist_ok=True)
    assert steps > 30


@pytest.mark.parametrize("step", ["rows", "lake", "log", "certificate"])
def test_a_kill_between_two_steps_costs_nothing(served: Served, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The answer of the commit that ends a step is lost, or the certificate is written and the end is not journaled."""
    asked = ask(fill(served), 6, 7)
    note = ErasureDuty._note
    whole = {"rows": "lake", "lake": "log", "log": "done"}

    def dying(self: ErasureDuty, after: Any) -> None:
        if step == "certificate" and after.is_done:
            raise Died
        note(self, after)
        if after.step == whole.get(step):
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(ErasureDuty, "_note", dying)
        with pytest.raises(Died):
            end(served, asked)
    served.kill()
    served.start()
    done = end(served, asked)
    assert done.keys == 2
    assert places(served, 6, 7) == []
    assert done.certificate is not None


def test_a_subscription_holds_it_back_until_the_deadline(served: Served) -> None:
    """It is named. At the deadline it is told that the changes are gone."""
    table = fill(served)
    stream = table.changes("earliest", subscription="billing é")
    next(stream).ack()
    stream.close()
    token = str(table.upsert(rows(range(1), 6)))
    asked = ask(table, 6, within="1d")
    served.server.erasure.run_once()
    (found,) = table.erasures()
    assert found.step == "log"
    assert found.held_back_by == ("subscription billing é, which has not read the deletes",)
    assert places(served, 6), "nothing is removed under a reader"
    for age in range(20, 24):  # segments of later rows are not joined with earlier ones across the floor
        table.upsert(rows(range(100, 400), age))
        served.checkpoint()
        served.server.upkeep.checkpointer.merger.run_once()
    shown = next(each for each in served.lake.status()["tables"] if each["name"] == NAME)
    assert shown["erasure"]["held_back_by"] == list(found.held_back_by)
    served.clock.advance(DAY)
    end(served, asked)
    assert places(served, 6) == []
    for read in (
        lambda: next(table.changes("earliest", subscription="billing é")),
        lambda: table.scan(at=token).count(),
        lambda: next(table.changes(token)),
    ):
        with pytest.raises(PositionExpired, match="erase"):
            read()


def test_a_reader_holds_it_back_until_the_deadline(served: Served) -> None:
    table = fill(served)
    with served.lake.snapshot() as cut:
        reader = cut.scan(NAME)
        asked = ask(table, 6, within="1d")
        served.server.erasure.run_once()
        (found,) = table.erasures()
        assert found.step == "log"
        assert "a read of the log of table shop.people" in found.held_back_by[0]
        assert reader.count() == USERS - 1
    end(served, asked)
    assert places(served, 6) == []


def test_the_deadline_cuts_a_reader_off(served: Served) -> None:
    table = fill(served)
    with served.lake.snapshot() as cut:
        reader = cut.scan(NAME)
        end(served, ask(table, 6, within=0))
        assert places(served, 6) == []
        with pytest.raises((PlanExpired, PositionExpired)):
            reader.count()


LETTERS = pa.schema(
    [
        pa.field("kafka_source", pa.string(), nullable=False),
        pa.field("kafka_offset", pa.int64(), nullable=False),
        ("value", pa.binary()),
    ]
)


def test_dead_letters_of_the_rows_go(served: Served) -> None:
    """Also the ones that were replayed, and so deleted. A letter that the condition cannot judge is counted."""
    table = fill(served)
    letters = served.lake.create_table(f"{NAME}__dlq", LETTERS, primary_key=["kafka_source", "kafka_offset"])
    bodies = [json.dumps(rows(range(user, user + 1), 3)[0], ensure_ascii=False) for user in (6, 7, 8)]
    bodies += ["[1]", f'{{"email": "{marker(9)}"}}']
    letters.upsert([{"kafka_source": "t", "kafka_offset": i, "value": body.encode()} for i, body in enumerate(bodies)])
    letters.delete([{"kafka_source": "t", "kafka_offset": 1}])
    done = end(served, ask(table, 6, 7, 9))
    assert places(served, 6, 7, 9) == []
    assert letters.scan().to_arrow().sort_by("kafka_offset").column("kafka_offset").to_pylist() == [2, 3]
    assert done.certificate is not None
    assert done.certificate["dead_letters_not_judged"] == 1
    assert [part["name"] for part in done.certificate["tables"]] == [NAME, f"{NAME}__dlq"]


@pytest.mark.parametrize("number", [b"18446744073709551615", b"99999999999999999999999999", b"1e400", b"[1, {}]"])
def test_a_dead_letter_with_any_number_stops_no_erasure(served: Served, number: bytes) -> None:
    """Such values are why records become dead letters."""
    table = fill(served)
    letters = served.lake.create_table(f"{NAME}__dlq", LETTERS, primary_key=["kafka_source", "kafka_offset"])
    bodies = [b'{"email": "x", "age": ' + number + b"}", b'{"email": ' + number + b', "age": 1}']
    letters.upsert([{"kafka_source": "t", "kafka_offset": i, "value": body} for i, body in enumerate(bodies)])
    end(served, table.erase(where=f"email = '{marker(6)}' OR age > 100", within=0))
    assert places(served, 6) == []


def test_a_dropped_table_of_the_name_goes_first(served: Served) -> None:
    """It may have the same rows, and so may dropped dead letters."""
    table = fill(served)
    letters = served.lake.create_table(f"{NAME}__dlq", LETTERS, primary_key=["kafka_source", "kafka_offset"])
    letters.upsert([{"kafka_source": "t", "kafka_offset": 1, "value": marker(6).encode()}])
    for name in (f"{NAME}__dlq", NAME):
        served.checkpoint()
        served.lake.drop_table(name)
        if name == NAME:
            table = served.lake.create_table(NAME, SCHEMA, primary_key=["email"])
            table.upsert(rows(range(6, 7), 3))
        with pytest.raises(Conflict, match=f"a dropped table {name}, which may have the same rows"):
            ask(table, 6)
        served.purge(name) if name != NAME else served.purge_dropped(served.lake.dropped_tables()[0].uuid)
    end(served, ask(table, 6))
    assert places(served, 6) == []


def test_rows_from_before_a_rescale_go(served: Served) -> None:
    """The table from before it is removed, but kept journal files have its rows beside others'."""
    table = fill(served)
    table.rescale(3, wait=False)
    until(lambda: served.engine.view.named(NAME).table.buckets == 3, "the swap")
    served.purge_dropped(served.lake.dropped_tables()[0].uuid)
    served.checkpoint()
    assert places(served, 6)
    table = served.lake.table(NAME)
    end(served, ask(table, 6))
    assert places(served, 6) == []
    assert table.scan().count() == USERS - 2


def test_columns_keep_their_names_until_the_rows_are_found(served: Served) -> None:
    """The condition names them: without its column an erasure could never end."""
    table = fill(served)
    asked = table.erase(where=f"name LIKE '%{marker(6)}%'", within=0)
    for change_of_columns in ({"rename": {"name": "full_name"}}, {"drop": ["name"]}):
        with pytest.raises(Conflict, match=f"until erasure {asked.id} has found its rows"):
            table.alter(**change_of_columns)
    table.alter(add={"more": pa.string()})
    end(served, asked)
    served.lake.table(NAME).alter(rename={"name": "full_name"})
    assert places(served, 6) == []


def test_dead_letters_of_a_table_that_is_gone_are_not_forgotten(served: Served) -> None:
    """The table is removed before its rows were looked for: nobody can judge its letters, so they have to go."""
    table = fill(served)
    letters = served.lake.create_table(f"{NAME}__dlq", LETTERS, primary_key=["kafka_source", "kafka_offset"])
    letters.upsert([{"kafka_source": "t", "kafka_offset": 1, "value": marker(6).encode()}])
    asked = ask(table, 6)
    served.purge(NAME)
    served.server.erasure.run_once()
    (reason,) = served.server.erasure.held[asked.id]
    assert reason.startswith(f"dead letters {NAME}__dlq of a table that is gone: `lakestore drop {NAME}__dlq --now`")
    served.purge(f"{NAME}__dlq")
    served.server.erasure.run_once()
    assert served.engine.view.erasures[asked.id].is_done


def test_an_upload_without_a_commit_goes_too(served: Served) -> None:
    """It waits for its commit until it is too old, or until the deadline. An upload from afterwards has new rows."""
    table = fill(served)

    def upload(user: int) -> None:
        batch = pa.RecordBatch.from_pylist(rows(range(user, user + 1), 3), schema=SCHEMA)
        sent = change(NAME, pb.UPSERT, [batch])
        served.lake.transport.upload_part(pb.UploadPartRequest(change=sent))

    upload(6)
    asked = ask(table, 6, within="1h")
    served.clock.advance(1)
    upload(8)
    served.server.erasure.run_once()
    (found,) = table.erasures()
    assert found.held_back_by == (f"uploads to table {NAME} that no commit has taken (1)",)
    served.clock.advance(3600)
    end(served, asked)
    assert places(served, 6) == []
    assert len(list((served.engine.folder / "parts").iterdir())) == 1


def test_a_file_that_comes_back_is_found(served: Served, tmp_path: Path) -> None:
    """A segment, a journal file or a run from before, and any other file."""
    asked = ask(fill(served), 6, 7)
    before = tmp_path / "before é"
    with served.server.upkeep.checkpointer.held():  # none removes files meanwhile
        shutil.copytree(served.engine.folder, before, ignore=shutil.ignore_patterns("lock", "warehouse"))
    certificate = end(served, asked).certificate
    assert certificate is not None
    served.server.upkeep.checkpointer.close()  # a checkpoint of its own would remove what comes back
    back = [path for path in before.rglob("*") if path.is_file() and holds(path, marker(6).encode())]
    assert {path.parent.name for path in back} >= {"index", "shared", "extents"}
    for path in back:
        place = served.engine.folder / path.relative_to(before)
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        findings = served.lake.verify_erased(certificate).findings
        assert any(path.name in each for each in findings), path
        place.unlink()
    other = served.engine.folder / "notes é.txt"
    other.write_text(marker(6))
    assert served.lake.verify_erased(certificate).findings == (f"data/{other.name}: it is no file of Lakestore",)
    other.unlink()
    assert served.lake.verify_erased(certificate).findings == ()


class SlowDisk(RealDisk):
    """A disk that stops every thread at one crash point until it may go on."""

    def __init__(self) -> None:
        self.point: CrashPoint | None = None
        self.arrived, self.goes_on = threading.Event(), threading.Event()

    def stop_at(self, point: CrashPoint | None) -> None:
        """Stop at this point from now on; None lets everything go on."""
        self.point = point
        self.goes_on.set()
        self.arrived, self.goes_on = threading.Event(), threading.Event()

    def reach(self, point: CrashPoint) -> None:
        """Wait if this is the point."""
        if point == self.point:
            goes_on = self.goes_on
            self.arrived.set()
            assert goes_on.wait(60), point


MADE_BESIDE = [
    CrashPoint.ROLL_SYNCED,
    CrashPoint.SEGMENT_WRITTEN,
    CrashPoint.SHARED_WRITTEN,
    CrashPoint.SEGMENTS_DURABLE,
    CrashPoint.RUN_WRITTEN,
    CrashPoint.RUN_DURABLE,
    CrashPoint.CHECKPOINT_WRITTEN,
    CrashPoint.CHECKPOINT_DURABLE,
    CrashPoint.CHECKPOINT_INSTALLED,
    CrashPoint.TRIM_FILE_REMOVED,
]


def test_files_of_a_checkpoint_under_way_are_no_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a checkpoint writes, has not named yet, or is about to remove. The check looks again behind it."""
    resting, disk = Checkpointer.resting, SlowDisk()

    def awaited(self: Checkpointer) -> Any:
        disk.stop_at(None)
        return resting(self)

    monkeypatch.setattr(Checkpointer, "resting", awaited)
    with Served(tmp_path / "data", disk=disk, limits=Limits(extent_bytes=2_000, shared_segment_bytes=10_000)) as served:
        table = fill(served)
        certificate = end(served, ask(table, 6, 7)).certificate
        assert certificate is not None
        for age, point in enumerate(MADE_BESIDE, start=20):
            table.upsert(rows(range(8, USERS), age))
            table.upsert([{"email": f"{age}", "name": "x" * 20_000, "age": age, "at": age}])
            served.lake.table("shop.other").upsert([{"email": f"other {age}", "name": "", "age": age, "at": age}])
            disk.stop_at(point)
            checkpoint = threading.Thread(target=served.server.upkeep.checkpoint)
            checkpoint.start()
            assert disk.arrived.wait(60), point
            assert served.lake.verify_erased(certificate).findings == (), point
            disk.stop_at(None)
            checkpoint.join()


def test_runs_that_a_merge_replaced_are_no_findings(served: Served) -> None:
    """The newest checkpoint names them until the next one does not."""
    table = fill(served)
    certificate = end(served, ask(table, 6, 7)).certificate
    assert certificate is not None
    served.server.upkeep.close(checkpoint=False)  # its merges would end before the test looks
    for age in range(20, 24):
        table.upsert(rows(range(8, USERS), age))
        served.checkpoint()
    before = set(served.engine.index.runs)
    assert served.engine.index.work(lambda _: True, whole=True)
    assert all(run.path.exists() and run not in served.engine.index.runs for run in before)
    assert served.lake.verify_erased(certificate).findings == ()


def test_rows_that_move_to_a_new_file_while_it_scans_are_found(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that goes before its turn may have become one that is not in the listing."""
    asked = ask(fill(served), 6, 7)
    with served.server.upkeep.checkpointer.held():
        shutil.copytree(served.engine.folder / "segments" / "shared", tmp_path / "old")
    certificate = end(served, asked).certificate
    assert certificate is not None
    (old, *_) = [path for path in (tmp_path / "old").iterdir() if holds(path, marker(6).encode())]
    first, second = (served.engine.folder / "segments" / name / "back.seg" for name in ("shared", "sharee"))
    shutil.copyfile(old, first)
    judge = erased_scan._object

    def moving(disk: Any, data: Path, path: Path, *about: Any) -> ScannedObject:
        if path == first and first.exists():
            second.parent.mkdir()
            first.rename(second)
        return judge(disk, data, path, *about)

    monkeypatch.setattr(erased_scan, "_object", moving)
    assert served.lake.verify_erased(certificate).findings == ("data/segments/sharee/back.seg: it has erased rows",)
    shutil.rmtree(second.parent)


def test_rows_that_matched_once_are_erased_by_their_key(served: Served) -> None:
    """A version that was replaced since counts, and so does a key that is deleted; another user's row stays."""
    table = fill(served)
    table.upsert([{"email": marker(10), "name": f"alias {marker(11)}", "age": 1, "at": 1}])
    table.upsert([{"email": marker(10), "name": "plain", "age": 2, "at": 2}])
    done = end(served, table.erase(where=f"name = 'alias {marker(11)}'"))
    assert done.keys == 1
    assert places(served, 10) == []
    assert hits([served.engine.folder], f"alias {marker(11)}".encode()) == []
    assert table.lookup([{"email": marker(11)}]).num_rows == 1


def test_the_same_request_twice_is_one_erasure(served: Served) -> None:
    table = fill(served)
    asked = ask(table, 6)
    verb = served.server.service.verb("EraseRows")
    again = pb.EraseRowsRequest(table=NAME, where="age = 1", erasure=asked.id)
    assert json.loads(verb(again).erasure)["id"] == asked.id
    ask(table, 8)
    end(served, asked)
    first, second = table.erasures()
    end(served, first)
    assert [first.id != second.id, len(table.erasures())] == [True, 2]
    assert places(served, 6, 8) == []


def test_rows_of_a_log_table_are_found_until_its_floor(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that comes during the search is found, one that comes later stays. Then the erasure waits for a tierer."""
    log = served.lake.create_table("shop.visits", SCHEMA, buckets=2)
    log.append(rows(range(USERS), 0))
    asked, found = ask(log, 6), LogSearch.run

    def run(search: LogSearch) -> None:
        found(search)
        log.append(rows(range(5, 8), 1))

    monkeypatch.setattr(LogSearch, "run", run)
    served.server.erasure.run_once()
    log.append(rows(range(5, 8), 2))
    part = served.engine.view.erasures[asked.id].tables[0]
    assert (part.keys, part.rows, sum(part.floors)) == (0, 2, USERS + 3)
    (waiting,) = log.erasures()
    assert (waiting.step, "run `lakestore tier`" in waiting.held_back_by[0]) == ("lake", True)
    served.restart()
    assert served.engine.view.erasures[asked.id].tables[0] == part
    assert served.lake.table("shop.visits").scan().count() == USERS + 6, "nobody misses a row before all do"


def test_what_cannot_be_erased_is_refused_with_a_sentence(served: Served) -> None:
    table = fill(served)
    for name, where, error in (
        (NAME, "", "needs a condition"),
        (NAME, "nothing = 1", "nothing"),
    ):
        with pytest.raises(Invalid, match=error):
            served.lake.table(name).erase(where=where)
    with pytest.raises(Invalid, match="366 days"):
        table.erase(where="age = 1", within="400d")
    with pytest.raises(Invalid, match="no folder"):
        table.erase(where="age = 1", backups=["/nowhere at all"])
    with served.server.rescales._running:  # else the rescale may be done before it is met
        table.rescale(3, wait=False)
        with pytest.raises(Conflict, match="rescaled"):
            table.erase(where="age = 1")
        table.stop_rescale()
    asked = ask(table, 6)
    with pytest.raises(Conflict, match=f"being erased .erasure {asked.id}."):
        table.rescale(3, wait=False)
    with pytest.raises(Conflict, match=f"being erased .erasure {asked.id}."):
        table.replay("shop.branch", wait=False)


def alter_to(changed: Table, _: State, record: CommitRecord) -> None:
    """Plan another definition of a table, which no verb would make."""
    record.alter.append(changed)


@pytest.mark.parametrize("how", ["journal", "checkpoints", "adopted", "outside"])
def test_other_copies_of_the_rows_are_a_refusal(served: Served, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A journal that servers share, uploaded checkpoints, a lake that is adopted or in an outside catalog."""
    table = fill(served)
    where = f"email = '{marker(6)}'"
    if how == "journal":
        monkeypatch.setattr(type(served.engine.loop.journal), "is_shared", True)
    elif how == "checkpoints":
        monkeypatch.setattr(ErasureDuty, "has_uploads", True)
    else:
        lake = replace(table.definition.lake, **({"adopted": True} if how == "adopted" else {"catalog": "theirs"}))
        changed = replace(table.definition, lake=lake)

        served.engine.operate(partial(alter_to, changed))
    with pytest.raises(Invalid, match=r"cannot be erased: .*(journal is shared|uploads|adopted)"):
        table.erase(where=where)
    assert table.erasures() == []


def test_a_truncate_and_a_drop_meet_an_erasure(served: Served) -> None:
    """A truncate takes all rows first. A dropped table holds the erasure back until it is gone for good."""
    table = fill(served)
    asked = ask(table, 6)
    table.truncate()
    table.upsert(rows(range(3), 1))
    assert end(served, asked).is_done
    assert places(served, 6) == []
    again = ask(table, 2)
    served.lake.drop_table(NAME)
    served.server.erasure.run_once()
    assert "lakestore drop shop.people --now" in served.server.erasure.held[again.id][0]
    served.lake.undrop(NAME)
    assert end(served, again).keys == 1
    assert places(served, 2) == []
    last = ask(table, 1)
    served.purge(NAME)
    served.server.erasure.run_once()
    gone = served.engine.view.erasures[last.id]
    assert (gone.is_done, gone.where) == (True, "")
    assert not (served.engine.folder / "erasures" / f"{last.id}.json").exists(), "a drop is no erasure"


def test_a_backup_is_named_with_its_files(served: Served, tmp_path: Path) -> None:
    table = fill(served)
    backup = tmp_path / "a backup é"
    served.lake.transport.backup(pb.BackupRequest(folder=str(backup), without_lake=True))
    asked = table.erase(where=f"email = '{marker(6)}'", backups=[str(backup)])
    certificate = end(served, asked).certificate
    assert certificate is not None
    assert certificate["backups"][str(backup)]


def test_a_backup_with_a_lake_is_named_with_its_data_files(served: Served, tmp_path: Path) -> None:
    """They lie in the backup as in the warehouse. A file of another table with the same numbers is not named."""
    table = fill(served)
    backup = tmp_path / "a backup é"
    served.lake.transport.backup(pb.BackupRequest(folder=str(backup)))
    for folder in (backup / "warehouse" / "shop").iterdir():
        (folder / "data").mkdir()
        numbers = pa.table({LAKE_BUCKET: pa.array([0, 1] * 300, pa.int32()), LAKE_OFFSET: [i // 2 for i in range(600)]})
        pq.write_table(numbers, folder / "data" / f"of {folder.name[:6]}.parquet")
    done = end(served, table.erase(where=f"email = '{marker(6)}'", backups=[str(backup)]))
    assert done.certificate is not None
    named = [place for place in done.certificate["backups"][str(backup)] if place.endswith(".parquet")]
    assert [place.rpartition("/")[2] for place in named] == ["of people.parquet"]
