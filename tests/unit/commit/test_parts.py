"""Parts: rows that are uploaded before their commit are durable, unseen, bounded, and committed once."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore import aio
from lakestore.client import parts as client_parts
from lakestore.client.local import local_transport
from lakestore.client.writer import change
from lakestore.errors import Conflict, Corrupt, Exhausted, Invalid, LakestoreError, NotFound, NothingToKeep
from lakestore.evolution import AddColumn, DropColumn
from lakestore.limits import Limits
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import part_file
from lakestore_server.operate import metrics
from tests.support.served import SCHEMA, Served

PAIRS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", limits=Limits(part_seconds=60)) as served:
        served.lake.create_table("a.log", SCHEMA, buckets=2)
        served.lake.create_table("a.keyed", PAIRS, primary_key=["k"], buckets=2)
        yield served


def log_rows(*values: int) -> pb.Change:
    return change("a.log", pb.APPEND, [pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)])


def pairs(kind: pb.ChangeKind.ValueType, *rows: tuple[int, int]) -> pb.Change:
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return change("a.keyed", kind, [pa.record_batch(columns, schema=PAIRS)])


def uploaded(served: Served, *changes: pb.Change, owner: str = "") -> list[pb.Change]:
    named = []
    for each in changes:
        info = served.lake.transport.upload_part(pb.UploadPartRequest(change=each, owner=owner))
        named.append(pb.Change(table=each.table, kind=each.kind, crc32c=each.crc32c, part=info.part))
    return named


def request(changes: Sequence[pb.Change], sequence: int = 1, producer: str = "p") -> pb.CommitRequest:
    return pb.CommitRequest(changes=changes, producer=producer, sequence=sequence)


def values(served: Served) -> list[int]:
    found: list[int] = served.lake.table("a.log").scan().to_arrow().column("v").to_pylist()
    return sorted(found)


def held(served: Served) -> dict[int, int]:
    rows = served.lake.table("a.keyed").scan().to_arrow().to_pylist()
    return {row["k"]: row["v"] for row in rows}


def files(served: Served) -> list[str]:
    return served.disk.list(served.engine.folder / part_file.FOLDER)


def test_parts_and_changes_are_one_commit_in_the_order_named(served: Served) -> None:
    parts = uploaded(served, log_rows(1, 2), pairs(pb.UPSERT, (1, 1), (2, 2)), pairs(pb.DELETE, (1, 0)))
    assert (values(served), held(served), len(files(served))) == ([], {}, 3)
    changes = [*parts, pairs(pb.UPSERT, (1, 7)), log_rows(3)]
    before = served.engine.view.lsn
    answer = served.lake.transport.commit(request(changes))
    assert served.engine.view.lsn == before + 1
    assert (values(served), held(served)) == ([1, 2, 3], {1: 7, 2: 2})
    assert [(r.inserted, r.updated, r.deleted) for r in answer.results] == [
        (2, 0, 0),
        (2, 0, 0),
        (0, 0, 1),
        (1, 0, 0),
        (1, 0, 0),
    ]
    served.checkpoint()
    assert files(served) == []
    served.restart()
    assert (values(served), held(served)) == ([1, 2, 3], {1: 7, 2: 2})


def test_a_commit_by_parts_is_stored_as_one_by_a_message(tmp_path: Path) -> None:
    """Rows, offsets, prevs, changelog: byte for byte what the same changes in one message make."""
    seen = []
    for in_parts in (False, True):
        with Served(tmp_path / str(in_parts)) as served:
            served.lake.create_table("a.log", SCHEMA, buckets=3)
            served.lake.create_table("a.keyed", PAIRS, primary_key=["k"], buckets=3, merge="partial")
            changes = [log_rows(*range(50)), pairs(pb.UPSERT, *((i, i) for i in range(40)))]
            changes += [pairs(pb.DELETE, (3, 0), (99, 0)), pairs(pb.UPSERT, (3, 5), (4, 6), (3, 7))]
            changes += [pairs(pb.INSERT, (4, 1), (100, 1))]
            sent = uploaded(served, *changes) if in_parts else changes
            served.lake.transport.commit(request(sent))
            stream = served.lake.changes(["a.log", "a.keyed"], until="now", before_images=True)
            rows = [(batch.table, batch.to_arrow().drop_columns(["__timestamp"]).to_pylist()) for batch in stream]
            seen.append(rows)
    assert seen[0] == seen[1]


def test_a_part_is_committed_once_also_when_the_server_dies_before_it_is_removed(served: Served) -> None:
    named = uploaded(served, log_rows(1))
    first = served.lake.transport.commit(request(named))
    with pytest.raises(Conflict, match="committed before"):
        served.lake.transport.commit(request(named, producer="q"))
    for _ in range(2):
        served.kill()
        served.start()
        assert len(files(served)) == 1
        with pytest.raises(Conflict, match="committed before"):
            served.lake.transport.commit(request(named, producer="q"))
        assert served.lake.transport.commit(request(named)).token == first.token
    served.checkpoint()
    assert files(served) == []
    with pytest.raises(NotFound, match="upload its rows again"):
        served.lake.transport.commit(request(named, producer="q"))
    assert served.lake.transport.commit(request(named)).token == first.token
    assert values(served) == [1]


def test_registers_know_a_commit_of_parts_again(served: Served) -> None:
    named = uploaded(served, log_rows(1))
    opened = served.lake.transport.open_registers(pb.OpenRegistersRequest(registers=["r"]))
    move = pb.RegisterMove(register="r", epoch=opened.epoch, after="1")
    asked = pb.CommitRequest(changes=named, registers=[move], timeline=opened.timeline)
    first = served.lake.transport.commit(asked)
    served.checkpoint()
    again = served.lake.transport.commit(asked)
    assert (again.token, again.is_repeated, values(served)) == (first.token, True, [1])


def test_parts_wait_for_their_commit_over_restarts_and_go_by_their_age(served: Served) -> None:
    old = uploaded(served, log_rows(1))
    served.clock.advance(40)
    young = uploaded(served, log_rows(2))
    served.kill()
    served.start()
    served.clock.advance(30)
    served.run()
    assert len(files(served)) == 1
    with pytest.raises(NotFound, match="waited longer than 60 s"):
        served.lake.transport.commit(request(old))
    served.lake.transport.commit(request(young))
    assert values(served) == [2]


def test_a_clock_in_doubt_ages_no_part(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(part_seconds=60), believes_clock=False) as served:
        served.lake.create_table("a.log", SCHEMA)
        named = uploaded(served, log_rows(1))
        served.clock.jump(100_000)
        served.run()
        served.lake.transport.commit(request(named))
        assert values(served) == [1]


def test_parts_of_others_are_not_there(served: Served) -> None:
    (mine,) = uploaded(served, log_rows(1), owner="etl")
    with pytest.raises(NotFound, match="no part"):
        served.lake.transport.commit(request([mine]))
    assert served.lake.transport.drop_parts(pb.DropPartsRequest(parts=[mine.part])).dropped == 0
    asked = request([mine])
    asked.owner = "etl"
    served.lake.transport.commit(asked)
    assert values(served) == [1]


def test_number_and_bytes_of_parts_are_bounded_for_one_and_for_all(tmp_path: Path) -> None:
    limits = Limits(parts=4, parts_bytes=4096)
    with Served(tmp_path / "data", limits=limits) as served:
        served.lake.create_table("a.log", SCHEMA)

        def tries(owner: str, *rows: int) -> None:
            asked = pb.UploadPartRequest(change=log_rows(*rows), owner=owner)
            served.server.service.verbs["UploadPart"](asked)

        def refused(owner: str, *rows: int) -> str:
            with pytest.raises(Exhausted) as error:
                tries(owner, *rows)
            return error.value.message

        tries("etl", 1)
        tries("etl", 2)
        assert "etl would have more than 2 parts, one principal's part" in refused("etl", 3)
        assert "more than 2048 bytes of parts" in refused("bi", *range(400))
        assert "more than 4096 bytes of parts" in refused("", *range(600))
        tries("", 3)
        tries("", 4)
        assert "more than 4 parts" in refused("", 5)
        served.kill()
        served.start()
        assert "more than 4 parts" in refused("", 5)
        parts = [name.removesuffix(part_file.SUFFIX) for name in files(served)]
        drop_parts = served.server.service.verbs["DropParts"]
        assert drop_parts(pb.DropPartsRequest(parts=parts, owner="etl")).dropped == 2
        tries("", 5)
        assert len(files(served)) == 3
        assert b"lakestore_parts 3.0" in metrics.text(served.server.sources)


def test_a_part_is_checked_when_it_is_uploaded(served: Served) -> None:
    wrong = change("a.log", pb.APPEND, [pa.record_batch([pa.array(["x"])], names=["v"])])
    with pytest.raises(Invalid, match=r"a\.log"):
        uploaded(served, wrong)
    flipped = log_rows(1)
    flipped.crc32c ^= 1
    with pytest.raises(Invalid, match="checksum"):
        uploaded(served, flipped)
    with pytest.raises(NotFound, match=r"a\.none"):
        uploaded(served, change("a.none", pb.APPEND, [pa.record_batch([pa.array([1])], names=["v"])]))
    assert files(served) == []


def test_a_commit_names_its_parts_as_they_were_uploaded(served: Served) -> None:
    (named,) = uploaded(served, pairs(pb.UPSERT, (1, 1)))
    other = pb.Change()
    for field, value in (("kind", pb.DELETE), ("crc32c", named.crc32c ^ 1), ("rows", b"x"), ("want_rows", True)):
        other.CopyFrom(named)
        setattr(other, field, value)
        with pytest.raises(Invalid, match="part"):
            served.lake.transport.commit(request([other], producer="o"))
    with pytest.raises(Invalid, match="twice"):
        served.lake.transport.commit(request([named, named], producer="o"))
    other.CopyFrom(named)
    other.table = "a.log"
    with pytest.raises(LakestoreError):
        served.lake.transport.commit(request([other], producer="o"))
    served.lake.transport.commit(request([named]))
    assert held(served) == {1: 1}


def test_parts_of_a_dropped_table_are_refused_and_of_an_altered_one_follow_it(served: Served) -> None:
    keyed, first, second = uploaded(served, pairs(pb.UPSERT, (1, 1)), log_rows(1), log_rows(2))
    served.lake.table("a.log").alter(AddColumn("w", "int64", default=5, new_rows_only=True))
    served.lake.transport.commit(request([first]))
    assert served.lake.table("a.log").scan().to_arrow().to_pylist() == [{"v": 1, "w": 5}]
    served.lake.table("a.log").alter(DropColumn("v"))
    with pytest.raises(Invalid, match="'v'"):
        served.lake.transport.commit(request([second], 2))
    served.lake.drop_table("a.keyed")
    served.lake.create_table("a.keyed", PAIRS, primary_key=["k"])
    with pytest.raises(NotFound, match="dropped"):
        served.lake.transport.commit(request([keyed], 2))
    assert held(served) == {}


def test_a_damaged_part_is_refused_by_its_name_and_harms_no_other(served: Served) -> None:
    rows, head, whole = uploaded(served, log_rows(1), log_rows(2), log_rows(3))
    folder = served.engine.folder / part_file.FOLDER
    for part, at in ((rows, -40), (head, 70)):
        path = folder / part_file.name_of(part.part)
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    served.kill()
    served.start()
    for part in (rows, head):
        with pytest.raises(Corrupt, match=part.part):
            served.lake.transport.commit(request([part, whole]))
    served.lake.transport.commit(request([whole]))
    assert values(served) == [3]


def test_a_commit_is_bounded_in_rows_and_bytes_whatever_it_comes_as(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(commit_rows=100, commit_bytes=4096)) as served:
        served.lake.create_table("a.log", SCHEMA)
        many = uploaded(served, log_rows(*range(60)), log_rows(*range(60)))
        with pytest.raises(Invalid, match=r"120 rows, more than limits\.commit_rows=100"):
            served.lake.transport.commit(request(many))
        with pytest.raises(Invalid, match=r"limits\.commit_rows=100"):
            served.lake.transport.commit(request([log_rows(*range(101))]))
        long = uploaded(served, *[log_rows(*range(20)) for _ in range(12)])
        with pytest.raises(Invalid, match=r"limits\.commit_bytes=4096"):
            served.lake.transport.commit(request(long))
        assert values(served) == []
        served.lake.transport.commit(request(many[:1]))
        assert len(values(served)) == 60


def test_a_part_is_of_one_commit_under_way(served: Served) -> None:
    named = uploaded(served, log_rows(1))
    served.engine.parts.reserve([named[0].part], "")
    with pytest.raises(Conflict, match="another pending commit"):
        served.lake.transport.commit(request(named))
    served.clock.advance(100)
    served.run()
    assert served.lake.transport.drop_parts(pb.DropPartsRequest(parts=[named[0].part])).dropped == 0
    served.engine.parts.release([named[0].part])
    served.lake.transport.commit(request(named))
    assert values(served) == [1]


def test_one_of_many_commits_gets_a_part(served: Served) -> None:
    named, won = uploaded(served, log_rows(1)), list[int]()

    def commits(number: int) -> None:
        try:
            served.lake.transport.commit(request(named, producer=f"p{number}"))
        except Conflict:
            return
        won.append(number)

    threads = [threading.Thread(target=commits, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), values(served)) == (1, [1])


def test_a_refused_commit_leaves_its_parts(served: Served) -> None:
    kept = pairs(pb.UPSERT, (1, 1))
    kept.keep.append("v")
    named = uploaded(served, kept, log_rows(1))
    with pytest.raises(NothingToKeep):
        served.lake.transport.commit(request(named))
    assert values(served) == []
    served.lake.table("a.keyed").upsert([{"k": 1, "v": 9}])
    served.lake.transport.commit(request(named))
    assert (values(served), held(served)) == ([1], {1: 9})


def test_one_commit_that_fills_the_journal_is_followed_by_a_checkpoint(tmp_path: Path) -> None:
    """The record is longer than `journal_bytes`, and no turn of the loop comes behind it."""
    limits = Limits(journal_checkpoint_bytes=100_000, journal_bytes=200_000, queue_wait_ms=30_000)
    with Served(tmp_path / "data", limits=limits) as served:
        served.lake.create_table("a.log", SCHEMA)
        named = uploaded(served, *[log_rows(*range(20_000)) for _ in range(4)])
        served.lake.transport.commit(request(named))
        served.lake.table("a.log").append(pa.table({"v": [1]}))
        assert len(values(served)) == 80_001


def _address(served: Served) -> str:
    return served.server.about["grpc"]


def test_a_block_with_more_rows_than_a_message_is_one_commit(tmp_path: Path) -> None:
    limits = Limits(message_bytes=1 << 20, read_batch_bytes=1 << 18)
    with Served(tmp_path / "data", limits=limits, ports=True) as served, ls.connect(_address(served)) as lake:
        lake.create_table("a.log", SCHEMA, buckets=2)
        lake.create_table("a.keyed", PAIRS, primary_key=["k"], buckets=2)
        before = served.engine.view.lsn
        many = pa.array(range(150_000), pa.int64())
        with lake.commit() as commit:
            commit.upsert("a.keyed", pa.table({"k": many, "v": many}))
            commit.append("a.log", pa.table({"v": many}))
            commit.delete("a.keyed", pa.table({"k": many.slice(0, 70_000)}))
            commit.upsert("a.keyed", [{"k": 1, "v": -1}])
        assert served.engine.view.lsn == before + 1
        assert [(r.inserted, r.updated, r.deleted) for r in commit.results] == [
            (150_000, 0, 0),
            (150_000, 0, 0),
            (0, 0, 70_000),
            (1, 0, 0),
        ]
        assert (len(values(served)), len(held(served))) == (150_000, 80_001)
        tokens = [batch.token for batch in lake.changes(["a.log", "a.keyed"], until="now")]
        ends = [position_of(token).lsn for token in tokens]
        assert (len(ends) > 10, max(ends[:-1]) <= before, ends[-1]) == (True, True, before + 1)
        with lake.producer("named").commit("here") as commit:
            commit.append("a.log", pa.table({"v": many}))
        assert lake.producer("named").progress == "here"

        def keeps() -> None:
            with lake.commit() as commit:
                commit.append("a.log", pa.table({"v": many}))
                commit.upsert("a.keyed", pa.table({"k": many, "v": many}), keep=["v"])

        with pytest.raises(NothingToKeep) as error:
            keeps()
        assert [(each.change, each.rows) for each in error.value.changes] == [(1, (0, *range(2, 70_000)))]
        assert (len(values(served)), served.engine.parts.count) == (300_000, 0)


def test_a_block_that_fails_leaves_no_parts_and_an_old_server_gets_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(message_bytes=1 << 20)
    with Served(tmp_path / "data", limits=limits, ports=True) as served, ls.connect(_address(served)) as lake:
        lake.create_table("a.log", SCHEMA)
        many = pa.table({"v": pa.array(range(300_000), pa.int64())})
        found = []

        def fails() -> None:
            with lake.commit() as commit:
                commit.append("a.log", many)
                found.append(served.engine.parts.count)
                raise KeyError

        with pytest.raises(KeyError):
            fails()
        assert found[0] > 1
        assert (served.engine.parts.count, files(served)) == (0, [])
        monkeypatch.setattr(client_parts, "has_parts", lambda server: False)
        with pytest.raises(Invalid, match="one message of"), lake.commit() as commit:
            commit.append("a.log", many)
        assert values(served) == []


def test_blocks_in_process_and_in_asyncio_use_parts_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_parts, "MESSAGE_BYTES", 100_000)
    many = pa.table({"v": pa.array(range(30_000), pa.int64())})
    sizes, add = list[int](), served.engine.parts.store

    def counted(change: pb.Change, *given: Any) -> part_file.PartHead:
        sizes.append(len(change.rows))
        return add(change, *given)

    monkeypatch.setattr(served.engine.parts, "store", counted)
    before = served.engine.view.lsn
    with served.lake.commit() as commit:
        commit.append("a.log", many)

    async def asked() -> None:
        async with (
            aio.Lake(lambda: ls.Lake(local_transport(served.server.service), "aio"), 2) as lake,
            lake.commit() as commit,
        ):
            await commit.append("a.log", many)

    asyncio.run(asked())
    assert (len(values(served)), served.engine.view.lsn, len(sizes) >= 6 and max(sizes) < 100_000) == (
        60_000,
        before + 2,
        True,
    )


def test_parts_are_in_no_backup_and_a_folder_without_them_goes_on(served: Served, tmp_path: Path) -> None:
    named, left = uploaded(served, log_rows(1), log_rows(2))
    served.lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "copy")))
    assert not [path for path in (tmp_path / "copy").rglob("*") if part_file.FOLDER in path.parts[-2:]]
    served.lake.transport.commit(request([named]))
    served.kill()
    shutil.rmtree(served.engine.folder / part_file.FOLDER)  # as a restore leaves it, with the commit in the journal
    served.start()
    served.checkpoint()
    with pytest.raises(NotFound, match="the server was restored"):
        served.lake.transport.commit(request([left], 2))
    assert values(served) == [1]
