"""Loads of files into tables of a server in this process: what goes in, where they go on, and what they refuse."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import lakestore as ls
from lakestore.cli.row_files import LINES, Output
from lakestore.client.named_writes import NamedWrites
from lakestore.errors import Conflict, Fenced, Invalid
from lakestore.kafka.events import Encoder
from lakestore.loading import reading as sizes
from lakestore.loading import texts
from lakestore.loading.files import Stdin, source_of
from lakestore.loading.load import Load, LoadStopped, RefusedRecord
from lakestore.loading.reading import Options
from tests.support.loading import load
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(9, 2))])
Lake = ls.Lake


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("loads")) as made:
        yield made


@pytest.fixture
def lake(served: Served, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake, with small blocks and commits."""
    for module in (sizes, texts):
        monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    monkeypatch.setattr(texts, "BLOCK_BYTES", 150)
    for table in served.lake.tables():
        served.lake.drop_table(table.name)
    for producer in served.lake.producers():
        served.lake.drop_producer(producer.name)
    return served.lake


@pytest.fixture
def log(lake: Lake) -> str:
    return lake.create_table("a.log", SCHEMA, buckets=1).name


def _ids(lake: Lake, table: str) -> list[int]:
    return sorted(lake.table(table).scan(columns=["id"]).to_arrow().column("id").to_pylist())


def _csv(path: Path, ids: Any) -> Path:
    path.write_text("id,name,amount\n" + "".join(f"{i},n{i},{i}.50\n" for i in ids))
    return path


def test_a_file_is_loaded_once_and_what_is_added_to_it_then(lake: Lake, log: str, tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", range(40))
    assert load(lake, log, path).rows == 40
    again = load(lake, log, path)
    assert (again.rows, again.files, again.progress.rows) == (0, 0, 40)
    with path.open("a") as file:
        file.write("40,n,1\n41,n,1")
    assert load(lake, log, path).rows == 2
    assert _ids(lake, log) == list(range(42))
    with path.open("a") as file:
        file.write("\n42,n,1\n")
    done = load(lake, log, path)
    assert (done.rows, done.progress.place.line) == (1, 44)
    assert load(lake, log, path, again=True).rows == 43
    assert len(_ids(lake, log)) == 86
    (producer,) = lake.producers()
    assert producer.name == f"write a.log {path}"
    assert json.loads(producer.progress[: producer.progress.index(',"at"')] + "}")["line"] == 44


def _stopper(made: Load) -> Callable[[int], None]:
    return lambda _: made.stop()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow", "csv.gz", "jsonl.zst"])
def test_a_load_that_stops_anywhere_goes_on_there(
    lake: Lake, log: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{kind}"
    rows = pa.table({"id": range(40), "name": ["é\n"] * 40, "amount": [None] * 40})
    if "parquet" in kind:
        pq.write_table(rows, path, row_group_size=9)
    elif "arrow" in kind:
        with pa.ipc.new_file(path, rows.schema) as sink:
            sink.write_table(rows, 9)
    else:
        quoted = "".join(f'{i},"é\n",\n' for i in range(40))
        lines = "".join(json.dumps({"id": i, "name": "é\n"}) + "\n" for i in range(40))
        text = ("id,name,amount\n" + quoted if "csv" in kind else lines).encode()
        packed = {"gz": gzip.compress(text), "zst": zstandard.compress(text)}
        path.write_bytes(packed.get(kind.rpartition(".")[2], text))
    for _ in range(20):
        made = Load(lake, lake.table(log).definition, source_of(str(path)))
        monkeypatch.setattr(made, "_on_rows", _stopper(made))
        try:
            made.run()
        except LoadStopped:
            continue
        if not made.rows:
            break
    else:
        pytest.fail("the load never ended")
    assert _ids(lake, log) == list(range(40))
    assert set(lake.table(log).scan().to_arrow().column("name").to_pylist()) == {"é\n"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "id,name,amount\n9" + text[16:], "is another file than the one that was loaded"),
        (lambda text: text[:-1], "changed before line"),
        (lambda text: f"{text[:1100]}x{text[1101:]}", "changed before line"),
        (lambda text: text + "9", "line 101 was loaded as the last one, and goes on now"),
    ],
)
def test_a_file_that_changed_behind_the_place_is_refused(
    lake: Lake, log: str, tmp_path: Path, change: Any, says: str
) -> None:
    path = _csv(tmp_path / "a.csv", range(100))
    path.write_text(path.read_text()[:-1])
    load(lake, log, path)
    path.write_text(change(path.read_text()))
    with pytest.raises(Conflict, match=says):
        load(lake, log, path)
    assert len(_ids(lake, log)) == 100


def test_another_parquet_file_of_the_name_is_refused_and_a_new_table_begins_anew(
    lake: Lake, log: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    load(lake, log, path)
    pq.write_table(pa.table({"id": [1, 2]}), path)
    with pytest.raises(Conflict, match="another file"):
        load(lake, log, path)
    lake.drop_table(log)
    lake.create_table(log, SCHEMA, buckets=1)
    assert load(lake, log, path).rows == 2


def test_files_of_a_folder_are_loaded_in_order_and_new_ones_later(lake: Lake, log: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (2, 1):
        _csv(folder / f"{number}.csv", range(10 * number, 10 * number + 10))
    (folder / "_hidden.csv").write_text("x")
    (folder / "notes.txt").write_text("x")
    assert (first := load(lake, log, folder)).files == 2
    assert first.progress.file.endswith("2.csv")
    _csv(folder / "0.csv", range(10))
    pq.write_table(pa.table({"id": [99]}), folder / "3.parquet")
    assert load(lake, log, folder).rows == 11
    assert load(lake, log, folder).rows == 0
    assert load(lake, log, str(folder / "[0-9].csv")).rows == 30, "a glob is another source"
    _csv(folder / "1.csv", range(5))
    with pytest.raises(Conflict, match=r"1.csv changed since it was loaded"):
        load(lake, log, folder)


def test_a_file_that_was_begun_is_ended_before_a_new_one_is_begun(lake: Lake, log: str, tmp_path: Path) -> None:
    """One that comes later, and is sorted before it; and one that is away for a time."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (1, 2):
        _csv(folder / f"{number}.csv", range(20 * number, 20 * number + 20))
    made = Load(lake, lake.table(log).definition, source_of(str(folder)))
    made._on_rows = lambda rows: made.stop() if made.rows >= 27 else None
    with pytest.raises(LoadStopped):
        made.run()
    _csv(folder / "0.csv", range(20))
    assert made.rows + load(lake, log, folder).rows == 60
    assert _ids(lake, log) == list(range(60))
    assert load(lake, log, folder).rows == 0

    begun = _csv(folder / "3.csv", range(60, 80))
    made = Load(lake, lake.table(log).definition, source_of(str(folder)))
    made._on_rows = lambda rows: made.stop()
    with pytest.raises(LoadStopped):
        made.run()
    begun.rename(tmp_path / "3.csv")
    _csv(folder / "4.csv", range(80, 90))
    assert load(lake, log, folder).rows == 10
    (tmp_path / "3.csv").rename(begun)
    with pytest.raises(Conflict, match=r"3.csv changed since it was loaded"):
        load(lake, log, folder)


def test_blank_lines_over_a_whole_block_are_passed(lake: Lake, log: str, tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", range(8))
    with path.open("a") as file:
        file.write("\n" * 500)
        file.writelines(f"{i},n{i},{i}.50\n" for i in range(8, 30))
    made = Load(lake, lake.table(log).definition, source_of(str(path)))
    made._on_rows = lambda rows: made.stop() if made.rows > 14 else None
    with pytest.raises(LoadStopped):
        made.run()
    assert made.rows + load(lake, log, path).rows == 30
    assert _ids(lake, log) == list(range(30))


def test_bad_rows_are_named_and_what_is_before_them_is_committed(lake: Lake, log: str, tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", range(20))
    path.write_text(path.read_text() + '20,"a\nb",1\n21,x,1.234\n22,x,1\n')
    made = Load(lake, lake.table(log).definition, source_of(str(path)))
    with pytest.raises(RefusedRecord, match=r"a.csv, line 24: column 'amount': '1.234' is no decimal\(9,2\)"):
        made.run()
    assert (made.rows, made.progress.place.line, _ids(lake, log)) == (21, 23, list(range(21)))
    path.write_text(path.read_text().replace("1.234", "1.23"))
    assert load(lake, log, path).rows == 2
    assert _ids(lake, log) == list(range(23))


def _broken(path: Path, rows: int) -> tuple[list[int], list[int]]:
    """A file in which rows are bad here and there; ids of good rows, lines of bad ones."""
    good, bad = [], []
    with path.open("w") as file:
        for i in range(rows):
            if i % 5 in (1, 2) or i >= rows - 12:
                bad.append(i + 1)
                file.write(['{"id": "x"}\n', '{"id": 1, "nam": 2}\n', "no\n"][i % 3])
            else:
                good.append(i)
                file.write(json.dumps({"id": i}) + "\n")
    return good, bad


def test_bad_rows_are_kept_once_however_often_the_load_breaks(
    lake: Lake, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process dies between the file of bad rows and the commit."""
    path, kept = tmp_path / "a.jsonl", tmp_path / "bad.jsonl"
    good, bad = _broken(path, 100)
    calls = 0
    whole = Load._sent

    def sent(self: Load, *said: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise KeyboardInterrupt
        whole(self, *said)

    monkeypatch.setattr(Load, "_sent", sent)
    for _ in range(100):
        try:
            load(lake, log, path, skip_bad=kept)
            break
        except KeyboardInterrupt:
            continue
    assert _ids(lake, log) == good
    told = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [each["line"] for each in told] == bad
    assert {tuple(each) for each in told} == {("file", "line", "reason", "text")}
    monkeypatch.undo()
    assert load(lake, log, path, skip_bad=kept).rows == 0
    assert len(kept.read_text().splitlines()) == len(bad)


def test_a_file_of_bad_rows_that_was_changed_is_not_cut(lake: Lake, log: str, tmp_path: Path) -> None:
    path, kept = tmp_path / "a.jsonl", tmp_path / "bad.jsonl"
    path.write_text('{"id": 1}\nno\n{"id": 2}\n')
    load(lake, log, path, skip_bad=kept)
    with kept.open("a") as file:
        file.write("mine\n")
    with pytest.raises(Conflict, match="has more behind what this load wrote"):
        load(lake, log, path, skip_bad=kept)
    kept.write_text("")
    with pytest.raises(Conflict, match="fewer than this load wrote"):
        load(lake, log, path, skip_bad=kept)
    assert load(lake, log, path, skip_bad=tmp_path / "other.jsonl").rows == 0


def test_more_bad_rows_than_wanted_end_a_load(lake: Lake, log: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good, bad = _broken(path, 100)
    with pytest.raises(RefusedRecord, match=rf"line {bad[10]}: .*more than 10 records are refused"):
        load(lake, log, path, skip_bad=tmp_path / "bad.jsonl", max_bad=10)
    load(lake, log, path, skip_bad=tmp_path / "bad.jsonl")
    assert _ids(lake, log) == good


def test_rows_that_only_the_server_refuses_are_found(lake: Lake, tmp_path: Path) -> None:
    """A key that is too long, in the middle of a commit."""
    keyed = lake.create_table("a.keyed", pa.schema([("k", pa.string()), ("v", pa.int64())]), primary_key=["k"]).name
    path = tmp_path / "a.jsonl"
    lines = [{"k": f"k{i}" if i != 17 else "k" * 100_000, "v": i} for i in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RefusedRecord, match=r"a.jsonl, line 18: .*key"):
        load(lake, keyed, path)
    load(lake, keyed, path, skip_bad=tmp_path / "bad.jsonl")
    assert lake.table(keyed).scan().count() == 29
    (bad,) = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert bad["line"] == 18


def test_two_loads_of_one_source_fence_each_other(lake: Lake, log: str, tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", range(40))
    definition = lake.table(log).definition
    first = Load(lake, definition, source_of(str(path)))
    second = Load(lake, definition, source_of(str(path)))
    first._on_rows = lambda _: second.run() if not second.files else None
    with pytest.raises(Fenced, match="another load of"):
        first.run()
    assert _ids(lake, log) == list(range(40))


CHANGES = [
    ("I", 1, "a"), ("i", 2, "b"), ("+U", 1, "c"), ("-U", 2, "b"), ("+u", 2, "d"), ("delete", 1, None),
    ("INSERT", 3, "e"), ("-D", 3, None), ("c", 3, "f"), ("r", 4, "g"), ("u", 4, "h"), ("d", 2, None), ("D", 9, None),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_file_of_changes_is_applied_in_order(lake: Lake, tmp_path: Path, kind: str) -> None:
    keyed = lake.create_table("a.keyed", SCHEMA, primary_key=["id"]).name
    path = tmp_path / f"a.{kind}"
    rows = [{"op": op, "id": key, "name": name} for op, key, name in CHANGES]
    if kind == "csv":
        path.write_text("op,id,name\n" + "".join(f"{r['op']},{r['id']},{r['name'] or ''}\n" for r in rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    options = Options(op_column="op")
    load(lake, keyed, path, options=options)
    found = lake.table(keyed).scan(columns=["id", "name"]).to_arrow().sort_by("id").to_pylist()
    assert found == [{"id": 3, "name": "f"}, {"id": 4, "name": "h"}]
    (tmp_path / "b.jsonl").write_text('{"id": 1, "op": "?"}\n')
    with pytest.raises(RefusedRecord, match=r"line 1: column 'op': '\?' is not an insert, update or delete"):
        load(lake, keyed, tmp_path / "b.jsonl", options=options)


def test_changes_of_a_table_make_the_table_again(lake: Lake, tmp_path: Path) -> None:
    """As rows with __change, and as Debezium's events with and without their schema."""
    kinds = [("a", pa.timestamp("us")), ("b", pa.timestamp("us", "UTC")), ("c", pa.date32()), ("d", pa.time64("us")),
             ("e", pa.decimal128(9, 2)), ("f", pa.list_(pa.string())), ("g", pa.bool_())]  # fmt: skip
    schema = pa.schema([("id", pa.int64()), *kinds])
    table = lake.create_table("a.keyed", schema, primary_key=["id"])
    at = pa.scalar(1_790_000_000_123_456, pa.timestamp("us"))
    row = {"a": at.as_py(), "b": at.cast(pa.timestamp("us", "UTC")).as_py(), "c": at.cast(pa.date32()).as_py(),
           "d": at.as_py().time(), "f": ["x", None], "g": True}  # fmt: skip
    table.upsert([{"id": i, **row} for i in range(20)])
    table.delete([{"id": i} for i in range(0, 20, 3)])
    table.upsert([{"id": 1, "f": []}])
    expected = table.scan().to_arrow().sort_by("id").to_pylist()
    for kind in ("jsonl", "csv", "debezium", "debezium-schema"):
        path = tmp_path / f"{kind}.{'csv' if kind == 'csv' else 'jsonl'}"
        events = kind.startswith("debezium")
        encoder = Encoder(lake, kind) if events else None
        with Output(path, LINES if encoder else kind) as out:
            for batch in table.changes(until="now", before_images=True):
                if encoder:
                    for each in encoder.events(batch):
                        out.write(pa.record_batch([each.values], names=["line"]))
                else:
                    for rows in batch.to_arrow().to_batches():
                        out.write(rows)
        copy = lake.create_table(f"a.copy_{kind.replace('-', '_')}", schema, primary_key=["id"]).name
        source = source_of(str(path), kind="debezium-json" if events else None)
        options = Options() if events else Options(op_column="__change")
        Load(lake, lake.table(copy).definition, source, options).run()
        assert lake.table(copy).scan().to_arrow().sort_by("id").to_pylist() == expected, kind


def test_stdin_goes_on_under_a_name(lake: Lake, log: str, tmp_path: Path) -> None:
    data = _csv(tmp_path / "a.csv", range(40)).read_bytes()

    def from_stdin(text: bytes, name: str) -> Load:
        source = source_of("-", name=name, kind="csv")
        (file,) = source.files
        piped = replace(source, files=(replace(file, stdin=Stdin(io.BytesIO(text))),))
        made = Load(lake, lake.table(log).definition, piped)
        made.run()
        return made

    assert from_stdin(data[: data.index(b"37,")], "feed").rows == 37
    assert from_stdin(data, "feed").rows == 3
    assert from_stdin(data, "").rows == 40
    assert not from_stdin(data, "").producer
    assert len(_ids(lake, log)) == 120


def test_conditions_and_forms_of_csv(lake: Lake, log: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('1;NULL;1\n2;a;NULL\n3;"NULL";3\n4;;4\n')
    options = Options(delimiter=";", null="NULL", header=False)
    load(lake, log, path, options=options, where="id <> 2")
    rows = lake.table(log).scan(columns=["id", "name"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "name": None}, {"id": 3, "name": "NULL"}, {"id": 4, "name": None}]
    for text, says in {
        "id,nope\n1,2\n": "table a.log has no column 'nope'",
        "id,id\n1,2\n": "the column 'id' twice",
        "": "has no header",
    }.items():
        (tmp_path / "b.csv").write_text(text)
        with pytest.raises(Invalid, match=says):
            load(lake, log, tmp_path / "b.csv")


def test_what_only_looks_like_a_null_or_a_number_is_itself(lake: Lake, log: str, tmp_path: Path) -> None:
    """Arrow's own reader takes NA, NaN and null for nulls."""
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,NA\n2,null\n3,n/a\n4,NaN\n")
    load(lake, log, path)
    assert sorted(lake.table(log).scan().to_arrow().column("name").to_pylist()) == ["NA", "NaN", "n/a", "null"]


def test_the_server_tells_whether_a_commit_without_an_answer_happened(
    lake: Lake, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is lost after the commit, and one before it."""
    path = _csv(tmp_path / "a.csv", range(40))
    opened = NamedWrites._committed
    lost: list[int] = []

    def losing(self: Any, *said: Any) -> Any:
        if len(lost) < 6 and len(lost) % 2 == 0:
            lost.append(1)
            if len(lost) % 4 == 1:
                opened(self, *said)
            raise ls.errors.Unavailable("lost", applied="unknown")
        lost.append(0)
        return opened(self, *said)

    monkeypatch.setattr(NamedWrites, "_committed", losing)
    assert load(lake, log, path).rows == 40
    assert sum(lost) == 3
    assert _ids(lake, log) == list(range(40))


def test_a_load_that_begins_again_does_not_take_the_progress_before_for_its_own(
    lake: Lake, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is lost before its commit, whose progress would be as the load before ended."""
    path = _csv(tmp_path / "a.csv", range(5))
    load(lake, log, path)
    opened = NamedWrites._committed
    lost: list[int] = []

    def losing(self: Any, *said: Any) -> Any:
        if not lost:
            lost.append(1)
            raise ls.errors.Unavailable("lost", applied="unknown")
        return opened(self, *said)

    monkeypatch.setattr(NamedWrites, "_committed", losing)
    assert load(lake, log, path, again=True).rows == 5
    assert _ids(lake, log) == sorted([*range(5), *range(5)])
    assert load(lake, log, path).rows == 0
