"""A session of the Postgres protocol: what it answers to which messages. The query service is a stand-in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lakestore.errors import Denied, Exhausted, Invalid, NotFound, PositionExpired, Unavailable
from lakestore_server.edge.postgres import sqlstates
from lakestore_server.edge.postgres.session import Session
from lakestore_server.queries.question import Cancelled, Dialect, Form
from tests.support import postgres_wire as wire
from tests.support.postgres_session import WireSession
from tests.support.seeds import examples


@pytest.fixture
def session() -> WireSession:
    """A session after its begin."""
    made = WireSession()
    made.begin(database="shop")
    return made


def columns_of(data: list[wire.Reply]) -> list[tuple[str, int, int]]:
    """The columns of the first RowDescription."""
    return next(reply.columns for reply in data if reply.kind == "T")


def tags(data: list[wire.Reply]) -> list[str]:
    """The tags of completed statements."""
    return [reply.text for reply in data if reply.kind == "C"]


# --- the begin


def test_a_session_begins_with_its_variables_and_a_key() -> None:
    answer = WireSession().begin(
        database="shop", application_name="ü", options="-c timezone=europe/berlin -c a.b=x\\ y"
    )
    assert [reply.kind for reply in answer if reply.kind != "S"] == ["R", "K", "Z"]
    values = dict(
        reply.body.rstrip(b"\0").split(b"\0") for reply in answer if reply.kind == "S" and reply.body.count(b"\0") == 2
    )
    said = {name.decode(): value.decode() for name, value in values.items() if value}
    assert said["server_encoding"] == said["client_encoding"] == "UTF8"
    assert (said["TimeZone"], said["application_name"], said["session_authorization"]) == ("Europe/Berlin", "ü", "ann")
    assert (said["is_superuser"], said["integer_datetimes"], said["DateStyle"]) == ("off", "on", "ISO, MDY")
    assert said["server_version"].startswith("15.")


def test_requests_before_the_begin_are_answered_once() -> None:
    session = WireSession()
    assert session.raw(wire.GSS) == b"N"
    assert session.raw(wire.TLS) == b"N", "the port has no certificate"
    assert session.send(wire.TLS)[0].fields["C"] == "08P01"
    assert session.session.is_over


@pytest.mark.parametrize(
    ("version", "options", "answer"),
    [
        ((3, 0), {}, None),
        ((3, 2), {}, None),
        ((3, 9999), {}, b"\0\x03\0\x02\0\0\0\0"),
        ((3, 0), {"_pq_.more": "1"}, b"\0\x03\0\0\0\0\0\x01_pq_.more\0"),
    ],
)
def test_versions_and_options_of_the_protocol_are_negotiated(
    version: tuple[int, int], options: dict[str, str], answer: bytes | None
) -> None:
    replies = WireSession().begin("ann", version, **options)
    assert [reply.body for reply in replies if reply.kind == "v"] == ([] if answer is None else [answer])
    (key,) = [reply.body for reply in replies if reply.kind == "K"]
    assert len(key) == (36 if version[1] >= 2 else 8)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (wire.start("ann", (2, 0)), "0A000"),
        (wire.start(""), "28000"),
        (wire.start("ann", replication="true"), "0A000"),
        (wire.start("ann", options="nonsense"), "42601"),
        (wire.start("ann", client_encoding="LATIN1"), "22023"),
        (wire.start("ann", nonsense="1"), "42704"),
        (b"GET / HTTP/1.1\r\n\r\n", "08P01"),
        (b"\0\0\0\0", "08P01"),
    ],
)
def test_a_begin_that_cannot_be_ends_the_connection(data: bytes, code: str) -> None:
    session = WireSession()
    (answer,) = session.send(data)
    assert (answer.fields["C"], answer.fields["S"]) == (code, "FATAL")
    assert session.session.is_over


# --- the simple protocol


def test_a_query_is_answered_with_columns_rows_and_its_tag(session: WireSession) -> None:
    answer = session.query("SELECT rows 5")
    assert "".join(reply.kind for reply in answer) == "TDDDDDC"
    assert columns_of(answer) == [("n", 20, 0)]
    assert tags(answer) == ["SELECT 5"]
    (question,) = session.service.asked
    assert (question.text, question.dialect, question.form) == ("SELECT rows 5", Dialect.POSTGRES, Form.ROWS)
    assert (question.search_path, question.at, question.binary) == (("shop", "public"), "", ())
    assert session.service.open == 0


@pytest.mark.parametrize("sql", ["", ";;", " -- nothing\n", "/* /* a */ b */ ;"])
def test_a_text_without_a_statement_is_empty(session: WireSession, sql: str) -> None:
    assert session.kinds(wire.query(sql)) == "IZ"


def test_statements_of_one_message_are_one_transaction(session: WireSession) -> None:
    assert tags(session.query("SELECT rows 1; SELECT ';' rows 2; SELECT $$;$$ rows 3;")) == [
        "SELECT 1",
        "SELECT 2",
        "SELECT 3",
    ]
    assert [question.at for question in session.service.asked] == ["", "cut1", "cut1"]
    session.query("SELECT rows 1")
    assert session.service.asked[-1].at == ""


def test_an_error_ends_the_message_and_undoes_what_it_set(session: WireSession) -> None:
    answer = session.query("SET application_name = 'x'; SELECT wrong; SELECT rows 1")
    assert "".join(reply.kind for reply in answer if reply.kind != "S") == "CE"
    assert session.rows("SHOW application_name") == [[""]]
    assert session.status == "I"


def test_the_place_of_an_error_counts_from_the_begin_of_the_text(session: WireSession) -> None:
    assert session.error("SELECT rows 1; SELECT wrong")["P"] == str(8 + len("SELECT rows 1;"))
    assert session.error("SELECT 1; SELECT 'open")["P"] == "18"
    assert session.error("FETCH 1 1 FROM c")["P"] == "9"


def test_a_defect_is_an_answer_and_the_session_lives(session: WireSession) -> None:
    assert session.error("SELECT defect")["C"] == "XX000"
    assert tags(session.query("SELECT rows 1")) == ["SELECT 1"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "update t set a = 1",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT 1",
        "CREATE TABLE t (a int)",
        "/* c */ TRUNCATE t",
        "COPY t FROM STDIN",
        "GRANT SELECT ON t TO x",
    ],
)
def test_a_statement_that_writes_is_told_which_doors_write(session: WireSession, sql: str) -> None:
    error = session.error(sql)
    assert error["C"] == "25006"
    assert "lakestore write" in error["M"]
    assert not session.service.asked
    assert session.error(f"SELECT 1; {sql}")["C"] == "25006"


# --- transactions


def test_a_transaction_reads_one_cut(session: WireSession) -> None:
    session.query("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY, DEFERRABLE")
    assert session.status == "T"
    session.query("SET lakestore.require_freshness = '10s'")
    session.query("SELECT rows 1")
    session.query("SELECT rows 1")
    assert session.error("SET lakestore.at = '2026-01-01T00:00Z'")["C"] == "25001"
    assert session.status == "E"
    assert tags(session.query("COMMIT")) == ["ROLLBACK"]
    first, second = session.service.asked
    assert (first.at, second.at) == ("", "cut1")
    assert (first.require.freshness_us, second.require) == (10_000_000, None)  # type: ignore[union-attr]
    session.query("SELECT rows 1")
    assert (session.service.asked[-1].at, session.service.asked[-1].require) == ("", None)


def test_after_an_error_a_transaction_refuses_statements_until_its_end(session: WireSession) -> None:
    session.query("BEGIN")
    session.query("SAVEPOINT a")
    session.error("SELECT wrong")
    assert session.error("SELECT rows 1")["C"] == "25P02"
    assert session.send(wire.parse("SELECT 1"), wire.SYNC)[0].fields["C"] == "25P02"
    assert tags(session.query("ROLLBACK TO a")) == ["ROLLBACK"]
    assert session.status == "T"
    assert tags(session.query("SELECT rows 1; RELEASE a; COMMIT")) == ["SELECT 1", "RELEASE", "COMMIT"]
    assert session.status == "I"


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (["COMMIT"], "25P01"),
        (["ROLLBACK"], "25P01"),
        (["BEGIN", "BEGIN"], "25001"),
        (["SET LOCAL application_name = 'x'"], "25P01"),
    ],
)
def test_odd_ends_and_begins_are_warnings(session: WireSession, statements: list[str], code: str) -> None:
    for statement in statements:
        answer = session.query(statement)
    (notice,) = [reply.fields for reply in answer if reply.kind == "N"]
    assert (notice["C"], notice["S"]) == (code, "WARNING")
    assert tags(answer)


def test_variables_follow_their_transaction(session: WireSession) -> None:
    session.query("SET application_name = 'a'")
    session.query("BEGIN; SET application_name = 'b'; SET LOCAL timezone = 'Asia/Tokyo'")
    assert session.rows("SHOW TIME ZONE") == [["Asia/Tokyo"]]
    session.query("SAVEPOINT s; SET application_name = 'c'; ROLLBACK TO s")
    assert session.rows("SHOW application_name") == [["b"]]
    answer = session.query("COMMIT")
    assert [reply.text for reply in session.send(wire.query("SHOW timezone")) if reply.kind == "S"] == []
    assert [reply.body for reply in answer if reply.kind == "S"] == [b"TimeZone\0UTC\0"]
    session.query("BEGIN; SET application_name = 'd'; ROLLBACK")
    assert session.rows("SHOW application_name") == [["b"]]
    session.query("RESET ALL")
    assert session.rows("SHOW application_name") == [[""]]


@pytest.mark.parametrize(
    ("sql", "name", "value"),
    [
        ("SET SESSION statement_timeout TO '2min'", "statement_timeout", "2min"),
        ("SET statement_timeout = 1500", "statement_timeout", "1500ms"),
        ("SET TIME ZONE -3", "timezone", "Etc/GMT+3"),
        ("SET TIME ZONE 'GMT-08:00'", "timezone", "Etc/GMT-8"),
        ("SET TIME ZONE '<-05>5'", "timezone", "Etc/GMT+5"),
        ("SET TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE", "timezone", "Etc/GMT-2"),
        ("SET NAMES 'utf-8'", "client_encoding", "UTF8"),
        ("SET client_encoding = '''utf-8'''", "client_encoding", "UTF8"),
        ("SET search_path = a, \"B c\", 'd'", "search_path", 'a, "B c", d'),
        ("SET extra_float_digits = 3", "extra_float_digits", "3"),
        ("SET DateStyle = iso, dmy", "datestyle", "ISO, DMY"),
        ("SET row_security = no", "row_security", "off"),
        ("SET my.own = 'x'", "my.own", "x"),
        ("SELECT set_config('my.own', E'a\\'b', false)", "my.own", "a'b"),
        ("SET lakestore.at = '2026-01-01T00:00Z'", "lakestore.at", "2026-01-01T00:00Z"),
        (
            "SET lakestore.require_complete_through = '2026-01-01T00:00Z'",
            "lakestore.require_complete_through",
            "2026-01-01T00:00Z",
        ),
    ],
)
def test_variables_are_set_and_shown(session: WireSession, sql: str, name: str, value: str) -> None:
    session.query(sql)
    assert session.rows(f"SHOW {name}") == [[value]]
    session.query(f"RESET {name}")
    assert session.rows(f"SHOW {name}") != [[value]] or value == "UTF8"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SET nonsense = 1", "42704"),
        ("SHOW nonsense", "42704"),
        ("SET lakestore.nonsense = 1", "42704"),
        ("SET server_version = 1", "55P02"),
        ("SET client_encoding = latin1", "22023"),
        ("SET lakestore.at = 'nonsense'", "22023"),
        ("SET lakestore.require_freshness = '-1s'", "22023"),
        ("SET timezone = 'Mars/Olympus'", "22023"),
        ("SET extra_float_digits = 4", "22023"),
        ("SET ROLE eve", "0A000"),
        ("SET application_name", "42601"),
        ("SET application_name = ", "42601"),
        ("DECLARE c CURSOR FOR SELECT 1", "25P01"),
        ("DECLARE c SCROLL CURSOR FOR SELECT 1", "55000"),
        ("DECLARE c CURSOR FOR INSERT INTO t VALUES (1)", "42601"),
        ("FETCH 1 FROM c", "34000"),
        ("FETCH PRIOR FROM c", "55000"),
        ("CLOSE c", "34000"),
        ("SAVEPOINT a", "25P01"),
        ("EXECUTE p", "26000"),
        ("DEALLOCATE p", "26000"),
        ("PREPARE TRANSACTION 'x'", "0A000"),
        ("COPY t TO '/tmp/x'", "42501"),
        ("COPY t TO PROGRAM 'x'", "42501"),
        ("COPY t TO STDOUT (FORMAT parquet)", "22023"),
        ("COPY t TO STDOUT (FORMAT csv, FORCE_NOT_NULL (a))", "0A000"),
        ("COPY t TO STDOUT (FORCE_QUOTE *)", "0A000"),
        ("COPY t TO STDOUT (FORMAT csv, FORCE_QUOTE (a)", "42601"),
        ("COPY t TO STDOUT (FORMAT binary, HEADER)", "42601"),
        ("COPY t TO STDOUT (DELIMITER 'ab')", "22023"),
        ("DISCARD nonsense", "42601"),
        ("BEGIN nonsense", "42601"),
    ],
)
def test_what_cannot_be_has_its_code(session: WireSession, sql: str, code: str) -> None:
    assert session.error(sql)["C"] == code
    assert tags(session.query("SELECT rows 1")) == ["SELECT 1"]


@pytest.mark.parametrize(
    "sql",
    [
        "LISTEN a",
        "UNLISTEN *",
        "SET ROLE none",
        "DISCARD PLANS",
        "SET TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "RESET SESSION AUTHORIZATION",
    ],
)
def test_what_changes_nothing_is_accepted(session: WireSession, sql: str) -> None:
    assert tags(session.query(sql))


def test_show_all_has_every_variable(session: WireSession) -> None:
    rows = session.rows("SHOW ALL")
    assert ["server_version_num", "150018", ""] in rows
    assert rows == sorted(rows, key=lambda row: str(row[0]).lower())


def test_functions_of_the_session_become_literals(session: WireSession) -> None:
    session.query("SET application_name = 'it''s'")
    session.query(
        "SELECT current_setting('application_name'), pg_catalog.current_setting('none', true) AS n, current_user,"
        " current_database(), t.user, \"user\", 'current_user', pg_backend_pid() + 1, current_schemas(true)"
    )
    assert session.service.asked[-1].text == (
        "SELECT 'it''s' AS current_setting, CAST(NULL AS VARCHAR) AS n, 'ann' AS current_user,"
        " 'shop' AS current_database, t.user, \"user\", 'current_user', 1 + 1,"
        " ['pg_catalog', 'shop', 'public'] AS current_schemas"
    )
    assert session.error("SELECT current_setting('none')")["C"] == "42704"


def test_values_of_the_client_are_arguments_of_the_session_s_functions(session: WireSession) -> None:
    text = "SELECT set_config($1, $2, false), current_setting($1)"
    answer = session.send(wire.parse(text, "p", (25, 25)), wire.describe("S", "p"), wire.SYNC)
    assert [reply.kind for reply in answer] == ["1", "t", "T", "Z"]
    described = session.service.described[-1].text
    assert session.error("SHOW my.own")["C"] == "42704"  # a description sets nothing
    answer = session.send(wire.bind([b"my.own", b"it's"], statement="p"), wire.execute(), wire.SYNC)
    assert "E" not in "".join(reply.kind for reply in answer)
    asked = session.service.asked[-1]
    assert asked.text == (
        "SELECT CASE WHEN concat(CAST($1 AS VARCHAR), CAST($2 AS VARCHAR)) IS NULL THEN NULL ELSE 'it''s' END"
        " AS set_config, CASE WHEN concat(CAST($1 AS VARCHAR)) IS NULL THEN NULL ELSE 'it''s' END AS current_setting"
    )
    assert described == asked.text.replace("'it''s'", "CAST(NULL AS VARCHAR)")
    assert len(asked.parameters) == 2
    assert session.rows("SHOW my.own") == [["it's"]]


@pytest.mark.parametrize(
    "argument", ["$1", "$1::text", "$1::pg_catalog.text", "CAST($1 AS character varying)", "$1::VARCHAR(20)"]
)
def test_an_argument_of_the_session_s_functions_may_be_cast(session: WireSession, argument: str) -> None:
    text = f"SELECT pg_catalog.current_setting({argument}, $2::bool)"
    for value in (b"t", b"\x01"):
        form = (0, int(value == b"\x01"))
        bound = wire.bind([b"none.such", value], formats=form)
        answer = session.send(wire.parse(text, "", (25, 16)), bound, wire.execute(), wire.SYNC)
        assert "E" not in "".join(reply.kind for reply in answer)
        assert "ELSE CAST(NULL AS VARCHAR) END AS current_setting" in session.service.asked[-1].text
    answer = session.send(wire.parse(text, "", (25, 16)), wire.bind([b"none.such", b"f"]), wire.execute(), wire.SYNC)
    assert "42704" in str(answer)


@pytest.mark.parametrize("verb", ["FETCH FORWARD", "MOVE FORWARD"])
def test_fetch_move_and_close_find_portals_of_the_extended_protocol(session: WireSession, verb: str) -> None:
    session.query("BEGIN")
    opened = session.send(wire.parse("SELECT rows 9"), wire.bind(portal="__p_1"), wire.execute("__p_1", 2), wire.SYNC)
    assert [reply.kind for reply in opened] == ["1", "2", "D", "D", "s", "Z"]
    answer = session.query(f"{verb} 3 __p_1")
    assert "".join(reply.kind for reply in answer) == ("TDDDC" if verb == "FETCH FORWARD" else "C")
    rest = session.send(wire.execute("__p_1"), wire.SYNC)
    assert [reply.kind for reply in rest] == ["D", "D", "D", "D", "C", "Z"]
    assert session.error("DECLARE __p_1 CURSOR FOR SELECT rows 1")["C"] == "42P03"
    session.query("ROLLBACK")


def test_close_ends_portals_of_the_extended_protocol(session: WireSession) -> None:
    session.query("BEGIN")
    for name, text in (("one", "CLOSE one"), ("two", "CLOSE ALL"), ("three", "DECLARE c CURSOR FOR SELECT rows 1")):
        session.send(wire.parse("SELECT rows 9"), wire.bind(portal=name), wire.SYNC)
        assert [reply.kind for reply in session.query(text)] == ["C"]
    session.query("CLOSE three")
    for name in ("one", "two", "three"):
        assert session.error(f"FETCH {name}")["C"] == "34000"
        session.query("ROLLBACK")
        session.query("BEGIN")


# --- the extended protocol


def test_a_statement_is_parsed_bound_described_and_executed(session: WireSession) -> None:
    answer = session.send(
        wire.parse("SELECT rows 4 $1", "p", (20,)),
        wire.describe("S", "p"),
        wire.bind([b"\0\0\0\0\0\0\0\x07"], statement="p", formats=(1,), results=(1,)),
        wire.describe(),
        wire.execute(),
        wire.close("S", "p"),
        wire.SYNC,
    )
    assert "".join(reply.kind for reply in answer) == "1tT2TDDDDC3Z"
    assert answer[1].body == b"\0\x01\0\0\0\x14"
    assert [reply.columns for reply in answer if reply.kind == "T"] == [[("n", 20, 0)], [("n", 20, 1)]]
    (question,) = session.service.asked
    assert question.binary == (True,)
    assert [parameter.value for parameter in question.parameters] == [7]


def test_values_without_a_type_get_that_of_their_place(session: WireSession) -> None:
    session.send(wire.parse("SELECT rows 1 $1 $2"), wire.bind([b"12", None]), wire.execute(), wire.SYNC)
    parameters = session.service.asked[-1].parameters
    assert [parameter.column.to_pylist() for parameter in parameters] == [[12], [None]]
    assert {str(parameter.kind) for parameter in parameters} == {"int64"}
    answer = session.send(wire.parse("SELECT rows 1 $1"), wire.bind([]), wire.execute(), wire.SYNC)
    assert "".join(reply.kind for reply in answer) == "12DCZ"
    error = session.send(wire.parse("SELECT $1"), wire.bind([b"1", b"2"]), wire.execute(), wire.SYNC)[-2]
    assert error.fields["C"] == "08P01"


def test_rows_are_fetched_in_pieces(session: WireSession) -> None:
    session.query("BEGIN")
    assert (
        session.kinds(wire.parse("SELECT rows 8"), wire.bind(portal="c"), wire.execute("c", 2), wire.SYNC) == "12DDsZ"
    )
    assert session.kinds(wire.execute("c", 3), wire.FLUSH) == "DDDs"
    assert session.service.open == 1
    assert session.kinds(wire.execute("c", 3), wire.execute("c", 3), wire.SYNC) == "DDDsCZ"
    assert session.service.open == 0


@pytest.mark.parametrize("end", [wire.query("COMMIT"), wire.query("ROLLBACK"), wire.close("P", "c"), wire.TERMINATE])
def test_an_open_portal_holds_its_answer_until_its_end(session: WireSession, end: bytes) -> None:
    session.query("BEGIN")
    session.send(wire.parse("SELECT rows 8"), wire.bind(portal="c"), wire.execute("c", 2), wire.SYNC)
    assert session.service.open == 1
    session.send(end)
    session.session.release() if session.session.is_over else None
    assert session.service.open == 0


def test_without_a_transaction_sync_ends_portals_and_the_cut(session: WireSession) -> None:
    session.send(wire.parse("SELECT rows 8"), wire.bind(portal="c"), wire.execute("c", 2), wire.SYNC)
    assert session.service.open == 0
    assert session.send(wire.execute("c", 2), wire.SYNC)[0].fields["C"] == "34000"
    pair = wire.bind(), wire.execute()
    session.send(wire.parse("SELECT rows 1"), *pair, *pair, wire.SYNC, *pair, wire.SYNC)
    assert [question.at for question in session.service.asked[1:]] == ["", "cut2", ""]


def test_after_an_error_messages_are_ignored_until_sync(session: WireSession) -> None:
    group = wire.parse("SELECT wrong"), wire.bind(), wire.execute(), wire.execute(), wire.query("SELECT rows 1")
    assert session.kinds(*group, wire.SYNC) == "12EZ"
    assert session.kinds(wire.query("SELECT rows 1")) == "TDCZ"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ([wire.parse("SELECT 1; SELECT 2")], "42601"),
        ([wire.bind(statement="none")], "26000"),
        ([wire.execute("none")], "34000"),
        ([wire.describe("P", "none")], "34000"),
        ([wire.describe("S", "none")], "26000"),
        ([wire.parse("SELECT 1", "p"), wire.parse("SELECT 2", "p")], "42P05"),
        ([wire.parse("SELECT 1"), wire.bind(portal="c"), wire.bind(portal="c")], "42P03"),
        ([wire.parse("SELECT 1"), wire.bind(results=(0, 1)), wire.execute()], "08P01"),
        ([wire.message("F")], "0A000"),
        ([wire.parse("DELETE FROM t"), wire.bind(), wire.execute()], "25006"),
    ],
)
def test_odd_messages_are_refused_and_the_session_lives(session: WireSession, data: list[bytes], code: str) -> None:
    answer = session.send(*data, wire.SYNC)
    assert next(reply.fields["C"] for reply in answer if reply.kind == "E") == code
    assert tags(session.query("SELECT rows 1")) == ["SELECT 1"]


def test_messages_out_of_place_end_the_connection(session: WireSession) -> None:
    answer = session.send(wire.message("p", b"secret\0"), wire.query("SELECT 1"))
    assert [(reply.kind, reply.fields["C"]) for reply in answer] == [("E", "08P01")]
    assert session.session.is_over


def test_commands_run_by_the_extended_protocol_too(session: WireSession) -> None:
    def run(sql: str) -> str:
        return session.kinds(
            wire.parse(sql), wire.describe("S"), wire.bind(), wire.describe(), wire.execute(), wire.SYNC
        )

    assert run("BEGIN") == "1t" + "n2nCZ"
    assert run("SHOW timezone") == "1tT2TDCZ"
    assert run("SET application_name = 'x'") == "1tn2nCSZ"
    assert run("COMMIT") == "1tn2nCZ"
    assert run("") == "1tn2nIZ"


def test_flush_and_copy_messages_are_silent(session: WireSession) -> None:
    assert session.kinds(wire.FLUSH, wire.message("d", b"x"), wire.message("c"), wire.message("f", b"x\0")) == ""


# --- cursors, prepared statements, COPY


def test_a_cursor_is_declared_fetched_and_closed(session: WireSession) -> None:
    session.query("BEGIN; DECLARE c NO SCROLL CURSOR WITHOUT HOLD FOR SELECT rows 7")
    assert len(session.service.asked) == 0
    assert session.kinds(wire.describe("P", "c")) == "T"
    assert session.rows("FETCH 2 FROM c") == [["0"], ["1"]]
    assert session.rows("FETCH NEXT IN c") == [["2"]]
    assert session.rows("FETCH 0 FROM c") == []
    assert tags(session.query("MOVE 2 FROM c")) == ["MOVE 2"]
    assert session.rows("FETCH FORWARD ALL FROM c") == [["5"], ["6"]]
    assert tags(session.query("FETCH c; CLOSE c")) == ["FETCH 0", "CLOSE CURSOR"]
    assert session.service.open == 0


def test_a_cursor_has_the_format_of_its_first_fetch(session: WireSession) -> None:
    session.query("BEGIN; DECLARE c CURSOR FOR SELECT rows 7")
    fetch = wire.parse("FETCH 2 FROM c"), wire.bind(results=(1,)), wire.describe(), wire.execute(), wire.SYNC
    assert columns_of(session.send(*fetch)) == [("n", 20, 1)]
    assert session.service.asked[-1].binary == (True,)
    other = wire.parse("FETCH 2 FROM c"), wire.bind(results=(0,)), wire.execute(), wire.SYNC
    assert session.send(*other)[1].fields["C"] == "0A000"


def test_cursors_end_with_their_transaction_unless_they_are_held(session: WireSession) -> None:
    session.query("BEGIN; DECLARE a CURSOR FOR SELECT rows 9; DECLARE b CURSOR WITH HOLD FOR SELECT rows 9")
    session.query("FETCH 1 FROM a; FETCH 1 FROM b")
    assert session.service.open == 2
    session.query("COMMIT")
    assert session.service.open == 1
    assert session.error("FETCH 1 FROM a")["C"] == "34000"
    assert session.rows("FETCH 1 FROM b") == [["1"]]
    session.query("CLOSE ALL")
    assert session.service.open == 0


def test_the_second_cursor_of_a_name_is_refused(session: WireSession) -> None:
    assert session.error("BEGIN; DECLARE c CURSOR FOR SELECT 1; DECLARE c CURSOR FOR SELECT 1")["C"] == "42P03"


def test_a_statement_is_prepared_and_executed_in_sql(session: WireSession) -> None:
    session.query("PREPARE p (bigint, numeric(4, 2)) AS SELECT rows 2 $1 $2")
    assert session.rows("EXECUTE p (7, '15')") == [["0"], ["1"]]
    question = session.service.asked[-1]
    assert question.text == "SELECT rows 2 CAST($1 AS bigint) CAST($2 AS  numeric(4, 2))"
    assert len(question.parameters) == 2
    assert session.error("EXECUTE p (1)")["C"] == "42601"
    assert session.error("EXECUTE p (1, 1 + 1)")["C"] == "0A000"
    assert session.error("PREPARE p AS SELECT 1")["C"] == "42P05"
    assert tags(session.query("DEALLOCATE PREPARE p")) == ["DEALLOCATE"]
    session.query("PREPARE p AS SELECT 1")
    assert tags(session.query("DISCARD ALL")) == ["DISCARD ALL"]
    assert session.error("EXECUTE p")["C"] == "26000"


@pytest.mark.parametrize(
    ("sql", "form", "text"),
    [
        ("COPY (SELECT rows 4) TO STDOUT", Form.COPY_TEXT, "SELECT rows 4"),
        ('COPY shop."Or ders" (a, b) TO STDOUT CSV HEADER', Form.COPY_CSV, 'SELECT a, b FROM shop."Or ders"'),
        ("COPY t TO STDOUT WITH (FORMAT binary)", Form.COPY_BINARY, "SELECT * FROM t"),
        ("COPY t TO STDOUT WITH (FORMAT csv, DELIMITER ';', HEADER true, NULL 'x')", Form.COPY_CSV, "SELECT * FROM t"),
    ],
)
def test_copy_sends_its_rows_as_data(session: WireSession, sql: str, form: Form, text: str) -> None:
    answer = session.query(sql)
    kinds = "".join(reply.kind for reply in answer)
    assert kinds[0] + kinds[-2:] == "HcC"
    assert set(kinds[1:-2]) == {"d"}
    assert tags(answer) == [f"COPY {kinds.count('d')}"]
    question = session.service.asked[-1]
    assert (question.form, question.text) == (form, text)
    if "HEADER" in sql:
        assert question.copy.has_header
    if ";" in sql:
        assert (question.copy.delimiter, question.copy.null) == (";", "x")


# --- cancel, time, errors


def test_a_cancel_request_ends_the_statement_under_way(session: WireSession) -> None:
    other = Session(session.door, session.session.peer)
    key = wire.cancel(1, b"ssss")
    session.service.on_part = lambda: (other.receive(key), list(other.answers()))  # type: ignore[assignment,func-returns-value]
    answer = session.query("SELECT rows 9")
    assert answer[-1].fields["C"] == "57014"
    assert "user request" in answer[-1].fields["M"]
    assert other.is_over
    assert session.service.open == 0
    session.service.on_part = None
    assert tags(session.query("SELECT rows 9")) == ["SELECT 9"]


@pytest.mark.parametrize(
    "data",
    [
        wire.query("SELECT rows 9"),
        wire.parse("SELECT rows 9") + wire.bind() + wire.execute() + wire.SYNC,
    ],
)
def test_a_cancel_request_ends_a_statement_that_has_not_begun(session: WireSession, data: bytes) -> None:
    """Its bytes are there, but no question is. Statements behind it are not ended."""
    session.session.expect()
    session.door.cancel(1, b"ssss")
    (error,) = [reply for reply in session.send(data) if reply.kind == "E"]
    assert error.fields["C"] == "57014"
    assert error.fields["M"] == "canceling statement due to user request"
    assert len(session.rows("SELECT rows 9")) == 9


def test_a_cancel_request_is_over_when_everything_is_answered(session: WireSession) -> None:
    session.session.expect()
    session.session.rest()
    session.door.cancel(1, b"ssss")
    assert len(session.rows("SELECT rows 9")) == 9
    session.session.expect()
    session.door.cancel(1, b"ssss")
    session.session.rest()
    assert len(session.rows("SELECT rows 9")) == 9


@pytest.mark.parametrize("key", [wire.cancel(1, b"ssst"), wire.cancel(2, b"ssss")])
def test_a_cancel_request_with_another_secret_or_without_a_statement_does_nothing(
    session: WireSession, key: bytes
) -> None:
    for data in (key, wire.cancel(1, b"ssss")):
        other = Session(session.door, session.session.peer)
        other.receive(data)
        assert b"".join(other.answers()) == b""
    assert not session.service.is_cancelled


def test_the_time_of_a_statement_is_bounded_by_its_variable(session: WireSession) -> None:
    session.query("SET statement_timeout = '2s'")
    session.service.on_part = lambda: session.door.timers[-1][1]()
    assert session.error("SELECT rows 9")["M"] == "canceling statement due to statement timeout"
    assert session.door.timers == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Denied("no"), "42501"),
        (NotFound("no"), "42P01"),
        (PositionExpired("no"), "72000"),
        (Exhausted("no"), "53000"),
        (sqlstates.SqlError("22003", "no"), "22003"),
        (Invalid("the query failed: there is no table 'x'"), "42P01"),
        (Invalid("the query cannot be read: selec"), "42601"),
        (Invalid("no"), "42000"),
        (Unavailable("the query's process has ended by SIGKILL: memory"), "58000"),
        (Cancelled("the query was ended: it took 60 seconds"), "57014"),
    ],
)
def test_errors_have_codes(error: Exception, code: str) -> None:
    assert sqlstates.sqlstate_of(error) == code  # type: ignore[arg-type]


# --- garbage

_PARTS = some.sampled_from(
    [
        wire.parse("SELECT rows 3"),
        wire.parse("SELECT wrong", "p"),
        wire.parse("BEGIN"),
        wire.bind(),
        wire.bind(statement="p", portal="c"),
        wire.describe(),
        wire.describe("S", "p"),
        wire.execute(),
        wire.execute("c", 1),
        wire.close("P", ""),
        wire.SYNC,
        wire.FLUSH,
        wire.query("BEGIN; DECLARE c CURSOR FOR SELECT rows 5"),
        wire.query("FETCH 2 FROM c"),
        wire.query("ROLLBACK"),
        wire.query("COPY (SELECT rows 3) TO STDOUT"),
        wire.message("d", b"x"),
    ]
)


@given(some.lists(_PARTS | some.binary(max_size=12), max_size=12), some.integers(1, 7))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_answered_with_whole_messages_and_nothing_stays_open(parts: list[bytes], step: int) -> None:
    session = WireSession()
    session.begin()
    data, answer = b"".join(parts), b""
    for begin in range(0, len(data), step):
        answer += session.raw(data[begin : begin + step])
    wire.replies(answer)
    session.session.release()
    assert session.service.open == 0


def test_a_session_of_a_hasty_client_is_the_same_as_one_message_at_a_time() -> None:
    parts = [
        wire.parse("SELECT rows 3"),
        wire.bind(),
        wire.describe(),
        wire.execute(),
        wire.SYNC,
        wire.query("SHOW jit"),
    ]
    answers = []
    for groups in ([b"".join(parts)], parts):
        session = WireSession()
        session.begin()
        answers.append(b"".join(session.raw(group) for group in groups))
    assert answers[0] == answers[1]
