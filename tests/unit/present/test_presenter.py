"""Cuts of a table as PyIceberg reads them from what the presenter wrote."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakestore.errors import Internal, PlanExpired, PositionExpired, Unavailable
from lakestore.iceberg import manifest_entries, offset_cache, places, position_deletes, puffin
from lakestore.iceberg.cache import DerivedCache
from lakestore.iceberg.manifest_lists import read_list, write_list
from lakestore.iceberg.manifests import Entry, File, described, write_manifest
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.snapshots import steps
from lakestore_server.snapshots.builder import SnapshotBuilder
from lakestore_server.snapshots.figures import SnapshotFigures
from lakestore_server.snapshots.messages import Room
from tests.support.manifests import read_manifest
from tests.support.presenting import Entries, Presenting, check_structure, read, with_snapshot
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def presenting(tmp_path: Path) -> Iterator[Presenting]:
    with Served(tmp_path / "data") as served:
        (tmp_path / "lake").mkdir()
        yield Presenting(served, tmp_path / "lake")


def rows(ids: range | list[int], v: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids))})


def held(table: pa.Table) -> dict[int, str]:
    found = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert len(found) == table.num_rows
    return found


@pytest.mark.parametrize("form", [2, 3])
def test_a_cut_is_read_as_the_table_is(presenting: Presenting, form: int) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(100), "a"))
    assert held(presenting.rows("a.t", form=form)) == dict.fromkeys(range(100), "a")
    presenting.tier("a.t")
    table.upsert(rows(range(50, 120), "b"))
    table.delete(pa.table({"id": pa.array([0, 60], pa.int64())}))
    wanted = {i: "a" if i < 50 else "b" for i in range(120) if i not in (0, 60)}
    assert held(presenting.rows("a.t", form=form)) == wanted
    table.upsert(rows([60, 70], "c"))
    answer, _ = presenting.present("a.t", form=form)
    check_structure(answer, form)
    assert held(presenting.rows("a.t", form=form)) == wanted | {60: "c", 70: "c"}


def test_no_path_is_used_twice_in_a_run(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    paths: list[str] = []
    for number in range(3):
        table.upsert(rows([number], "a"))
        answer, document = presenting.present("a.t")
        paths += [answer.manifest_list, *(entry.file.path for _, entry in Entries.of(answer).data)]
        presenting.presenter.forget([document["current-snapshot-id"]])
    assert len(set(paths)) == len(paths), "engines keep files by path"
    assert not [path for path in presenting.folder.rglob("run-0/*") if path.is_file()]


def test_each_row_is_fetched_once_for_all_cuts_and_forms(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(9), "a"))
    presenting.tier("a.t")
    presenting.fetched.clear()
    old = str(table.upsert(rows(range(20), "b")))
    table.upsert(rows(range(5), "c"))
    for at, form in (("", 2), ("", 3), (old, 2), (old, 3), ("", 2)):
        assert held(presenting.rows("a.t", at, form)) == dict.fromkeys(range(20), "b") | (
            {} if at else dict.fromkeys(range(5), "c")
        )
    assert [(request.start, request.end) for request in presenting.fetched] == [(9, 34)]
    table.upsert(rows(range(30, 70), "d"))
    presenting.rows("a.t")
    assert [(request.start, request.end) for request in presenting.fetched[1:]] == [(9, 74)], "small steps add up"


def test_steps_serve_newer_versions_but_not_older_ones_and_not_columns_with_a_value_in_old_rows(
    presenting: Presenting,
) -> None:
    table = presenting.served.lake.create_table(
        "a.t", SCHEMA, primary_key=["id"], buckets=1, lake={"format_version": 3}
    )
    table.upsert(rows([100], "a"))
    presenting.tier("a.t", 3)
    presenting.fetched.clear()
    first = str(table.upsert(rows(range(40), "a")))
    presenting.present("a.t", form=3)
    table.alter(add={"x": pa.int32()})
    table.upsert(pa.table({"id": pa.array([100], pa.int64()), "v": ["b"], "x": pa.array([1], pa.int32())}))
    presenting.present("a.t", form=3)
    assert [(request.start, request.schema_id) for request in presenting.fetched] == [(1, 0), (41, 1)]
    table.alter(add={"y": pa.int32()}, default={"y": 7})
    assert set(presenting.rows("a.t", form=3)["y"].to_pylist()) == {7}
    assert [(request.start, request.end, request.schema_id) for request in presenting.fetched[2:]] == [(1, 42, 2)]
    (kept,) = presenting.presenter._tables.values()
    presenting.presenter.forget(list(kept.answers))
    table.upsert(rows([101], "c"))
    presenting.present("a.t", form=3)
    assert held(presenting.rows("a.t", first, 3)) == dict.fromkeys([*range(40), 100], "a")
    assert presenting.fetched[-1].schema_id == 0


def test_a_write_that_fails_anywhere_leaves_nothing_and_the_next_try_is_right(
    presenting: Presenting, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = {"partition_by": ["bucket(2, id)"]}
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2, lake=lake)
    table.upsert(rows(range(30), "a"))
    presenting.tier("a.t")
    table.upsert(rows(range(20), "b"))
    kept, document = presenting.present("a.t")
    table.upsert(rows(range(5, 25), "c"))
    real_create = places.create
    left = 0

    def full(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def create(location: str) -> object:
        full()
        return real_create(location)

    monkeypatch.setattr("lakestore.iceberg.places.create", create)
    before = {path for path in presenting.folder.rglob("run-0/*")}
    for writes in range(40):
        left = writes
        try:
            answer, document = presenting.present("a.t")
        except Unavailable as error:
            assert "No space left" in error.message
            assert "free space" in error.message
            assert {path for path in presenting.folder.rglob("run-0/*")} == before
        else:
            break
    else:
        pytest.fail("it never succeeds")
    assert writes > 5
    wanted = dict.fromkeys(range(30), "a") | dict.fromkeys(range(20), "b") | dict.fromkeys(range(5, 25), "c")
    assert held(read(document, presenting.folder)) == wanted
    assert answer.manifest_list != kept.manifest_list


def test_a_fetch_that_breaks_off_leaves_nothing(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(30), "a"))
    request, _, _ = presenting.request("a.t")

    def broken(fetched: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        yield from presenting.fetch(fetched)
        if fetched.bucket == 1:
            raise PlanExpired("the lease is over")

    with pytest.raises(PlanExpired):
        presenting.presenter.present(request, broken)
    assert not presenting.presenter._tables
    assert held(presenting.rows("a.t")) == dict.fromkeys(range(30), "a")


def test_a_table_that_was_never_tiered_is_read_though_its_log_start_moves(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(30), "a"))
    assert presenting.present("a.t")[0].deleted_rows == 0
    table.upsert(rows(range(10, 40), "b"))
    request, _, document = presenting.request("a.t")

    def moved(fetched: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        if not fetched.live_only:
            raise PositionExpired("changes are kept from a later offset on")
        yield from presenting.fetch(fetched)

    answer = presenting.presenter.present(request, moved)
    assert answer.deleted_rows == 0
    found = held(read(with_snapshot(document, request, answer), presenting.folder))
    assert found == dict.fromkeys(range(10), "a") | dict.fromkeys(range(10, 40), "b")


def test_an_older_cut_of_a_table_that_was_never_tiered_has_the_rows_that_lived_then(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    old = str(table.upsert(rows(range(30), "a")))
    table.upsert(rows(range(10, 40), "b"))
    for _ in range(2):
        assert held(presenting.rows("a.t")) == dict.fromkeys(range(10), "a") | dict.fromkeys(range(10, 40), "b")
        assert held(presenting.rows("a.t", old)) == dict.fromkeys(range(30), "a")


@pytest.mark.parametrize("form", [2, 3])
def test_rows_of_a_log_table_that_came_after_the_cut_are_hidden(presenting: Presenting, form: int) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, buckets=2)
    for number in range(6):
        token = str(table.append(rows(range(10 * number, 10 * number + 10), "a")))
        if number == 2:
            cut = token
    presenting.tier("a.t", form)
    answer = presenting.plan("a.t", cut)
    part, newest = answer.tables[0], presenting.plan("a.t").tables[0]
    part.snapshot_id, part.lake_definition, part.lake_beyond = newest.snapshot_id, newest.lake_definition, True
    part.tier.CopyFrom(newest.tier)
    for bucket in part.buckets:
        bucket.tier_point = bucket.head
    request, _, document = presenting.request("a.t", form=form)
    request = replace(request, cut_id=77, plan=answer.SerializeToString())
    shown = presenting.presenter.present(request, presenting.fetch)
    assert shown.rows == 0
    assert held(read(with_snapshot(document, request, shown), presenting.folder)) == dict.fromkeys(range(30), "a")


def test_a_base_that_lacks_a_dead_row_or_has_others_is_an_error(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(10), "a"))
    older = presenting.bases[presenting.tier("a.t")]
    table.upsert(rows(range(10, 20), "a"))
    newest = presenting.tier("a.t")
    presenting.bases[newest] = replace(older, snapshot_id=newest)
    with pytest.raises(Internal, match="has 20 live rows at the cut, but 10 would be shown"):
        presenting.present("a.t")
    table.upsert(rows(range(5, 15), "b"))
    with pytest.raises(Internal, match=r"10 rows below tier point \[20\] have died, but only 5 of them were found"):
        presenting.present("a.t")


def test_hot_rows_that_are_not_the_logs_are_an_error(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows([0], "a"))
    presenting.tier("a.t")
    table.upsert(rows(range(10), "a"))
    request, _, _ = presenting.request("a.t")

    def twice(fetched: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        for batch in presenting.fetch(fetched):
            place = batch.schema.get_field_index("__offset")
            yield batch.set_column(place, "__offset", pc.add(batch.column(place), 1))

    with pytest.raises(Internal, match="bucket 0 would not show exactly its live rows"):
        presenting.presenter.present(request, twice)


@pytest.mark.parametrize("small", [False, True])
def test_indexes_and_manifests_of_base_files_outlive_the_process(
    presenting: Presenting, monkeypatch: pytest.MonkeyPatch, *, small: bool
) -> None:
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", 1_000 if small else 1)
    monkeypatch.setattr(offset_cache, "BUNDLES", 1)
    room, folder = Room(str(presenting.folder / "cache")), presenting.folder / "cache"
    presenting.presenter = SnapshotBuilder("run-0", room=room)
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(10), "a"))
    presenting.tier("a.t", rewrite=True)
    table.upsert(rows(range(5), "b"))
    wanted = dict.fromkeys(range(10), "a") | dict.fromkeys(range(5), "b")
    assert held(presenting.rows("a.t")) == wanted
    kept = sorted(folder.rglob("*.value"))
    assert {each.parent.name for each in kept} == {presenting.served.state("a.t").table.uuid}
    assert len(kept) == 2, "an index and a manifest"

    def read_again(*_: object) -> None:
        raise AssertionError("a base file was read again")

    presenting.presenter = SnapshotBuilder("run-1", room=room)
    with monkeypatch.context() as patched:
        patched.setattr(offset_cache, "read_offsets", read_again)
        patched.setattr(manifest_entries, "_Records", read_again)
        assert held(presenting.rows("a.t")) == wanted
    for each in kept:
        each.write_bytes(each.read_bytes()[:-3] + b"xyz")
    presenting.presenter = SnapshotBuilder("run-2", room=room)
    assert held(presenting.rows("a.t")) == wanted
    presenting.presenter = SnapshotBuilder("run-3", room=room)
    assert held(presenting.rows("a.t")) == wanted
    before = set(folder.rglob("*.value"))
    assert len(before) == 2, "both are made again"
    presenting.presenter.tidy()
    presenting.tier("a.t", rewrite=True)
    table.upsert(rows([0], "c"))
    wanted[0] = "c"
    assert held(presenting.rows("a.t")) == wanted
    presenting.presenter.tidy()
    after = set(folder.rglob("*.value"))
    assert len(after - before) == (1 if small else 2), "those of the rewritten snapshot; a bundle is the same file"
    assert len(before - after) == (1 if small else 2)
    DerivedCache(folder).remove_groups(["another"])
    assert not list(folder.iterdir())
    table.upsert(rows([1], "d"))
    assert held(presenting.rows("a.t")) == wanted | {1: "d"}


@pytest.mark.parametrize("ended", ["process", "cuts"])
def test_values_of_files_that_left_the_lake_are_removed_without_the_base_before(
    presenting: Presenting, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", 1)
    room, folder = Room(str(presenting.folder / "cache")), presenting.folder / "cache"
    presenting.presenter = SnapshotBuilder("run-0", room=room)
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    values: list[set[Path]] = []
    for number in range(2):
        table.upsert(rows(range(10), f"a{number}"))
        presenting.tier("a.t", rewrite=True)
        table.upsert(rows(range(5), f"b{number}"))
        presenting.rows("a.t")
        presenting.presenter.tidy()
        values.append(set(folder.rglob("*.value")))
        if ended == "process":
            presenting.presenter = SnapshotBuilder(f"run-{number + 1}", room=room)
        else:
            presenting.presenter.forget(list(next(iter(presenting.presenter._tables.values())).answers))
            assert not presenting.presenter._tables
    assert [len(each) for each in values] == [2, 2], "an index and a manifest of one snapshot"
    assert not values[0] & values[1]


def test_answers_and_status_say_which_indexes_were_read_and_went_for_lack_of_room(
    presenting: Presenting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", 1)
    room = Room(str(presenting.folder / "cache"), cache_bytes=1, offsets_memory=1)
    presenting.presenter = SnapshotBuilder("run-0", room=room)
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(30), "a"))
    presenting.tier("a.t", rewrite=True)
    figures = SnapshotFigures()
    for number in range(3):
        table.upsert(rows(range(number, number + 9), "b"))
        answer, _ = presenting.present("a.t")
        figures.presented(0.1, answer)
        again, _ = presenting.present("a.t")
        figures.presented(0.1, again)
        assert (again.offsets_read, again.offsets_evicted) == (0, 0), "it is told once"
    kept = presenting.presenter._kept.figures
    assert (figures.offsets_read, figures.offsets_evicted) == (kept.read, kept.evicted)
    assert kept.evicted > 0


def test_an_answer_says_what_was_written_for_it(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(30), "a"))
    presenting.tier("a.t", 3)

    def on_disk() -> int:
        return sum(path.stat().st_size for path in presenting.folder.rglob("run-0/*"))

    before = 0
    for number in range(3):
        table.upsert(rows(range(number, number + 9), "b"))
        answer, _ = presenting.present("a.t", form=3)
        assert answer.written_bytes == on_disk() - before
        assert (answer.file_bytes == on_disk()) == (number == 0)
        before = on_disk()


@pytest.mark.parametrize("form", [2, 3])
def test_deletes_of_many_cuts_are_few_files_of_one_data_file_each(presenting: Presenting, form: int) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(60), "a"))
    presenting.tier("a.t", form)
    wanted = dict.fromkeys(range(60), "a")
    for number in range(20):
        table.upsert(rows([number, number + 30], "b"))
        wanted |= {number: "b", number + 30: "b"}
        answer, document = presenting.present("a.t", form=form)
        check_structure(answer, form)
        of_base = [
            entry for _, entry in Entries.of(answer).deletes if "/tiered/" in str(entry.file.referenced_data_file)
        ]
        assert len(of_base) <= (4 if form == 2 else 1)
        assert sum(entry.file.rows for entry in of_base) == 2 * number + 2
    assert held(read(document, presenting.folder)) == wanted


def test_deletes_of_a_foreign_base_stay_and_are_in_the_vector_of_a_data_file_that_gets_one(
    presenting: Presenting,
) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(30), "a"))
    number = presenting.tier("a.t", rewrite=True)
    base = presenting.bases[number]
    manifests = read_list(places.read(base.manifest_list), base.manifest_list)
    first, second = (entry.file for entry in read_manifest(places.read(manifests[0].path), manifests[0]))
    gone = {path: [0, 3] for path in (first.path, second.path)}
    deleted = {
        number
        for file in (first, second)
        for number in pq.read_table(file.path.removeprefix("file://"))["id"].take(pa.array([0, 3])).to_pylist()
    }
    location = f"file://{presenting.folder}/rewritten/deletes.parquet"
    columns = [pa.array([path for path, held in gone.items() for _ in held]), pa.array([*gone[first.path]] * 2)]
    pq.write_table(pa.table(columns, schema=position_deletes.SCHEMA), location.removeprefix("file://"))
    shared = File(content=1, path=location, format="PARQUET", spec_id=first.spec_id, partition={}, rows=4, bytes=1)
    equal = replace(shared, content=2, path=f"{location}.equality", equality_ids=(1,), rows=1)
    listed = list(manifests)
    _, _, document = presenting.request("a.t")
    for name, file in (("shared", shared), ("equal", equal)):
        entries = [Entry(1, 5, base.sequence, base.sequence, file)]
        said = {"content": 1, "schema": document["schemas"][0], "spec": document["partition-specs"][first.spec_id]}
        data = write_manifest(entries, **said, format_version=2)
        places.write(f"{location}.{name}.avro", data)
        listed.append(described(f"{location}.{name}.avro", len(data), entries, **said, snapshot_id=5, sequence=1))
        made = write_list(listed, format_version=2, snapshot_id=5, parent_id=None, sequence=base.sequence)
        places.write(f"{location}.{name}.list", made)
        presenting.bases[number] = replace(base, manifest_list=f"{location}.{name}.list")
        if name == "shared":
            wanted = {number: "a" for number in range(30) if number not in deleted}
            assert held(presenting.rows("a.t")) == wanted
            token = table.upsert(rows([min(set(range(15)) - deleted)], "b"))
            for form in (2, 3):
                assert held(presenting.rows("a.t", form=form)) == wanted | {min(set(range(15)) - deleted): "b"}
            answer, _ = presenting.present("a.t", form=3)
            (vector,) = [entry.file for _, entry in Entries.of(answer).deletes if entry.file.format == "PUFFIN"]
            assert vector.rows == 3, "the old position deletes of the file are in its vector"
    assert token
    answer, _ = presenting.present("a.t", form=3)
    paths = {each.path for each in read_list(places.read(answer.manifest_list), "list")}
    assert {each.path for each in listed} <= paths, "manifests of the base stay as they are"


def test_vectors_that_stay_in_a_rewritten_manifest_name_their_data_file_by_bounds(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(30), "a"))
    number = presenting.tier("a.t", rewrite=True)
    base = presenting.bases[number]
    manifests = read_list(places.read(base.manifest_list), base.manifest_list)
    files = [entry.file for entry in read_manifest(places.read(manifests[0].path), manifests[0])][:2]
    files.append(replace(files[0], path="file:///of-a-file-that-is-gone"))  # so that nobody counts the base's rows
    location = f"file://{presenting.folder}/rewritten/vectors.puffin"
    data, spots = puffin.puffin([(file.path, np.array([0, 3])) for file in files])
    places.write(location, data)
    vectors = [
        File(
            content=1, path=location, format="PUFFIN", spec_id=file.spec_id, partition={}, rows=2, bytes=len(data),
            referenced_data_file=file.path, content_offset=offset, content_size=size,
        )
        for file, (offset, size) in zip(files, spots, strict=True)
    ]  # fmt: skip
    _, _, document = presenting.request("a.t")
    said = {"content": 1, "schema": document["schemas"][0], "spec": document["partition-specs"][files[0].spec_id]}
    entries = [Entry(1, 5, base.sequence, base.sequence, vector) for vector in vectors]
    data = write_manifest(entries, **said, format_version=3)
    places.write(f"{location}.avro", data)
    listed = [*manifests, described(f"{location}.avro", len(data), entries, **said, snapshot_id=5, sequence=1)]
    made = write_list(listed, format_version=3, snapshot_id=5, parent_id=None, sequence=base.sequence, first_row_id=0)
    places.write(f"{location}.list", made)
    presenting.bases[number] = replace(base, manifest_list=f"{location}.list", format=3)
    held_by_first = pq.read_table(files[0].path.removeprefix("file://"))["id"].to_pylist()
    table.upsert(rows([held_by_first[1]], "b"))
    answer, _ = presenting.present("a.t", form=3)
    found = {entry.file.referenced_data_file: entry.file for _, entry in Entries.of(answer).deletes}
    assert [found[file.path].rows for file in files] == [3, 2, 2]
    assert found[files[1].path].path == location
    assert found[files[1].path].metrics.lower == {position_deletes.PATH_ID: files[1].path.encode()}


def test_a_vector_that_hides_what_a_later_cut_shows_is_in_no_file_that_the_later_cut_reads(
    presenting: Presenting,
) -> None:
    """PyIceberg takes every vector of a file that it reads, also those that no manifest names any more."""
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(10), "a"))
    presenting.tier("a.t")
    # Only the first commit hides a row of the base, whose vector stays in the file that it was written to.
    tokens = [str(table.upsert(rows([0, 20] if not number else [20 + number], "b"))) for number in range(4)]
    presenting.rows("a.t", form=3)  # one step for all of them
    for number, token in enumerate(tokens):
        wanted = {**dict.fromkeys(range(10), "a"), 0: "b", **dict.fromkeys(range(20, 21 + number), "b")}
        assert held(presenting.rows("a.t", at=token, form=3)) == wanted


def test_small_steps_merge_beside_the_answers_and_a_merge_that_nobody_waits_for_leaves_no_files(
    presenting: Presenting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ABSORBED_OFFSETS_MAX", 0)
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(30), "a"))
    presenting.tier("a.t")
    wanted = dict.fromkeys(range(30), "a")

    def presented(last: int) -> int:
        for number in range(last - 4, last):
            table.upsert(rows([number, number + 1], "b"))
            answer, document = presenting.present("a.t")
        assert held(read(document, presenting.folder)) == wanted | dict.fromkeys(range(last + 1), "b")
        presenting.presenter.tidy()
        return answer.data_files

    assert presented(4) == 4
    running = presenting.presenter._merger._running
    assert running is not None
    running.files.result()
    assert presented(8) == 5
    given_up = presenting.presenter._merger._running
    assert given_up is not None
    (kept,) = presenting.presenter._tables.values()
    presenting.presenter.forget(list(kept.answers))
    given_up.files.exception()  # its parts may be gone under it
    presenting.presenter.close()
    assert not list(presenting.folder.rglob("run-0/*"))


@pytest.mark.parametrize("form", [2, 3])
def test_a_build_gives_signs_of_life_while_it_reads_delete_files(presenting: Presenting, form: int) -> None:
    """A slow store may take seconds for each file, and 60 s of silence end the process."""
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
    table.upsert(rows(range(600), "a"))
    presenting.tier("a.t", rewrite=True)
    presenting.present("a.t", form=form)
    for number in range(6):
        table.upsert(rows(range(number, 600, 6), f"b{number}"))
        if number == 2:
            presenting.tier("a.t", form)
        signs: list[int] = []
        with at_yield_points(lambda: signs.append(1)):  # noqa: B023
            answer, _ = presenting.present("a.t", form=form)
    deletes = {entry.file.referenced_data_file for _, entry in Entries.of(answer).deletes}
    assert len(deletes) >= 40
    assert len(signs) >= 30, "about that many data files have rows of the last round"
