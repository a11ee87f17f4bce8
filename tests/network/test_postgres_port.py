"""The Postgres port of a real server, by psycopg and by plain sockets."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore_server.access.principals import hash_of
from lakestore_server.access.scram import ScramVerifier
from lakestore_server.edge.postgres.port import Connection, PostgresPort
from lakestore_server.queries import key_query
from lakestore_server.queries.question import Question
from lakestore_server.queries.service import QuerySession
from lakestore_server.settings import Postgres, Tls
from tests.support import postgres_wire as wire
from tests.support.certificates import Authority
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string())])
ROWS = [{"id": number, "who": f"Zoë {number}"} for number in range(5)]


def with_scram(name: str) -> dict[str, Any]:
    """Fields of a principal whose token has a verifier."""
    token = token_of(name)
    return {"tokens": [{"sha256": hash_of(token), "scram": ScramVerifier.of(name, token).text()}]}


GRANTS = {"ann": {"shop.*": ["read"]}, "bob": {"shop.*": ["read"]}, "eve": {"other.*": ["read"]}}
DIALOGS = {name: with_scram(name) for name in ("ann", "eve")}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with TLS and principals: ann has a verifier, bob only a hash, eve reads nothing."""
    folder = tmp_path_factory.mktemp("postgres")
    authority = Authority(folder)
    signed = authority.sign("localhost")
    authority.sign("bob")
    auth = write_auth(folder / "auth.yaml", GRANTS, **DIALOGS)
    settings: dict[str, Any] = {
        "postgres": Postgres(port=0),
        "auth": str(auth),
        "tls": Tls(cert=str(signed.cert), key=str(signed.key), client_ca=str(authority.cert)),
    }
    with Served(folder / "data", ports=True, **settings) as served:
        orders = served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"])
        orders.upsert(ROWS)
        served.folder = folder  # type: ignore[attr-defined]
        yield served


def port_of(served: Served) -> int:
    """The number of the Postgres port."""
    return int(served.server.about["postgres"].rpartition(":")[2])


def connected(served: Served, user: str = "ann", **options: Any) -> psycopg.Connection[Any]:
    """A connection by psycopg."""
    about = {"host": "127.0.0.1", "port": port_of(served), "user": user, "password": token_of(user), "dbname": "shop"}
    return psycopg.connect(**{**about, "sslmode": "require", "autocommit": True, **options})


def spoken(served: Served) -> socket.socket:
    """A plain connection."""
    return socket.create_connection(("127.0.0.1", port_of(served)), 20)


def same(connection: psycopg.Connection[Any]) -> socket.socket:
    """A socket of its own on psycopg's connection: each of both closes only its own descriptor."""
    return socket.socket(fileno=os.dup(connection.pgconn.socket))


def rest_of(plain: socket.socket) -> bytes:
    """Everything that the server still sends until it closes the connection."""
    parts = []
    while data := plain.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


@pytest.mark.parametrize("encryption", ["require", "disable"])
def test_psycopg_reads_a_table_after_a_dialog_of_scram(served: Served, encryption: str) -> None:
    with connected(served, sslmode=encryption, require_auth="scram-sha-256") as connection:
        assert connection.execute("SELECT id, who FROM shop.orders ORDER BY id").fetchall() == [
            (number, f"Zoë {number}") for number in range(5)
        ]
        assert bool(connection.pgconn.ssl_in_use) == (encryption == "require")


def test_clients_bind_their_proof_to_the_certificate(served: Served) -> None:
    with connected(served, channel_binding="require") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    about = f"host=127.0.0.1 port={port_of(served)} user=ann dbname=shop sslmode=require channel_binding=require"
    environment = {**os.environ, "PGPASSWORD": token_of("ann")}
    done = subprocess.run(
        ["psql", "-X", "-A", "-t", "-c", "SELECT count(*) FROM orders", about],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("5\n", "")


def direct(served: Served, *protocols: str) -> ssl.SSLSocket:
    """A connection that begins with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context.wrap_socket(spoken(served))


def test_a_client_may_begin_with_tls(served: Served) -> None:
    """libpq 17's sslnegotiation=direct. Without the protocol's name in TLS the connection is closed."""
    with connected(served, sslnegotiation="direct", channel_binding="require") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with direct(served, "h2", "postgresql") as socket_of:
        socket_of.sendall(wire.start("ann", database="shop"))
        assert socket_of.recv(100).startswith(b"R\0\0\0\x2a\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")
    for protocols in ((), ("h2",)):
        with suppress(OSError), direct(served, *protocols) as socket_of:
            socket_of.sendall(wire.start("ann", database="shop"))
            assert socket_of.recv(100) == b"", protocols


def test_a_client_hello_in_pieces_begins_tls(served: Served) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with spoken(served) as plain:
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        for place in range(len(hello)):
            plain.sendall(hello[place : place + 1])
        is_done = False
        while not is_done:
            incoming.write(plain.recv(1 << 16))
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                is_done = True
        assert tls.selected_alpn_protocol() == "postgresql"


def test_a_cancel_before_the_question_begins_ends_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request comes after the statement's start and before a process has its question."""
    begin, begun, goes_on = QuerySession._begin, threading.Event(), threading.Event()

    def slow(self: QuerySession, question: Question) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return begin(self, question)

    refused = threading.Event()
    cancel = QuerySession.cancel

    def noted(self: QuerySession, why: str, **about: bool) -> None:
        cancel(self, why, **about)
        refused.set()

    monkeypatch.setattr(QuerySession, "_begin", slow)
    monkeypatch.setattr(QuerySession, "cancel", noted)
    with connected(served) as connection, ThreadPoolExecutor(1) as client:
        text = "SELECT count(*) FROM shop.orders"
        answer = client.submit(connection.execute, text)
        assert begun.wait(60)
        connection.cancel_safe()
        assert refused.wait(60)
        goes_on.set()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            answer.result(60)
        assert connection.execute(text).fetchone() == (5,)


def test_the_time_zone_of_a_session_moves_its_times(served: Served) -> None:
    with connected(served) as connection:
        text = "SELECT timestamptz '2026-01-01 00:00:00+00'::text"
        for zone, shown in (("America/New_York", "2025-12-31 19:00:00-05"), ("UTC", "2026-01-01 00:00:00+00")):
            connection.execute(f"SET TimeZone = '{zone}'")
            assert connection.pgconn.parameter_status(b"TimeZone") == zone.encode()
            assert connection.execute("SHOW TimeZone").fetchone() == (zone,)
            assert connection.execute(text).fetchone() == (shown,)
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SET TimeZone = 'No/Where'")


def test_a_token_without_a_verifier_and_an_access_token_are_sent_in_clear(served: Served) -> None:
    with connected(served, "bob", require_auth="password") as connection:
        assert connection.execute("SELECT count(*) FROM shop.orders").fetchone() == (5,)
    access = served.server.access
    token, _ = access.exchanged(access.caller(token_of("ann")))
    clear = "-c lakestore.password=clear"
    with connected(served, password=token, options=clear, require_auth="password") as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("ann",)


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", "wrong"), ("nobody", "x"), ("ann", "")])
def test_a_wrong_token_and_an_unknown_user_are_refused_alike(served: Served, user: str, password: str) -> None:
    password = password or token_of("bob")
    with pytest.raises(psycopg.OperationalError, match=f'password authentication failed for user "{user}"'):
        connected(served, user, password=password)


def test_a_client_certificate_with_the_user_s_name_is_enough(served: Served) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    files = {"sslcert": str(folder / "ca-bob.pem"), "sslkey": str(folder / "ca-bob.key")}
    (folder / "ca-bob.key").chmod(0o600)
    with connected(served, "bob", password="", require_auth="none", **files) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("bob",)
    with connected(served, "ann", **files) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("ann",)


def test_a_caller_reads_what_it_may_read(served: Served) -> None:
    with connected(served, "eve") as connection:
        with pytest.raises(psycopg.Error) as refusal:
            connection.execute("SELECT * FROM shop.orders")
        assert refusal.value.sqlstate in ("42501", "42P01", "42000")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_session_ends_when_its_access_token_expires(served: Served) -> None:
    access = served.server.access
    token, seconds = access.exchanged(access.caller(token_of("ann")))
    with connected(served, password=token, options="-c lakestore.password=clear") as connection:
        connection.execute("SELECT 1")
        served.clock.advance(seconds + 1)
        with pytest.raises(psycopg.Error) as refusal:
            connection.execute("SELECT 1")
        assert refusal.value.sqlstate == "28000"
        assert connection.closed


@pytest.mark.parametrize("condition", ["id + 0 < 9", "id IN (0, 1, 2, 3)"])
def test_rows_that_wait_for_their_client_end_with_the_right(served: Served, condition: str) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    with connected(served) as connection:
        connection.execute("BEGIN")
        connection.execute(f"DECLARE c CURSOR FOR SELECT id FROM shop.orders WHERE {condition}")
        assert len(connection.execute("FETCH 1 FROM c").fetchall()) == 1
        try:
            write_auth(folder / "auth.yaml", GRANTS | {"ann": {"other.*": ["read"]}}, **DIALOGS)
            served.clock.advance(2)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("FETCH 1 FROM c")
        finally:
            write_auth(folder / "auth.yaml", GRANTS, **DIALOGS)
            served.clock.advance(2)
        connection.execute("ROLLBACK")


def test_a_copy_ends_with_the_right_to_its_table(served: Served) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    text = "COPY (SELECT id, range FROM shop.orders, range(1000000000000)) TO STDOUT"

    def copy_on(cursor: psycopg.Cursor[Any]) -> None:
        with cursor.copy(text) as copy:
            next(iter(copy))
            write_auth(folder / "auth.yaml", GRANTS | {"ann": {"other.*": ["read"]}}, **DIALOGS)
            served.clock.advance(2)
            for _ in copy:
                pass

    with connected(served) as connection, connection.cursor() as cursor:
        try:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"no right 'read' on shop\.orders"):
                copy_on(cursor)
        finally:
            write_auth(folder / "auth.yaml", GRANTS, **DIALOGS)
            served.clock.advance(2)
        assert cursor.execute("SELECT count(*) FROM shop.orders").fetchone() == (5,), "the session lives"


def test_a_query_is_cancelled_by_its_client(served: Served) -> None:
    long = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
    with connected(served) as connection:
        timer = threading.Timer(1.0, connection.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute(long)
        timer.join()
        connection.execute("SET statement_timeout = '500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            connection.execute(long)
        connection.execute("RESET statement_timeout")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_leaves_ends_its_query(served: Served) -> None:
    assert served.server.queries is not None
    with closing(connected(served)) as connection, same(connection) as plain:
        connection.pgconn.send_query(b"SELECT count(*) FROM range(1000000) a, range(1000000) b")
        until(lambda: len(served.server.queries.running()) == 1, "the query runs")  # type: ignore[union-attr]
        plain.shutdown(socket.SHUT_RDWR)
        until(lambda: not served.server.queries.running(), "the query is over")  # type: ignore[union-attr]


def test_a_transaction_reads_one_cut_while_others_write(served: Served) -> None:
    table = served.lake.create_table("shop.counts", SCHEMA, primary_key=["id"])
    table.upsert(ROWS[:2])
    with connected(served) as connection, connection.cursor() as cursor:
        with connection.transaction():
            assert cursor.execute("SELECT count(*) FROM shop.counts").fetchone() == (2,)
            token = table.upsert(ROWS)
            assert cursor.execute("SELECT count(*) FROM shop.counts").fetchone() == (2,)
        assert cursor.execute("SELECT count(*) FROM shop.counts").fetchone() == (5,)
        table.delete([{"id": 1}])
        cursor.execute("SELECT set_config('lakestore.at', %s, false)", [str(token)])
        assert cursor.execute("SELECT count(*) FROM shop.counts").fetchone() == (5,)
        cursor.execute("RESET lakestore.at")
        assert cursor.execute("SELECT count(*) FROM shop.counts").fetchone() == (4,)


@pytest.mark.parametrize("is_binary", [False, True])
def test_rows_come_by_cursors_and_copy(served: Served, is_binary: bool) -> None:
    with connected(served, autocommit=False) as connection:
        with connection.cursor("c", binary=is_binary) as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT id, who FROM shop.orders ORDER BY id")
            assert cursor.fetchmany(3) == [(0, "Zoë 0"), (1, "Zoë 1"), (2, "Zoë 2")]
            assert cursor.fetchall() == [(3, "Zoë 3"), (4, "Zoë 4")]
        form = "(FORMAT binary)" if is_binary else ""
        with connection.cursor().copy(f"COPY (SELECT id, who FROM shop.orders ORDER BY id) TO STDOUT {form}") as copy:
            copy.set_types(["int8", "text"])
            assert list(copy.rows()) == [(number, f"Zoë {number}") for number in range(5)]


def test_copy_of_a_table_as_csv_has_a_header(served: Served) -> None:
    with connected(served) as connection, connection.cursor() as cursor:
        with cursor.copy(
            "COPY (SELECT id, who FROM shop.orders WHERE id < 2 ORDER BY id) TO STDOUT CSV HEADER"
        ) as copy:
            assert b"".join(copy).decode() == "id,who\n0,Zoë 0\n1,Zoë 1\n"


def test_a_write_is_told_which_doors_write(served: Served) -> None:
    with connected(served) as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="lakestore write"):
            connection.execute("DELETE FROM shop.orders")


def test_bytes_that_are_no_message_end_the_connection(served: Served) -> None:
    with spoken(served) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        (answer,) = wire.replies(rest_of(plain))
        assert answer.fields["C"] == "08P01"


def test_bytes_before_the_begin_of_tls_are_refused(served: Served) -> None:
    with spoken(served) as plain:
        plain.sendall(wire.TLS + wire.start())
        assert b"08P01" in rest_of(plain)


def small(folder: Path, limits: Limits) -> Served:
    """A server without principals."""
    limits = replace(limits, query_processes=1)
    return Served(folder / "data", ports=True, postgres=Postgres(port=0), limits=limits)


def test_a_connection_is_shown_among_the_clients(served: Served) -> None:
    console = served.server._console
    assert console is not None

    def shown() -> dict[str, tuple[str, int]]:
        return {each.peer: (each.principal, each.streams) for each in console.clients.now() if each.port == "postgres"}

    with connected(served) as connection:
        with same(connection) as plain:
            peer = ":".join(map(str, plain.getsockname()))
        assert shown()[peer] == ("ann", 1)
    until(lambda: shown()[peer] == ("ann", 0), "the end of the connection")


def test_connections_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    with small(tmp_path, Limits(sql_connections=4, sql_start_ms=10_000)) as served:
        known = [connected(served, sslmode="disable") for _ in range(3)]
        first = spoken(served)
        second = spoken(served)
        assert b"53300" in rest_of(second)
        known.pop().close()
        figures = served.server.sources.postgres
        until(lambda: (figures.known, figures.unknown) == (2, 1), "connections are counted")
        third = spoken(served)
        assert rest_of(first) == b"", "the oldest unknown client makes room"
        assert rest_of(third) == b"", "a client that says nothing is cut off"
        until(lambda: (figures.known, figures.unknown) == (2, 0), "connections are counted")
        assert figures.refused == 3
        assert known[0].execute("SHOW jit").fetchone() == ("off",)
        for connection in known:
            connection.close()


def test_unfinished_messages_have_a_budget(tmp_path: Path) -> None:
    with small(tmp_path, Limits(sql_receiving_bytes=1 << 20)) as served:
        with spoken(served) as plain, connected(served, sslmode="disable") as other:
            plain.sendall(wire.start())
            plain.sendall(wire.query("SELECT '" + "x" * (4 << 20) + "'")[: 3 << 20])
            with suppress(ConnectionResetError):  # bytes that the server has not read may undo its last answer
                assert b"53200" in rest_of(plain)
            assert other.execute("SHOW jit").fetchone() == ("off",)


def test_a_slow_client_stops_its_query_and_a_stalled_one_is_cut_off(tmp_path: Path) -> None:
    with small(tmp_path, Limits(query_seconds=10)) as served:
        assert served.server.queries is not None
        with spoken(served) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            plain.sendall(wire.start() + wire.query("SELECT i, repeat('x', 100) FROM range(5000000) t(i)"))
            until(lambda: any(run.nbytes for run in served.server.queries.running()), "rows are sent")  # type: ignore[union-attr]
            time.sleep(1)
            (run,) = served.server.queries.running()
            assert run.nbytes < 64 << 20
            until(lambda: not served.server.queries.running(), "the query is over")  # type: ignore[union-attr]
            figures = served.server.sources.postgres
            until(lambda: not figures.known, "the connection is cut off")


KEY_QUERY = "SELECT who FROM shop.orders WHERE id = $1"


def looked_up(*keys: str, sync: bool = True) -> bytes:
    """Messages that ask the prepared statement `k` for these keys, each behind its own Sync or all behind one."""
    end = wire.message("S") if sync else b""
    asked = b"".join(wire.bind([key.encode()], statement="k") + wire.describe() + wire.execute() + end for key in keys)
    return asked if sync else asked + wire.message("S")


def until_ready(plain: socket.socket, count: int = 1) -> list[wire.Reply]:
    """The messages up to so many ReadyForQuery."""
    data, ready, place = bytearray(), b"Z\0\0\0\5", 0
    while count:
        place = data.find(ready, max(place, 0))
        if place >= 0 and len(data) > place + len(ready):
            count, place = count - 1, place + len(ready)
            continue
        place = len(data) - len(ready) if place < 0 else place
        more = plain.recv(1 << 20)
        assert more, bytes(data[-200:])
        data += more
    return wire.replies(bytes(data))


def connections(served: Served) -> list[Connection]:
    """The connections of the server's port."""
    assert served.server._postgres is not None
    return list(served.server._postgres._connections)


@contextmanager
def prepared(served: Served) -> Iterator[socket.socket]:
    """A connection that has prepared and asked `KEY_QUERY` once."""
    with spoken(served) as plain:
        plain.sendall(wire.start(database="shop") + wire.parse(KEY_QUERY, "k", [20]) + looked_up("0"))
        assert until_ready(plain, 2)[-1].kind == "Z"
        until(lambda: not any(each.is_working for each in connections(served)), "the thread of the begin is done")
        yield plain


@contextmanager
def with_orders(folder: Path) -> Iterator[Served]:
    """A small server with shop.orders."""
    with small(folder, Limits()) as served:
        served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"]).upsert(ROWS)
        yield served


def test_a_key_query_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with with_orders(tmp_path) as served, prepared(served) as plain:
        works: list[object] = []
        run = PostgresPort.run

        def counted(port: PostgresPort, work: Callable[[], None]) -> None:
            works.append(work)
            run(port, work)

        monkeypatch.setattr(PostgresPort, "run", counted)
        monkeypatch.setattr(key_query, "QUICK_SECONDS", 60.0)  # else a slow look-up may get a thread
        for key in ("3", "4", "9"):
            plain.sendall(looked_up(key))
            rows = [reply.values for reply in until_ready(plain) if reply.kind == "D"]
            assert rows == ([[f"Zoë {key}".encode()]] if key != "9" else [])
        plain.sendall(wire.parse(KEY_QUERY, "", [20]) + wire.bind([b"2"]) + wire.execute() + wire.message("S"))
        assert [reply.kind for reply in until_ready(plain)] == ["1", "2", "D", "C", "Z"]
        assert not works
        plain.sendall(wire.query("SELECT count(*) FROM shop.orders"))
        assert [reply.values for reply in until_ready(plain) if reply.kind == "D"] == [[b"5"]]
        assert len(works) == 1


def test_an_error_in_a_pipeline_skips_to_its_sync(tmp_path: Path) -> None:
    with with_orders(tmp_path) as served, prepared(served) as plain:
        plain.sendall(looked_up("1", "no number", "2", sync=False) + looked_up("3"))
        replies = until_ready(plain, 2)
        assert [reply.kind for reply in replies] == [*"2TDC2E", "Z", *"2TDCZ"]
        assert [reply.fields["C"] for reply in replies if reply.kind == "E"] == ["22P02"]
        assert [reply.values[0] for reply in replies if reply.kind == "D"] == ["Zoë 1".encode(), "Zoë 3".encode()]


def test_a_long_pipeline_lets_others_have_their_turn(tmp_path: Path) -> None:
    count = 10_000
    with with_orders(tmp_path) as served, prepared(served) as long, prepared(served) as short:
        keyed = served.server.queries.figures.keyed  # type: ignore[union-attr]
        sender = threading.Thread(target=lambda: long.sendall(looked_up("1") * count))
        sender.start()
        until(lambda: keyed["postgres"] > 100, "the pipeline is under way")
        before = keyed["postgres"]
        short.sendall(looked_up("2"))
        until_ready(short)
        passed = keyed["postgres"] - before
        replies = until_ready(long, count)
        sender.join()
    assert passed < count // 2
    assert sum(reply.kind == "D" for reply in replies) == count


def test_a_client_that_does_not_read_its_key_queries_stops_them(tmp_path: Path) -> None:
    count, text = 300, "x" * 100_000
    with with_orders(tmp_path) as served:
        served.lake.table("shop.orders").upsert([{"id": 7, "who": text}])
        with prepared(served) as plain:
            changed, keyed = connections(served)[0]._changed, served.server.queries.figures.keyed  # type: ignore[union-attr]
            plain.sendall(looked_up("7") * count)
            until(lambda: changed._waiters or keyed["postgres"] > count, "the server waits for its client")  # type: ignore[attr-defined]
            assert keyed["postgres"] < count // 2
            replies = until_ready(plain, count)
    assert sum(reply.kind == "D" and reply.values == [text.encode()] for reply in replies) == count


def test_a_server_that_stops_tells_its_sessions(tmp_path: Path) -> None:
    with small(tmp_path, Limits()) as served:
        idle, busy = connected(served, sslmode="disable"), connected(served, sslmode="disable")
        busy.pgconn.send_query(b"SELECT count(*) FROM range(1000000) a, range(1000000) b")
        assert served.server.queries is not None
        until(lambda: len(served.server.queries.running()) == 1, "the query runs")  # type: ignore[union-attr]
        assert not served.server.drain(0.5)
        with pytest.raises(psycopg.errors.AdminShutdown):
            idle.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            connected(served, sslmode="disable")
        served.close()
        result = busy.pgconn.get_result()
        assert result is not None
        assert b"administrator" in result.error_message


def test_without_a_setting_there_is_no_port(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        assert "postgres" not in served.server.about
        assert served.server.queries is not None
        assert served.server.queries.pool.size == 0


def test_a_process_waits_for_the_first_query_and_is_replaced(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True, postgres=Postgres(port=0)) as served:
        assert served.server.queries is not None
        pool = served.server.queries.pool
        (ready,) = pool._idle
        assert ready.child.pid is not None
        with connected(served, sslmode="disable") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert pool.bound == 0, "the server answers a constant query itself"
            assert connection.execute("SELECT 1 + 1").fetchone() == (2,)
            assert ready.owner == ""
            until(lambda: pool.counts() == {"unused": 1, "idle": 1, "busy": 0}, "another one waits")
