"""Questions in PostgreSQL's dialect through a query process: its sandbox, its rights, its descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import LakestoreError
from lakestore_server.queries import constant_query
from lakestore_server.queries.answer import MayWait
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.postgres.types import NUMERIC_ARROW, OID_ARROW, postgres_type
from lakestore_server.queries.question import Dialect, Form, Question
from lakestore_server.queries.service import QuerySession
from tests.support.client_texts import client_texts, lake_oids, make_tables
from tests.support.served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("process") / "data"
    with Served(folder, ports=True) as served:
        make_tables(served.lake)
        served.lake.table("shop.orders").upsert([{"order_id": number, "customer": "x"} for number in range(3)])
        yield served


@pytest.fixture(scope="module")
def session(served: Served) -> Iterator[QuerySession]:
    assert served.server.queries is not None
    session = served.server.queries.session(served.server.access.caller(), "postgres")
    yield session
    session.close()


def _question(text: str, **options: Any) -> Question:
    said = {"search_path": ("shop",), "user": "ann", "database": "shop"} | options
    return Question(text, dialect=Dialect.POSTGRES, **said)


def _rows(session: QuerySession, text: str, **options: Any) -> list[dict[str, Any]]:
    with session.run(_question(text, **options)) as answer:
        return [row for batch in answer.batches() for row in batch.to_pylist()]


def test_a_confined_process_answers_psqls_texts_with_the_callers_tables(session: QuerySession, served: Served) -> None:
    oids = lake_oids(served.lake._connection.all())
    texts = {each.name: each.with_values(oids) for each in client_texts() if each.client == "psql"}
    assert _rows(session, texts["\\dt"]) == [
        {"Schema": "shop", "Name": "orders", "Type": "table", "Owner": "lakestore"}
    ]
    columns = _rows(session, texts["\\d shop.orders 3"])
    assert [row["attname"] for row in columns] == ["order_id", "customer", "amount", "ts", "tags"]
    assert _rows(session, "SELECT count(*), current_user FROM orders WHERE customer ~ '^x'") == [
        {"count": 3, "current_user": "ann"}
    ]


@pytest.mark.parametrize("text", ["SELECT 1", " select\n007 ", "SELECT 999999999"])
def test_a_constant_query_has_the_answer_of_a_process(
    session: QuerySession, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    asked = [_question(text, form=Form.ROWS, binary=binary) for binary in ((), (True,))]
    at_once = [_whole(session, question, waits=False) for question in asked]
    monkeypatch.setattr(constant_query, "constant_of", lambda _: None)
    with pytest.raises(MayWait):
        session.run(asked[0], waits=False)
    assert [_whole(session, question) for question in asked] == at_once


@pytest.mark.parametrize("text", ["SELECT 1234567890123", "SELECT 1.5", "SELECT -1", "SELECT 1 AS n", "SELECT $1"])
def test_other_texts_are_no_constant_queries(text: str) -> None:
    assert constant_query.constant_of(_question(text)) is None


def _whole(session: QuerySession, question: Question, **options: Any) -> tuple[Any, ...]:
    """Description, columns, token, rows as bytes, and their number."""
    description = session.describe(question, **options)
    with session.run(question, **options) as answer:
        data = b"".join(bytes(part.data) for part in answer.parts())
        return description, answer.schema, answer.token, data, answer.figures.rows


def test_a_description_has_the_types_of_parameters_of_catalog_texts(session: QuerySession) -> None:
    described = session.describe(_question("SELECT relname FROM pg_class WHERE oid = $1 AND relkind = $2"))
    assert described.parameters == (OID_ARROW, pa.string())
    assert described.schema is not None
    assert described.schema.names == ["relname"]
    described = session.describe(_question("SELECT $1::oid[], $2::pg_catalog.oid"))
    assert described.parameters == (pa.list_(OID_ARROW), OID_ARROW)


def test_a_numeric_parameter_is_described_as_numeric_wherever_it_is(session: QuerySession) -> None:
    for kind in (NUMERIC_ARROW, pa.list_(NUMERIC_ARROW)):
        question = _question("SELECT $1 AS v", parameters=(Parameter(kind),))
        described = session.describe(question)
        assert described.parameters == (kind,)
        assert described.schema == pa.schema([("v", kind)])
        assert _rows(session, question.text, parameters=question.parameters) == [{"v": None}]
    value = Decimal("1.23456789012345")
    (row,) = _rows(session, "SELECT $1 AS v", parameters=(Parameter.of(pa.array([value])),))
    assert row == {"v": value}, "a value keeps its digits"


def test_oids_and_letters_of_the_catalog_have_their_types_of_postgres(session: QuerySession) -> None:
    text = """
    WITH RECURSIVE kinds(oid, typtype, oids) AS (
        SELECT oid, typtype, (SELECT array_agg(oid) FROM pg_type WHERE typname = 'bool') FROM pg_type WHERE oid = 16
        UNION ALL SELECT t.oid, t.typtype, k.oids FROM pg_type t, kinds k WHERE t.typelem = k.oid)
    SELECT DISTINCT *, min(typtype) OVER () AS least, oid + 1::int8 AS number, typtype || '' AS text
    FROM kinds ORDER BY oid
    """
    described = session.describe(_question(text))
    kinds = [postgres_type(field).name for field in described.schema or ()]
    assert kinds == ["oid", "char", "_oid", "char", "int8", "text"]
    with session.run(_question(text)) as answer:
        assert answer.schema == described.schema
        (row, other) = [row for batch in answer.batches() for row in batch.to_pylist()]
    assert row == {"oid": 16, "typtype": "b", "oids": [16], "least": "b", "number": 17, "text": "b"}
    assert other["oid"] == 1000
    with session.run(_question(text, form=Form.ROWS, binary=(True,))) as answer:
        data = b"".join(bytes(part.data) for part in answer.parts())
    array = pack(">iiIiiiI", 1, 0, 26, 1, 1, 4, 16)
    assert pack(">iIi1si", 4, 16, 1, b"b", len(array)) + array in data


def test_the_letter_without_a_text_is_a_zero_in_binary(session: QuerySession) -> None:
    text = "SELECT attidentity FROM pg_attribute WHERE attrelid = 'shop.orders'::regclass AND attname = 'order_id'"
    with session.run(_question(text, form=Form.ROWS, binary=(True,))) as answer:
        (part,) = answer.parts()
    assert bytes(part.data)[-5:] == pack(">i", 1) + b"\0"


def test_a_uint32_of_a_table_is_no_oid(session: QuerySession, served: Served) -> None:
    served.lake.create_table("shop.whole", {"n": "uint32"})
    described = session.describe(_question("SELECT n FROM whole WHERE n = $1"))
    assert (described.parameters, described.schema) == ((pa.uint32(),), pa.schema([("n", pa.uint32())]))
    served.lake.drop_table("shop.whole")


@pytest.mark.parametrize(
    "text", ["SELECT * FROM nope", "SELECT 'nope'::regclass", "SELECT FROM WHERE", "SELECT nope(1)"]
)
def test_a_text_that_is_refused_leaves_the_session_alive(session: QuerySession, text: str) -> None:
    with pytest.raises(LakestoreError):
        _rows(session, text)
    assert _rows(session, "SELECT 1 AS one") == [{"one": 1}]


def _cells(session: QuerySession, text: str, **options: Any) -> list[str | None]:
    """The texts of the only row, as a client of Postgres reads them."""
    with session.run(_question(text, form=Form.ROWS, **options)) as answer:
        data = b"".join(part.data for part in answer.parts())
    count, place = int.from_bytes(data[5:7], "big"), 7
    cells = list[str | None]()
    for _ in range(count):
        size = int.from_bytes(data[place : place + 4], "big", signed=True)
        place += 4 + max(size, 0)
        cells.append(None if size < 0 else data[place - size : place].decode())
    return cells


def test_a_text_reads_and_cuts_times_in_the_zone_of_the_session(session: QuerySession, served: Served) -> None:
    times = served.lake.create_table(
        "shop.times", pa.schema([("id", pa.int64()), ("tz", pa.timestamp("us", tz="UTC"))]), primary_key=["id"]
    )
    times.upsert([{"id": 1, "tz": datetime(2024, 3, 11, 2, tzinfo=UTC)}])
    zone = {"zone": "America/New_York"}
    text = "SELECT date_trunc('day', tz), tz::date, extract(hour from tz), timestamptz '2024-07-01 12:00' FROM times"
    assert _cells(session, text, **zone) == [
        "2024-03-10 00:00:00-05",
        "2024-03-10",
        "22",
        "2024-07-01 12:00:00-04",
    ]
    assert _cells(session, text) == ["2024-03-11 00:00:00+00", "2024-03-11", "2", "2024-07-01 12:00:00+00"]
    assert _rows(session, "SELECT id FROM times WHERE tz >= '2024-03-11 00:00:00'", **zone) == []
    assert _rows(session, "SELECT id FROM times WHERE tz >= '2024-03-10 22:00:00'", **zone) == [{"id": 1}]
    for key in ("id = 1", "id IN (1)", "id + 0 = 1"):  # by two look-ups and by a process
        assert _cells(session, f"SELECT tz FROM times WHERE {key}", **zone) == ["2024-03-10 22:00:00-04"]
        assert _cells(session, f"SELECT tz FROM times WHERE {key}") == ["2024-03-11 02:00:00+00"]


@pytest.fixture(scope="module")
def values(served: Served) -> None:
    """A table with a null in each column but the key."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("b", pa.bool_()), ("raw", pa.binary())])
    rows = [(1, 1, True, b"\0\xff\\"), (2, 2, None, b"a"), (3, None, True, None)]
    table = served.lake.create_table("shop.values", schema, primary_key=["id"])
    table.upsert([dict(zip(schema.names, row, strict=True)) for row in rows])


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize(
    ("condition", "ids"),
    [  # as PostgreSQL 15 answers
        ("n <> ALL(ARRAY[1, NULL])", []),
        ("NOT n = ANY(ARRAY[1, NULL])", []),
        ("n = ANY(ARRAY[1, NULL])", [1]),
        ("n <> ALL('{1}')", [2]),
        ("n <> ALL('{}'::int[])", [1, 2, 3]),
        ("NOT n = ANY((SELECT array_agg(n) FROM values)::int[])", []),
        ("n IN (SELECT unnest(ARRAY[2, NULL]))", [2]),
        ("(n, b) = (1, true)", [1]),
        ("NOT (n, b) = (2, true)", [1]),
        ("(n, b) <> (2, true)", [1]),
        ("(n, b) NOT IN ((2, true), (3, false))", [1]),
        ("(n, b) IS NOT NULL", [1]),
        ("(n, b) IS NULL", []),
        (r"raw = '\x00ff5c'", [1]),
        (r"raw IN ('\x00ff5c', 'a')", [1, 2]),
        (r"raw BETWEEN '\x61' AND '\x62'", [2]),
        (r"raw = '\x00ff5c'::bytea", [1]),
        (r"raw = '\000\377\\'::bytea", [1]),
    ],
)
def test_conditions_keep_the_rows_that_postgres_keeps(session: QuerySession, condition: str, ids: list[int]) -> None:
    found = _rows(session, f"SELECT id FROM shop.values WHERE {condition} ORDER BY id")
    assert [row["id"] for row in found] == ids


def test_a_list_is_the_type_of_a_parameter_of_any(session: QuerySession) -> None:
    described = session.describe(
        _question("SELECT customer FROM orders WHERE order_id = ANY($1) AND customer = ANY($2)")
    )
    assert described.parameters == (pa.list_(pa.int64()), pa.list_(pa.string()))


def test_parts_of_texts_and_times_are_those_of_postgres(session: QuerySession) -> None:
    text = (
        "SELECT substr('hello', -1, 3), substring('hello' from 0), substr('hello', -9, 2), substr('hello', 2, 2),"
        " substr('hello', NULL), extract(second from time '10:00:01.25'), date_part('ms', interval '0.0015 s')"
    )
    assert _cells(session, text) == ["h", "hello", "", "el", None, "1.250000", "1.5"]
    for wrong in (r"SELECT '\x0'::bytea", r"SELECT 'a\b'::bytea", "SELECT substr('a', 1, -1)"):
        with pytest.raises(LakestoreError):
            _cells(session, wrong)
