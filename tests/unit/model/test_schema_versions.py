"""Tables that are altered while they are written and read: rows stay as stored, and show as the version asked for."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change as wire_change
from lakestore.errors import Conflict, Invalid
from lakestore.limits import Limits
from lakestore.rows import user
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.request import Request, change_of
from lakestore_server.files.segment import Segment
from tests.support import golden
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int16()), ("word", pa.string())])
V3: dict[str, Any] = {"lake": {"format_version": 3}}


class Home(Served):
    """A server in this process that may lose its index between two starts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def again(self, *, checkpoint: bool = True, lose_index: bool = False) -> None:
        """An end with or without a checkpoint, and a new start."""
        self.server.close(checkpoint=checkpoint)
        self.close()
        if lose_index:
            shutil.rmtree(self.folder / "index")
        self.start()
        self.until_indexed()


@pytest.fixture(name="home")
def _home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory() as folder, Home(Path(folder)) as home:
        yield home


Later = Callable[[Home], None]
RESTARTS: list[Later] = [
    lambda home: None,
    lambda home: home.checkpoint(),
    lambda home: home.again(),
    lambda home: home.again(checkpoint=False),
    lambda home: home.again(lose_index=True),
]


def scan(lake: ls.Lake, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.table("a.b").scan(**options).to_arrow().to_pylist()
    return sorted(found, key=repr)


@pytest.mark.parametrize("later", RESTARTS)
@pytest.mark.parametrize("key", [["id"], None])
def test_rows_of_every_version_read_as_the_newest(home: Home, key: list[str] | None, later: Later) -> None:
    def write(row: dict[str, Any]) -> str:
        table = home.lake.table("a.b")
        return table.upsert([row]) if key else table.append([row])

    home.lake.create_table("a.b", SCHEMA, primary_key=key, buckets=2, **V3)
    before = write({"id": 1, "n": 7, "word": "old"})
    later(home)
    home.lake.table("a.b").alter(
        rename={"id": "key", "word": "text"}, add={"c": pa.decimal128(5, 2)}, default={"c": "1.50"},
        widen={"n": pa.int64()}, order=["c", "key"],
    )  # fmt: skip
    write({"key": 2, "n": 1 << 40, "text": "new", "c": 2})
    later(home)
    home.lake.table("a.b").alter(drop=["text"])
    write({"key": 3, "c": None})
    later(home)
    table = home.lake.table("a.b")
    assert table.schema.names == ["c", "key", "n"]
    assert table.schema.field("n").type == pa.int64()
    shown = [(str(row["c"]), row["key"], row["n"]) for row in scan(home.lake)]
    assert sorted(shown, key=lambda row: row[1]) == [("1.50", 1, 7), ("2.00", 2, 1 << 40), ("None", 3, None)]
    assert home.lake.at(before).scan("a.b").to_arrow().to_pylist() == [{"id": 1, "n": 7, "word": "old"}]
    if key:
        found = table.lookup([{"key": 3}, {"key": 1}], columns=["key", "n", "__timestamp"])
        assert found.select(["key", "n"]).to_pylist() == [{"key": 3, "n": None}, {"key": 1, "n": 7}]
    for bucket in home.lake.transport.audit(pb.AuditRequest(table="a.b")).buckets:
        assert bucket.live_sum == bucket.log_sum == bucket.index_sum


def test_segments_hold_rows_of_one_version(home: Home) -> None:
    table = home.lake.create_table("a.b", SCHEMA, buckets=1)
    for i in range(4):
        for _ in range(20):
            table.append([{"id": i, "n": i}])
        if i % 2:
            home.checkpoint()
        table.alter(add={f"c{i}": pa.int8()})
    home.checkpoint()
    [log] = home.engine.view.named("a.b").logs
    assert all(isinstance(chunk, Segment) for chunk in log.chunks)
    assert [(chunk.start, chunk.end, chunk.schema_id) for chunk in log.chunks] == [
        (20 * i, 20 * i + 20, i) for i in range(4)
    ]
    assert [row["n"] for row in table.scan().to_arrow().to_pylist()] == [i for i in range(4) for _ in range(20)]


@pytest.mark.parametrize("later", RESTARTS)
def test_readd_column_same_name(home: Home, later: Later) -> None:
    """A name added anew is another column, wherever its old values lie."""
    old = home.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    old.upsert([{"id": 1, "word": "secret"}, {"id": 2, "word": "secret"}])
    later(home)
    home.lake.table("a.b").alter(drop=["word"])
    home.lake.table("a.b").alter(add={"word": pa.string()})
    home.lake.table("a.b").upsert([{"id": 2, "word": "new"}])
    later(home)
    table = home.lake.table("a.b")
    assert [row["word"] for row in scan(home.lake)] == [None, "new"]
    assert table.lookup([{"id": 1}]).to_pylist() == [{"id": 1, "n": None, "word": None}]
    changes = [batch.to_arrow().to_pylist() for batch in table.changes(before_images=True, until="now")]
    assert [row["word"] for row in changes[-1]] == [None, "new"]
    words = [row for batch in table.changes(columns=["word"], until="now") for row in batch.to_pylist()]
    assert [row.get("word", "none") for row in words] == ["none", "none", "new"]
    stale = wire_change("a.b", pb.UPSERT, [user.from_user([{"id": 3, "word": "x"}], SCHEMA)], 0)
    with pytest.raises(Invalid, match=r"'word' of schema version 0 was dropped.*version 2: load the table again"):
        home.lake.transport.commit(pb.CommitRequest(changes=[stale]))


def test_producers_on_an_old_version_go_on_or_are_refused_clearly(home: Home) -> None:
    old = home.lake.create_table("a.b", SCHEMA, primary_key=["id"], **V3)
    new = home.lake.table("a.b").alter(
        rename={"n": "word", "word": "n"}, widen={"word": pa.int32()}, add={"c": pa.int8()}, default={"c": 5}
    )
    old.upsert([{"id": 1, "n": 7, "word": "seven"}])
    assert old.last_result is not None
    assert old.last_result.schema_id == 1
    new.upsert([{"id": 2, "n": "eight", "word": 1 << 20, "c": None}])
    assert scan(home.lake) == [
        {"id": 1, "word": 7, "n": "seven", "c": 5},
        {"id": 2, "word": 1 << 20, "n": "eight", "c": None},
    ]
    old.delete([{"id": 1}])
    with old.writer() as writer:
        writer.upsert([{"id": 3, "n": 3}])
    with home.lake.commit() as commit:
        commit.upsert("a.b", [{"id": 4, "word": 4}])
    new.alter(drop=["word"])
    with pytest.raises(Invalid, match=r"column 'n' of schema version 0 was dropped.*at version 2"):
        old.upsert([{"id": 5, "n": 7}])
    old.upsert([{"id": 5, "word": "five"}])
    assert [(row["id"], row["n"]) for row in scan(home.lake)] == [(2, "eight"), (3, None), (4, None), (5, "five")]


def test_a_new_name_makes_an_old_handle_look_at_the_table_anew(home: Home) -> None:
    old = home.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    with home.lake.commit() as commit:
        commit.upsert("a.b", [{"id": 9}])
    home.lake.transport.alter_table(
        pb.AlterTableRequest(table="a.b", alteration='[{"step":"add","name":"c","type":"date"}]')
    )
    old.upsert([{"id": 1, "c": None}])
    with home.lake.commit() as commit:
        commit.upsert("a.b", [{"id": 2, "c": None}])
    with pytest.raises(Invalid, match="has no column 'nothing'"):
        old.upsert([{"id": 1, "nothing": 1}])
    assert old.lookup([{"id": 2}]).to_pylist() == [{"id": 2, "n": None, "word": None, "c": None}]


def test_schema_change_with_inflight_batches(home: Home) -> None:
    """Rows that were prepared for a version and reach the commit loop after an alteration."""
    table = home.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=1, **V3)
    versions = home.engine.view.named("a.b").versions

    def prepared(kind: pb.ChangeKind.ValueType, row: dict[str, Any]) -> Request:
        message = wire_change("a.b", kind, [user.from_user([row], SCHEMA)], 0)
        return Request((change_of(versions, message, ""),))

    waiting = [prepared(pb.UPSERT, {"id": 1, "n": 7}), prepared(pb.UPSERT, {"id": 2}), prepared(pb.DELETE, {"id": 2})]
    late = prepared(pb.UPSERT, {"id": 3, "word": "x"})
    added = pa.field("c", pa.int8(), nullable=False)
    table.alter(
        drop=["word"], rename={"n": "m"}, widen={"m": pa.int64()}, add={"c": added}, default={"c": 4}, order=["c"]
    )
    for request in waiting:
        home.engine.submit(request)
        request.answer.result(10)
    home.engine.submit(late)
    with pytest.raises(Invalid, match="column 'word' of schema version 0 was dropped"):
        late.answer.result(10)
    [log] = home.engine.view.named("a.b").logs
    assert {schema_id for _, _, schema_id in log.rows(0, log.head)} == {1}
    assert scan(home.lake) == [{"c": 4, "id": 1, "m": 7}]


def test_a_retry_is_answered_even_when_its_columns_are_gone(home: Home) -> None:
    table = home.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    message = wire_change("a.b", pb.UPSERT, [user.from_user([{"id": 1, "word": "x"}], SCHEMA)], 0)
    request = pb.CommitRequest(changes=[message], producer="p", sequence=1)
    first = home.lake.transport.commit(request)
    table.alter(drop=["word"])
    assert home.lake.transport.commit(request) == first
    request.sequence = 2
    with pytest.raises(Invalid, match="was dropped"):
        home.lake.transport.commit(request)
    ok = pb.CommitRequest(changes=[wire_change("a.b", pb.UPSERT, [user.from_user([{"id": 2}], SCHEMA)], 0)])
    ok.producer, ok.sequence = "p", 2
    home.lake.transport.commit(ok)
    assert [row["id"] for row in scan(home.lake)] == [1, 2]


def test_a_change_batch_has_rows_of_one_version_and_says_which(home: Home) -> None:
    table = home.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2, **V3)
    table.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    middle = table.upsert([{"id": 1, "n": 3}])
    table.alter(rename={"n": "m"}, add={"c": pa.int8()}, default={"c": 9})
    table.upsert([{"id": 1, "m": 4}])
    table.delete([{"id": 2}])
    table.alter(drop=["word"])
    table.upsert([{"id": 3}])
    home.checkpoint()
    for start in ("earliest", middle):
        batches = list(table.changes(start, until="now", before_images=True))
        assert [batch.schema_id for batch in batches] == ([0, 1, 2] if start == "earliest" else [1, 2])
    first, second, third = table.changes(until="now", before_images=True)
    assert first.table.schema.names[4:] == ["id", "n", "word"]
    assert second.table.schema.names[4:] == ["id", "m", "word", "c"]
    assert third.table.schema.names[4:] == ["id", "m", "c"]
    old = [row for row in second.to_pylist() if row["__change"] in ("-U", "-D")]
    assert [(row["__change"], row["id"], row["m"], row["c"]) for row in old] == [("-U", 1, 3, 9), ("-D", 2, 2, 9)]
    shown = [batch.table.schema.names[4:] for batch in table.changes(until="now", columns=["m", "c"])]
    assert shown == [["n"], ["m", "c"], ["m", "c"]]
    opened_before = [
        batch.table.schema.names[4:] for batch in table.changes(middle, until="now", columns=["n", "word"])
    ]
    assert opened_before == [["m", "word"], ["m"]], "a stream that is opened again goes on as if it never ended"
    with pytest.raises(Invalid, match="no column 'never'"):
        list(table.changes(until="now", columns=["never"]))
    snapshot = list(table.changes("snapshot", until="now"))
    assert {batch.schema_id for batch in snapshot} == {2}
    resumed = list(table.changes(snapshot[0].token, until="now", columns=["c"]))
    assert sorted(row["c"] for batch in [snapshot[0], *resumed] for row in batch.to_pylist()) == [9, 9]


def test_two_who_alter_at_once_do_not_overwrite_each_other(home: Home) -> None:
    one = home.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    other = home.lake.table("a.b")
    one.alter(add={"c": pa.int8()}, lake={"freshness": "9s"})
    with pytest.raises(Conflict, match="schema version 1, the change was made for 0: load the table again"):
        other.alter(add={"c": pa.int8()})
    with pytest.raises(Invalid, match="column 'id' is in the primary key"):
        one.alter(add={"d": pa.int8()}, drop=["id"])
    assert home.lake.table("a.b").schema.names == ["id", "n", "word", "c"]
    lsn = home.engine.view.lsn
    one.alter(lake={"freshness": "8s"})
    home.again()
    definition = home.lake.table("a.b").definition
    assert (definition.schema_id, definition.lake.freshness) == (1, "8s")
    assert len(home.engine.view.named("a.b").versions.tables) == 2
    assert home.engine.view.lsn > lsn


def test_each_read_sees_exactly_one_version(home: Home) -> None:
    """D3: four readers run while columns come and go; what a version shows is what it ever showed."""
    table = home.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2, **V3)
    table.upsert([{"id": i, "n": 0, "word": "0"} for i in range(50)])
    done = threading.Event()
    problems: list[str] = []

    def look(read: Callable[[], pa.Table]) -> None:
        while not done.is_set():
            found = read()
            extra = [name for name in found.schema.names if name.startswith("c")]
            ages = {name: set(found.column(name).to_pylist()) for name in extra}
            if found.num_rows != 50 or len(extra) > 1 or any(ages[name] != {int(name[1:])} for name in extra):
                problems.append(f"{found.num_rows} rows, {ages}")

    def changes() -> pa.Table:
        return pa.concat_tables([b.table for b in table.changes("snapshot", until="now") if b.snapshot])

    reads = [lambda: table.scan().to_arrow(), lambda: table.scan(where="id >= 0").to_arrow(), changes]
    reads.append(lambda: table.lookup([{"id": i} for i in range(50)]))
    readers = [threading.Thread(target=look, args=(read,)) for read in reads]
    for reader in readers:
        reader.start()
    writer = home.lake.table("a.b")
    for i in range(1, 25):
        drop = [f"c{i - 1}"] if i > 1 else []
        writer.alter(drop=drop, add={f"c{i}": pa.int16()}, default={f"c{i}": i})
        writer.upsert([{"id": i, "n": i}])
        if i % 8 == 0:
            home.checkpoint()
    done.set()
    for reader in readers:
        reader.join(30)
    assert not problems


def test_a_column_order_of_its_own_does_not_mix_up_keys(home: Home) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    table = home.lake.create_table("a.b", schema, primary_key=["b", "a"])
    table.upsert([{"a": "1", "b": "2"}])
    table.delete([{"a": "1", "b": "2"}])
    assert scan(home.lake) == []
    [*_, last] = [row for batch in table.changes(until="now") for row in batch.to_pylist()]
    assert (last["__change"], last["a"], last["b"]) == ("-D", "1", "2")


def test_verify_agrees_across_versions(home: Home) -> None:
    table = home.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2, **V3)
    table.upsert([{"id": i, "n": i, "word": "w"} for i in range(20)])
    home.checkpoint()
    table.alter(rename={"id": "key"}, drop=["word"], add={"c": pa.string()}, default={"c": "x"})
    table.upsert([{"key": i, "n": -i} for i in range(10, 30)])
    table.alter(widen={"n": pa.int64()}, add={"word": pa.binary()})
    table.delete([{"key": 3}])
    assert verify(home.lake.transport, "a.b").same


def test_a_folder_of_the_release_before_is_altered(tmp_path: Path) -> None:
    data = golden.unpacked(golden.FOLDER / "data-0.2.0.tar.xz", tmp_path)
    with ls.open(data) as lake:
        orders = lake.table("shop.orders")
        rows = orders.scan().to_arrow()
        key = orders.definition.primary_key[0]
        orders.alter(add={"note": pa.string()}, rename={key: "number"}, order=["note"])
        orders.upsert(rows.slice(0, 1).rename_columns(["number" if n == key else n for n in rows.schema.names]))
    with ls.open(data) as lake:
        orders = lake.table("shop.orders")
        found = orders.scan().to_arrow()
        assert found.schema.names[:2] == ["note", "number"]
        assert found.num_rows == rows.num_rows
        assert orders.lookup(found.slice(0, 3).select(["number"])).num_rows == 3
        assert verify(lake.transport, "shop.orders").same
        assert {batch.schema_id for batch in orders.changes(until="now")} == {0, 1}


def test_a_scan_of_an_old_cut_knows_its_schema(home: Home) -> None:
    table = home.lake.create_table("a.b", SCHEMA)
    token = table.append([{"id": 1}])
    table.alter(drop=["word"], rename={"id": "key"})
    assert table.scan(at=token).to_reader().schema.names == ["id", "n", "word"]
    assert table.scan(at=token, columns=["id"]).to_reader().read_all().to_pylist() == [{"id": 1}]
    assert table.scan().to_reader().read_all().to_pylist() == [{"key": 1, "n": None}]


def test_a_table_has_a_limit_of_versions(tmp_path: Path) -> None:
    with ls.open(tmp_path, limits=Limits(schema_versions=2)) as lake:
        table = lake.create_table("a.b", SCHEMA).alter(add={"c": pa.int8()})
        with pytest.raises(Invalid, match=r"table a\.b has had 2 schema versions"):
            table.alter(add={"d": pa.int8()})
        table.alter(lake={"freshness": "3s"})
        assert table.definition.schema_id == 1
