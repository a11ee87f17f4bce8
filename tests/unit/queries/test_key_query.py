"""Key queries have the answers of the query process: rows, names, types, at the newest commit and at past cuts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lakestore.errors import Denied, NotFresh
from lakestore.evolution import AddColumn, RenameColumn
from lakestore.model.alteration import Requirement
from lakestore.model.types import arrow_type
from lakestore_server.access.admission import Admission
from lakestore_server.main import KnownTables
from lakestore_server.queries import key_query
from lakestore_server.queries.key_query import RESERVED, KeyAnswer, KeyQueries, KeyText
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.question import Dialect, Form, Question
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.queries.service import QuerySession
from tests.promises.test_forty_dashboards import filled
from tests.support.rights import token_of, write_auth
from tests.support.seeds import examples, seeded
from tests.support.served import Served

UTC = dt.UTC
TEXTS = ["", "a", "Ab", "it's", "x\\y", "ÄÖ", "12", "NULL", "a\tb"]
TIMES = [dt.datetime(2026, 11, 28, 15, 0, 0, 5), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]
VALUES: dict[str, list[Any]] = {
    "int8": [0, 1, -128, 127],
    "int16": [0, 7, -7],
    "int32": [0, 1, 2, -1, 2**31 - 1],
    "int64": [0, 1, 2, 3, -4, 2**63 - 1, -(2**63)],
    "uint16": [0, 9, 65_535],
    "uint32": [0, 2**32 - 1],
    "string": TEXTS,
    "binary": [b"", b"a", b"\0\xff"],
    "fixed(2)": [b"ab", b"\0\xff"],
    "date": [time.date() for time in TIMES],
    "time": [time.time() for time in TIMES],
    "timestamp": TIMES,
    "timestamptz": [time.replace(tzinfo=UTC) for time in TIMES],
    "decimal(12,2)": [Decimal("1.25"), Decimal("-0.01")],
    "bool": [True, False],
    "float64": [0.0, -0.0, 1.5, float("inf")],
    "float32": [0.0, 1.5],
    "list<int64>": [[1, None]],
}
KEYS = [
    ("int64",),
    ("string",),
    ("int32", "string"),
    ("string", "uint16"),
    ("int8", "date", "bool"),
    ("timestamptz",),
    ("decimal(12,2)", "int16"),
    ("binary",),
    ("fixed(2)",),
]
MERGES = ["upsert", "first_row", "partial"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("key_queries")) as served:
        yield served


def queries(served: Served) -> KeyQueries:
    admission = Admission(served.server.access, KnownTables(served.engine), served.clock)
    return KeyQueries(Rpcs(served.server.service, admission))


def asked(served: Served, text: str, *values: Any, **options: Any) -> KeyAnswer | None:
    """The answer to a key query of anyone."""
    arrays = [value if isinstance(value, pa.Array) else pa.array([value]) for value in values]
    return queries(served).answer(served.server.access.caller(), Question(text, _parameters(arrays), **options))


def _parameters(arrays: list[pa.Array]) -> tuple[Parameter, ...]:
    return tuple(map(Parameter.of, arrays))


class World:
    """Tables of random keys and columns, with a history."""

    def __init__(self, served: Served, random: Random) -> None:
        self.served, self.random = served, random
        self.tables: dict[str, dict[str, str]] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        self.cuts: list[str] = []
        for number, kinds in enumerate(KEYS):
            self._create(f"w{number % 2}.t{number}", kinds, MERGES[number % len(MERGES)])
        for step in range(40):
            self._write()
            if step == 20:
                self._evolve()

    def _create(self, name: str, kinds: tuple[str, ...], merge: str) -> None:
        others = ["int32", "string", *self.random.sample(sorted(VALUES), 3)]
        columns = {f"k{i}": kind for i, kind in enumerate(kinds)} | {f"c{i}": kind for i, kind in enumerate(others)}
        names = list(columns)
        self.random.shuffle(names)
        self.tables[name] = {each: columns[each] for each in names}
        self.keys[name] = tuple(f"k{i}" for i in range(len(kinds)))
        bucket_key = list(self.keys[name][: self.random.randint(1, len(kinds))])
        self.served.lake.create_table(
            name, self.tables[name], primary_key=list(self.keys[name]), bucket_key=bucket_key, buckets=3, merge=merge
        )

    def _write(self) -> None:
        name = self.random.choice(sorted(self.tables))
        table, columns = self.served.lake.table(name), self.tables[name]
        if self.random.random() < 0.2:
            keys = {column: [self.value(columns[column])] for column in self.keys[name]}
            token = table.delete(pa.table({c: pa.array(v, table.schema.field(c).type) for c, v in keys.items()}))
        else:
            rows = [
                {column: self.value(kind, nullable=column not in self.keys[name]) for column, kind in columns.items()}
                for _ in range(self.random.randint(1, 4))
            ]
            token = table.upsert(pa.Table.from_pylist(rows, schema=table.schema))
        self.cuts.append(str(token))

    def _evolve(self) -> None:
        for name in list(self.tables)[:4]:
            added = AddColumn("added", "int64", default=5, new_rows_only=True)
            self.served.lake.table(name).alter(RenameColumn("c0", "renamed"), added)
            columns = {("renamed" if c == "c0" else c): kind for c, kind in self.tables[name].items()}
            self.tables[name] = columns | {"added": "int64"}
            self.cuts.append(str(self.served.engine.view.token()))

    def value(self, kind: str, *, nullable: bool = False) -> Any:
        values = VALUES[kind]
        return None if nullable and self.random.random() < 0.2 else self.random.choice(values)

    def question(self) -> tuple[str, list[pa.Array], str]:
        """(text, parameters, cut)."""
        random, name = self.random, self.random.choice(sorted(self.tables))
        columns = self.tables[name]
        alias = random.choice(["", "", "x", "AS t"])
        owner = alias.removeprefix("AS ") or random.choice([name, name.split(".")[1]])

        def spelled(column: str) -> str:
            said = f'"{column}"' if random.random() < 0.2 else column
            return f"{owner}.{said}" if random.random() < 0.3 else said

        shown = random.sample(list(columns), random.randint(1, len(columns)))
        listed = ", ".join(spelled(c) + random.choice(["", "", f" AS a{i}"]) for i, c in enumerate(shown))
        parameters: list[pa.Array] = []
        terms = [self._term(spelled, column, columns[column], parameters) for column in self.keys[name]]
        random.shuffle(terms)  # the text need not have the order of the key
        if random.random() < 0.1:
            terms.append(random.choice(["true", "c1 = 'a'", "k0 IS NOT NULL"]))
        if random.random() < 0.05:
            terms.pop(0)
        text = f"SELECT {random.choice(['*', listed, listed])} FROM {name} {alias} WHERE "
        joint = random.choice([" AND ", " and ", " AND ", " OR "]) if len(terms) > 1 else " AND "
        text += joint.join(terms) or "true"
        text += random.choice(["", "", " LIMIT 3", ";", " ORDER BY 1"])
        at = random.choice(self.cuts) if random.random() < 0.4 else ""
        return text, parameters, at

    def _term(self, spelled: Any, column: str, kind: str, parameters: list[pa.Array]) -> str:
        random = self.random
        if random.random() < 0.15:
            said = ", ".join(self._operand(kind, parameters) for _ in range(random.randint(1, 3)))
            return f"{spelled(column)} IN ({said})"
        sides = [spelled(column), self._operand(kind, parameters)]
        if random.random() < 0.1:
            sides.reverse()
        term = " = ".join(sides)
        return f"({term})" if random.random() < 0.2 else term

    def _operand(self, kind: str, parameters: list[pa.Array]) -> str:
        random, value = self.random, self.value(kind)
        if random.random() < 0.4 and isinstance(value, int | str):
            return str(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"
        parameters.append(self._parameter(kind, value))
        return f"${len(parameters)}" + (random.choice(["", "::BIGINT"]) if kind == "int64" else "")

    def _parameter(self, kind: str, value: Any) -> pa.Array:
        random, own = self.random, arrow_type(kind)
        if random.random() < 0.05:
            return pa.array([None], own)
        if pa.types.is_integer(own) and random.random() < 0.3:
            return pa.array([value % 100], random.choice([pa.int16(), pa.int32(), pa.int64()]))
        return pa.array([value], own)


def test_answers_are_those_of_the_process(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_query, "QUICK_SECONDS", 60.0)  # else a look-up is not at once where memory is short
    world = World(served, seeded())
    keys, caller = queries(served), served.server.access.caller()
    outcomes = Counter[str]()
    for _ in range(examples(1_500)):
        text, parameters, at = world.question()
        question = Question(text, _parameters(parameters), at=at)
        answer = keys.answer(caller, question)
        outcomes["process" if answer is None else "past" if at else "now"] += 1
        if answer is None:
            continue
        outcomes["rows"] += answer.rows.num_rows > 0
        at_once = keys.answer(caller, question, waits=False)
        outcomes["at once"] += at_once is not None
        assert at_once is None or (at_once.rows, at_once.token) == (answer.rows, answer.token)
        values = [array[0].as_py() for array in parameters]
        expected = served.lake.sql(text, values or None, at=at or None)
        assert answer.rows.schema == expected.table.schema, text
        shown = [Counter(map(repr, rows.to_pylist())) for rows in (answer.rows, expected.table)]
        assert shown[0] == shown[1], (text, values, at)
        assert answer.token == expected.token or not at
        described = keys.describe(caller, question)
        assert described is not None
        assert described.schema == answer.rows.schema
        assert len(described.parameters) == len(parameters)
    assert min(outcomes[name] for name in ("process", "past", "now", "rows", "at once")) > examples(1_500) // 20, (
        outcomes
    )


SHOP = pa.schema([("id", pa.int64()), ("name", pa.string()), ("end", pa.int32())])


@pytest.fixture(scope="module")
def shop(served: Served) -> Served:
    """`shop.t`, keyed by an integer, the same in `other.t`, and a log table."""
    for name in ("shop.t", "other.t"):
        table = served.lake.create_table(name, SHOP, primary_key=["id"])
        table.upsert([{"id": i, "name": f"{name} {i}", "end": i} for i in range(5)])
    served.lake.create_table("shop.log", SHOP).append([{"id": 1, "name": "x", "end": 1}])
    return served


def names(answer: KeyAnswer | None) -> list[str] | None:
    return None if answer is None else answer.rows.column("name").to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM shop.t WHERE id = 1 FOR UPDATE",
        "SELECT name FROM ONLY shop.t WHERE id = 1",
        "SELECT DISTINCT name FROM shop.t WHERE id = 1",
        "SELECT name FROM shop.t WHERE id = 1 LIMIT 0",
        "SELECT name FROM shop.t WHERE id IN (1, 2) LIMIT 1",
        "SELECT name FROM shop.t WHERE id = 1 OFFSET 1",
        "SELECT name FROM shop.t WHERE id = 1.0",
        "SELECT name FROM shop.t WHERE id = '1'",
        "SELECT name FROM shop.t WHERE id = 1 AND id = 2",
        "SELECT name FROM shop.t WHERE id = 1 AND name = 'shop.t 1'",
        "SELECT name FROM shop.t WHERE name = 'shop.t 1'",
        "SELECT name FROM shop.t WHERE id = 1; SELECT 2",
        "SELECT name FROM shop.t WHERE id = 99999999999999999999",
        "SELECT name FROM shop.t, other.t WHERE id = 1",
        "SELECT name FROM shop.t TABLESAMPLE (10 PERCENT) WHERE id = 1",
        "SELECT name FROM shop.t AS x WHERE t.id = 1",
        "SELECT name FROM shop.t AS x (a, b, c) WHERE a = 1",
        "SELECT name FROM shop.t AT (TIMESTAMP => '2026-01-01') WHERE id = 1",
        "SELECT end FROM shop.t WHERE id = 1",
        "SELECT Name FROM shop.t WHERE id = 1",
        "SELECT name AS id, id AS x FROM shop.t WHERE id = 1",
        "SELECT name, name FROM shop.t WHERE id = 1",
        "SELECT __offset FROM shop.t WHERE id = 1",
        "SELECT nothing FROM shop.t WHERE id = 1",
        "SELECT count(*) FROM shop.t WHERE id = 1",
        "SELECT name FROM shop.log WHERE id = 1",
        "SELECT name FROM shop.none WHERE id = 1",
        "SELECT name FROM lake.shop.t WHERE id = 1",
        "SELECT name FROM shop.t WHERE id = $1 AND id = $1",
        "SELECT name FROM shop.t WHERE id = $2",
        "SELECT user FROM shop.t WHERE id = 1",
        "WITH t AS (SELECT 1) SELECT name FROM shop.t WHERE id = 1",
        "EXPLAIN SELECT name FROM shop.t WHERE id = 1",
        "SELECT name FROM shop.t WHERE id = (SELECT 1)",
        "SELECT name FROM shop.t WHERE NOT id = 1",
        "SELECT name FROM shop.t WHERE id = 1" + " " * 5_000,
        "SELECT name FROM t WHERE id = 1",
    ],
)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_unusual_text_is_left_to_the_process(shop: Served, text: str, dialect: Dialect) -> None:
    assert asked(shop, text, dialect=dialect) is None


@pytest.mark.parametrize("dialect", list(Dialect))
def test_usual_texts_are_key_queries(shop: Served, dialect: Dialect) -> None:
    for text in (
        "SELECT name FROM shop.t WHERE id = 3",
        'select "name" from "shop"."t" where "id" = 3;',
        "SELECT x.name FROM shop.t AS x WHERE (x.id = 3) LIMIT 10",
        "SELECT shop.t.name FROM shop.t WHERE 3 = shop.t.id -- a comment",
        'SELECT t.name, "end" FROM shop.t WHERE id IN (3)',
    ):
        assert names(asked(shop, text, dialect=dialect)) == ["shop.t 3"], text
    answer = asked(shop, "SELECT name FROM shop.t WHERE id = $1", pa.array([9]), dialect=dialect)
    assert names(answer) == []


def test_a_question_mark_has_the_next_number(served: Served) -> None:
    served.lake.create_table("shop.pairs", {"a": "int64", "b": "int64", "name": "string"}, primary_key=["a", "b"])
    served.lake.table("shop.pairs").upsert([{"a": 1, "b": 2, "name": "1 2"}, {"a": 2, "b": 1, "name": "2 1"}])
    assert names(asked(served, "SELECT name FROM shop.pairs WHERE b = ? AND (? = a)", 1, 2)) == ["2 1"]


def test_a_name_without_a_database_is_found_by_the_search_path(shop: Served) -> None:
    for path, found in {("other", "shop"): "other.t 1", ("none", "shop"): "shop.t 1"}.items():
        assert names(asked(shop, "SELECT name FROM t WHERE id = 1", search_path=path)) == [found]
    assert asked(shop, "SELECT name FROM t WHERE id = 1", search_path=("none",)) is None


def test_a_null_and_an_alien_parameter_are_left_to_the_process(shop: Served) -> None:
    text = "SELECT name FROM shop.t WHERE id = $1"
    for value in (pa.array([None], pa.int64()), pa.array(["1"]), pa.array([1.0]), pa.array([True])):
        assert asked(shop, text, value) is None
    assert asked(shop, text) is None
    assert asked(shop, text, 1, 2) is None
    assert names(asked(shop, text, pa.array([1], pa.int16()))) == ["shop.t 1"]
    assert asked(shop, "SELECT name FROM shop.t WHERE id IN ($1, 2)", pa.array([True])) is None
    days = {"day": "date", "name": "string"}
    shop.lake.create_table("shop.days", days, primary_key=["day"]).upsert([{"day": dt.date(2026, 1, 1), "name": "x"}])
    by_day = "SELECT name FROM shop.days WHERE day = $1"
    assert asked(shop, by_day, pa.array(["2026-01-01"])) is None
    assert asked(shop, by_day, pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us"))) is None
    assert names(asked(shop, by_day, pa.array([dt.date(2026, 1, 1)]))) == ["x"]


def test_an_altered_table_is_read_by_its_present_columns(served: Served) -> None:
    table = served.lake.create_table("shop.changing", {"id": "int64", "name": "string"}, primary_key=["id"])
    table.upsert([{"id": 1, "name": "x"}])
    text = "SELECT * FROM shop.changing WHERE id = 1"
    first = asked(served, text)
    assert first is not None
    table.alter(RenameColumn("name", "title"))
    second = asked(served, text)
    assert second is not None
    assert (first.rows.schema.names, second.rows.schema.names) == (["id", "name"], ["id", "title"])
    assert asked(served, text, at=first.token) is None  # the cut has other columns: the process shows them
    assert asked(served, "SELECT name FROM shop.changing WHERE id = 1") is None  # an old name
    served.lake.table("shop.changing").rename("shop.changed")
    assert asked(served, text) is None
    assert asked(served, "SELECT * FROM shop.changed WHERE id = 1") is not None


def test_an_old_name_that_a_contract_keeps_is_left_to_the_process(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        orders = filled(served.lake)
        answer = asked(served, "SELECT * FROM shop.orders AS amount WHERE id = 1")
        assert answer is None  # `amount` is a column
        orders.alter(rename={"amount": "total"})
        for text in ("SELECT amount FROM shop.orders WHERE id = 1", "SELECT * FROM shop.orders AS amount WHERE id = 1"):
            assert served.lake.sql(text).table.schema.names.count("total") == 0
            assert asked(served, text) is None
        assert asked(served, "SELECT total FROM shop.orders WHERE id = 1") is not None


def test_rights_are_the_callers(tmp_path: Path) -> None:
    grants = {"ann": {"shop.*": ["read"]}, "bob": {"other.*": ["read"]}, "root": {"*": ["admin"]}}
    auth = write_auth(tmp_path / "auth.yaml", grants)
    with Served(tmp_path / "data", auth=auth) as served:
        served.lake.create_table("shop.t", SHOP, primary_key=["id"]).upsert([{"id": 1, "name": "x", "end": 1}])
        question = Question("SELECT name FROM shop.t WHERE id = 1")
        keys, access = queries(served), served.server.access
        answer = keys.answer(access.caller(token_of("ann")), question)
        assert names(answer) == ["x"]
        bob = access.caller(token_of("bob"))
        assert keys.answer(bob, question) is None
        assert keys.describe(bob, question) is None
        assert answer is not None
        answer.recheck()
        write_auth(tmp_path / "auth.yaml", grants | {"ann": {"other.*": ["read"]}})
        access.refresh()
        with pytest.raises(Denied):
            answer.recheck()


def test_a_requirement_that_is_not_met_is_told_at_once(shop: Served) -> None:
    require = Requirement(through_us=shop.engine.now_us() + 10**12)
    with pytest.raises(NotFresh):
        asked(shop, "SELECT name FROM shop.t WHERE id = 1", require=require)


def test_reserved_words_are_duckdbs_and_postgres() -> None:
    category = "keyword_category IN ('reserved', 'type_function')"
    words = {word for (word,) in duckdb.sql(f"SELECT keyword_name FROM duckdb_keywords() WHERE {category}").fetchall()}
    assert words <= RESERVED


def test_a_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT name FROM shop.once WHERE id = 12345"
    parsed = KeyText.parsed(text, Dialect.DUCKDB)
    assert parsed is not None
    monkeypatch.setattr("lakestore_server.queries.key_query.sqlglot.parse", None)
    assert KeyText.parsed(text, Dialect.DUCKDB) is parsed


def test_a_session_answers_a_key_query_without_a_process(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        served.lake.create_table("shop.t", SHOP, primary_key=["id"]).upsert([{"id": 1, "name": "é", "end": None}])
        service = served.server.queries
        assert service is not None
        session = service.session(served.server.access.caller(), "postgres", soon=False)
        parameters = _parameters([pa.array([1])])
        question = Question(
            "SELECT * FROM shop.t WHERE id = $1", parameters, form=Form.ROWS, binary=(True, False, False)
        )
        described = session.describe(question)
        assert described.parameters == (pa.int64(),)
        with session.run(question) as answer:
            assert answer.schema == described.schema
            (part,) = answer.parts()
            body = b"\0\x03\0\0\0\x08" + (1).to_bytes(8, "big") + b"\0\0\0\x02\xc3\xa9\xff\xff\xff\xff"
            assert (part.rows, bytes(part.data)) == (1, b"D" + (4 + len(body)).to_bytes(4, "big") + body)
        with session.run(replace(question, parameters=_parameters([pa.array([2])]))) as answer:
            assert list(answer.parts()) == []
        with session.run(replace(question, form=Form.ARROW)) as answer:
            assert [batch.to_pylist() for batch in answer.batches()] == [[{"id": 1, "name": "é", "end": None}]]
        assert service.pool.size == 0
        assert (service.figures.keyed["postgres"], service.figures.rows["postgres"]) == (3, 2)
        assert served.lake.status()["queries"]["ended"] == {"postgres": {"ok": 3}}
        session.close()


def test_a_process_says_the_same_of_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {f"c{i}": kind for i, kind in enumerate(VALUES) if not kind.startswith("list")}
    with Served(tmp_path, ports=True) as served:
        table = served.lake.create_table("shop.t", {"id": "int32", **kinds}, primary_key=["id"])
        row = {"id": 1} | {name: VALUES[kind][-1] for name, kind in kinds.items()}
        table.upsert(pa.Table.from_pylist([row, {"id": 2}], schema=table.schema))
        service = served.server.queries
        assert service is not None
        session = service.session(served.server.access.caller(), "flight")
        for dialect in (Dialect.DUCKDB,):
            for text in (
                "SELECT * FROM shop.t WHERE id = $1",
                'SELECT "c1" AS x, id FROM shop.t AS t WHERE t.id = $1::BIGINT',
            ):
                questions = [
                    Question(text, _parameters([pa.array([key], pa.int16())]), dialect=dialect) for key in (1, 2, 3)
                ]
                keyed = [_whole(session, question) for question in questions]
                with monkeypatch.context() as patch:
                    patch.setattr(service.keys, "answer", lambda *_, **__: None)
                    assert [_whole(session, question) for question in questions] == keyed
        assert service.figures.keyed["flight"] == 6
        session.close()


def _whole(session: QuerySession, question: Question) -> tuple[object, ...]:
    """Everything that a door sees of an answer."""
    with session.run(question) as answer:
        rows = [row for batch in answer.batches() for row in batch.to_pylist()]
        return answer.schema, rows, answer.token, answer.figures.rows


def test_at_once_is_only_what_cannot_wait(shop: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, caller = queries(shop), shop.server.access.caller()
    known = Question("SELECT * FROM shop.t WHERE id = $1", _parameters([pa.array([1])]))
    several = Question("SELECT * FROM shop.t WHERE id IN (1, 2)")
    token = str(shop.engine.view.token())
    assert keys.answer(caller, known, waits=False) is None, "the text was never read"
    assert keys.describe(caller, known, waits=False) is None
    for question in (known, several):
        assert keys.answer(caller, question) is not None
    assert names(keys.answer(caller, known, waits=False)) == ["shop.t 1"]
    assert keys.describe(caller, known, waits=False) is not None
    for question in (several, replace(known, at=token), replace(known, require=Requirement(through_us=1))):
        assert keys.answer(caller, question, waits=False) is None, question
    monkeypatch.setattr(keys._rpcs, "key_row_waits", True)
    assert keys.answer(caller, known, waits=False) is None, "other servers are asked"


def test_after_a_read_of_the_disk_look_ups_are_not_made_at_once_for_a_while(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, caller = queries(shop), shop.server.access.caller()
    question = Question("SELECT * FROM shop.t WHERE id = 1")
    assert keys.answer(caller, question) is not None
    reads, now = iter([0, 0, 1, 1, 1]), [100.0]
    monkeypatch.setattr(key_query, "disk_reads", lambda: next(reads))
    monkeypatch.setattr(key_query, "QUICK_SECONDS", -1.0)
    monkeypatch.setattr("lakestore_server.queries.key_query.time.monotonic", lambda: now[0])
    assert keys.answer(caller, question, waits=False) is not None
    assert keys.answer(caller, question, waits=False) is not None
    assert keys.answer(caller, question, waits=False) is not None, "this one reads"
    assert keys.answer(caller, question, waits=False) is None
    assert keys.answer(caller, question) is not None
    now[0] += key_query.DISK_SECONDS
    assert keys.answer(caller, question, waits=False) is not None
