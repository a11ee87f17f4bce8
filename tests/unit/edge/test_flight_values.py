"""The values of the Flight port: messages, handles, options, tickets, the catalog's tables. No server, no socket."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakestore.errors import Invalid, NotFound
from lakestore.model.alteration import Requirement
from lakestore.v1 import flight_pb2 as pb
from lakestore_server.edge.flight import catalog_tables, messages, sql_info
from lakestore_server.edge.flight.handles import BYTES_MAX, ENTRIES_MAX, IDLE_SECONDS, Handles
from lakestore_server.edge.flight.options import AT, FRESHNESS, SessionOptions
from lakestore_server.edge.flight.tickets import Seals
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.question import Question
from tests.support.seeds import seeded
from tests.support.world.clock import HandClock

ROWS = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "words": pa.array(["a", "bb", None]).dictionary_encode(),
        "large": pa.array(["x", None, "z" * 3_000], pa.large_string()),
        "nested": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int8())]))),
    }
)


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 0), pa.table({"v": [b"\0" * n for n in range(300)]})])
def test_rows_become_flight_data_and_rows_again(rows: pa.Table) -> None:
    parts = [pb.FlightData.FromString(data) for data in messages.table_data(rows)]
    found = messages.rows_of(parts)
    assert found.schema == rows.schema
    assert found.to_pylist() == rows.to_pylist()


def test_damaged_rows_are_invalid() -> None:
    rng, whole = seeded(), [pb.FlightData.FromString(data) for data in messages.table_data(ROWS)]
    for _ in range(300):
        parts = [pb.FlightData() for _ in whole]
        for part, source in zip(parts, whole, strict=True):
            part.CopyFrom(source)
        part = rng.choice(parts)
        field = rng.choice(("data_header", "data_body"))
        data = bytearray(getattr(part, field))
        for _ in range(rng.randint(1, 3) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        setattr(part, field, bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.3 else data))
        try:
            messages.rows_of(parts).validate(full=True)
        except Invalid:
            continue


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x03abc", messages.PREFIX.encode()])
def test_bytes_without_a_command_are_invalid(data: bytes) -> None:
    with pytest.raises(Invalid, match="no command of Flight SQL"):
        messages.command_of(data)


@pytest.mark.parametrize("name", ["CommandNew", "CancelStatus", "DESCRIPTOR", "Empty_", "__name__"])
def test_an_unknown_command_has_a_name_and_no_message(name: str) -> None:
    packed = messages.any_bytes(pb.Empty()).replace(b"Empty", name.encode())
    packed = bytes([packed[0], len(messages.PREFIX) + len(name)]) + packed[2:]
    assert messages.command_of(packed) == messages.Command(name, None)


def test_a_handle_is_of_its_owner_and_ends_by_idleness() -> None:
    clock = HandClock()
    handles: Handles[str] = Handles(clock, "thing")
    mine = handles.add("ann", "value")
    assert handles.get("ann", mine) == "value"
    with pytest.raises(NotFound, match="no such thing"):
        handles.get("ben", mine)
    assert not handles.close("ben", mine)
    clock.advance(IDLE_SECONDS - 1)
    assert handles.get("ann", mine) == "value"
    clock.advance(IDLE_SECONDS - 1)
    assert handles.get("ann", mine) == "value"
    clock.advance(IDLE_SECONDS + 1)
    with pytest.raises(NotFound, match="idle for an hour"):
        handles.get("ann", mine)


def test_handles_of_one_owner_are_bounded_and_leave_those_of_others() -> None:
    handles: Handles[int] = Handles(HandClock(), "thing")
    other = handles.add("ben", -1)
    first = handles.add("ann", 0)
    kept = [handles.add("ann", number) for number in range(ENTRIES_MAX)]
    assert len(handles) == ENTRIES_MAX + 1
    with pytest.raises(NotFound):
        handles.get("ann", first)
    large = handles.add("ann", 7, BYTES_MAX)
    assert handles.get("ann", large) == 7
    assert len(handles) == 2
    with pytest.raises(NotFound):
        handles.get("ann", kept[-1])
    assert handles.get("ben", other) == -1
    handles.put("ann", large, 8)
    assert handles.get("ann", large) == 8
    assert handles.close("ann", large)
    assert not handles.close("ann", large)


def test_a_ticket_keeps_the_whole_question() -> None:
    seals = Seals()
    question = Question(
        "SELECT 1",
        parameters=(Parameter.of(pa.array([1])),),
        at="2026-01-01T00:00Z",
        require=Requirement(1, 2, 3.0),
        search_path=("shop",),
    )
    ticket = seals.open("ann", seals.seal("ann", question))
    assert ticket.question == question
    for owner, other in (("ben", seals), ("ann", Seals())):
        with pytest.raises(NotFound, match="not of this principal"):
            other.open(owner, seals.seal("ann", question))


def option(text: str) -> pb.SessionOptionValue:
    return pb.SessionOptionValue(string_value=text)


def test_options_are_checked_set_and_taken_back() -> None:
    options, refused = SessionOptions().changed({AT: option("2026-11-20T10:00Z"), FRESHNESS: option("10s")})
    assert not refused
    assert options.at == "2026-11-20T10:00Z"
    assert options.require == Requirement(0, 10_000_000, 0.0)
    wrong = {
        AT: option("yesterday"),
        FRESHNESS: pb.SessionOptionValue(bool_value=True),
        "catalog": option("other"),
        "colour": option("blue"),
        "schema": option("s" * 2_000),
    }
    same, refused = options.changed(wrong)
    assert same == options
    assert refused.pop("colour") == pb.SetSessionOptionsResult.INVALID_NAME
    assert refused == dict.fromkeys((AT, FRESHNESS, "catalog", "schema"), pb.SetSessionOptionsResult.INVALID_VALUE)
    empty, _ = options.changed({AT: pb.SessionOptionValue(), FRESHNESS: option("")})
    assert empty == SessionOptions()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("%", ["a.b", "a%b", "aXb"]),
        ("a_b", ["a.b", "a%b", "aXb"]),
        ("a.b", ["a.b"]),
        ("A_B", []),
        ("", []),
        ("%b", ["a.b", "a%b", "aXb"]),
        ("_", []),
    ],
)
def test_a_pattern_is_one_of_like(pattern: str, names: list[str]) -> None:
    found = catalog_tables.schemas(["a.b", "a%b", "aXb"], pb.CommandGetDbSchemas(db_schema_filter_pattern=pattern))
    assert sorted(found.column("db_schema_name").to_pylist()) == sorted(names)


def test_every_number_of_sql_info_has_its_kind_of_value() -> None:
    whole = sql_info.sql_info([])
    whole.validate(full=True)
    assert whole.num_rows == len(sql_info.INFO)
    some = sql_info.sql_info([0, 3, 508, 77_777])
    assert [row["value"] for row in some.to_pylist()][:2] == ["Lakestore", True]
    assert some.num_rows == 3
    assert sql_info.xdbc_types(93).column("type_name").to_pylist() == ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE"]
    rows = [(row["data_type"], row["type_name"]) for row in sql_info.xdbc_types(None).to_pylist()]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.decimal128(12, 2), "DECIMAL(12,2)"),
        (pa.list_(pa.int32()), "INTEGER[]"),
        (pa.struct([("a", pa.int8()), ("b", pa.string())]), "STRUCT(a TINYINT, b VARCHAR)"),
        (pa.map_(pa.string(), pa.timestamp("us", tz="UTC")), "MAP(VARCHAR, TIMESTAMP WITH TIME ZONE)"),
        (pa.binary(5), "BLOB"),
        (pa.uint16(), "USMALLINT"),
    ],
)
def test_a_type_has_the_name_of_the_dialect(kind: pa.DataType, name: str) -> None:
    assert sql_info.sql_name(kind) == name
