"""A look-up of one key as bytes answers what the same key as rows does, wherever key and row lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.connection import OneRow
from lakestore.errors import Invalid
from lakestore.rows import ipc, user
from lakestore.rows.one_key import KeyCode
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.read import lookup
from tests.support.served import Served

SCHEMA = pa.schema([("name", pa.string()), ("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())])
KEYS = {
    "s.number": ["id"],
    "s.text": ["name"],
    "s.both": ["name", "id"],
    "s.back": ["id", "name"],
}


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("one") / "data") as running:
        for name, key in KEYS.items():
            running.lake.create_table(name, SCHEMA, primary_key=key, bucket_key=key[-1:])
        yield running


def row(i: int) -> dict[str, Any]:
    return {"name": f"n\0{i}", "id": i - 3, "v": "x" * i or None, "n": i}


def key_of(table: ls.Table, wanted: dict[str, Any]) -> bytes:
    code = KeyCode.of(table.definition)
    assert code is not None
    key = code.key([wanted[name] for name in table.definition.primary_key])
    assert key is not None
    return key


def check(served: Served, table: ls.Table, wanted: dict[str, Any], **options: Any) -> int:
    """Ask both ways; the number of rows."""
    definition = table.definition
    key_row = {name: wanted[name] for name in definition.primary_key}
    batch = user.from_user([key_row], definition.schema)
    as_rows = pb.LookupRequest(table=table.name, keys=ipc.encode(batch.schema, [batch]), in_parts=True, **options)
    as_bytes = pb.LookupRequest(table=table.name, key=key_of(table, wanted), in_parts=True, **options)
    lookup = served.server.service.verb("Lookup")
    expected = lookup(as_rows)
    assert lookup(as_bytes) == expected
    found: pa.Table = pa.ipc.open_stream(expected.rows).read_all()
    return int(found.num_rows)


def test_both_ways_give_one_answer_wherever_the_row_lies(served: Served) -> None:
    for name in KEYS:
        table = served.lake.table(name)
        table.upsert([row(i) for i in range(40)])
        first = served.lake.last_token
        for stage in ("memory", "segment", "index alone", "altered", "deleted"):
            if stage == "segment":
                served.checkpoint()
            elif stage == "index alone":
                served.engine.index._older = ()
            elif stage == "altered":
                table.alter(add={"more": pa.int64()}, rename={"v": "w"})
                table.upsert([{**{k: row(9)[k] for k in ("name", "id", "n")}, "w": "new", "more": 7}])
            elif stage == "deleted":
                table.delete([{k: row(11)[k] for k in KEYS[name]}])
            found = [check(served, table, row(i)) for i in (0, 9, 11, 12, 999)]
            assert found == [1, 1, int(stage != "deleted"), 1, 0], stage
            check(served, table, row(9), columns=["n", "id"])
            check(served, table, row(9), columns=["__offset", "n", "__change"])
            check(served, table, row(9), schema_id=0, columns=["v"])
            assert check(served, table, row(11), at=first) == 1


def test_no_machinery_of_batches_takes_part(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("s.short", SCHEMA, primary_key=["id"])
    table.upsert([row(i) for i in range(3)])
    monkeypatch.setattr(served.verbs("Lookup"), "_asked", None)
    assert table.lookup([{"id": -2}]).to_pylist() == [row(1)]
    assert table.lookup({"id": -2}, columns=["n"]).to_pylist() == [{"n": 1}]
    assert table.lookup([{"id": 77}]).to_pylist() == []
    assert table.lookup([{"id": 77}]).schema == table.schema


def test_keys_that_are_no_plain_values_go_as_rows(served: Served) -> None:
    table = served.lake.create_table("s.plain", SCHEMA, primary_key=["name"])
    long = "k" * 2_000
    table.upsert([{**row(1), "name": ""}, {**row(2), "name": long}])
    form = OneRow.of(table.definition)
    assert form.key([{"name": ""}]) is None
    assert form.key([{"name": "a"}, {"name": "b"}]) is None
    assert form.key([{"name": "a", "id": 1}]) is None
    assert form.key(pa.table({"name": ["a"]})) is None
    assert [found["n"] for found in table.lookup([{"name": ""}]).to_pylist()] == [1]
    assert [found["n"] for found in table.lookup([{"name": long}]).to_pylist()] == [2]
    with pytest.raises(Invalid):
        table.lookup([{"name": 5}])
    assert not table.lookup([{"name": "k" * 100_000}]).num_rows


def test_bytes_that_are_no_key_are_refused(served: Served) -> None:
    lookup = served.server.service.verb("Lookup")
    served.lake.create_table("s.bytes", SCHEMA, primary_key=["name", "id"])
    dates = served.lake.create_table("s.date", pa.schema([("d", pa.date32())]), primary_key=["d"])
    log = served.lake.create_table("s.log", SCHEMA)
    for name, key in (("s.bytes", b"a\0\0short"), ("s.bytes", b"\xff\0"), (dates.name, b"1234"), (log.name, b"1234")):
        with pytest.raises(Invalid):
            lookup(pb.LookupRequest(table=name, key=key))
        with pytest.raises(Invalid):
            lookup(pb.LookupRequest(table=name, key=key, at=served.lake.last_token))


def test_a_table_that_changes_meanwhile_is_asked_the_common_way(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = served.lake.create_table("s.moves", SCHEMA, primary_key=["id"])
    table.upsert([row(i) for i in range(3)])
    live_offset, key = lookup._live_offset, key_of(table, row(1))

    def altered_before(*asked: Any) -> Any:
        table.alter(add={"more": pa.int64()})
        return live_offset(*asked)

    monkeypatch.setattr(lookup, "_live_offset", altered_before)
    answer = served.server.service.verb("Lookup")(pb.LookupRequest(table=table.name, key=key))
    assert answer.schema_id == 1
    assert pa.ipc.open_stream(answer.rows).read_all().to_pylist() == [{**row(1), "more": None}]


def test_a_server_that_takes_rows_only_is_sent_rows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("s.older", SCHEMA, primary_key=["id"])
    table.upsert([row(1)])
    transport: Any = served.lake.transport
    lookup, sent = transport.lookup, []

    def older(request: pb.LookupRequest) -> pb.RowBatch:
        sent.append(bool(request.key))
        if request.key:  # as the transport does that finds an older server at the other end
            transport.wire.server = pb.HelloAnswer(protocol=4)
            raise Invalid("would ignore 'key'")
        answer: pb.RowBatch = lookup(request)
        return answer

    monkeypatch.setattr(transport, "lookup", older)
    monkeypatch.setattr(transport.wire, "server", transport.server)
    for _ in range(2):
        assert table.lookup([{"id": -2}]).to_pylist() == [row(1)]
    assert sent == [True, False, False]
