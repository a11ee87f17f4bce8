"""A server in a process of its own whose SQL ports are attacked: its tables, honest sessions, and its figures."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from adbc_driver_flightsql import DatabaseOptions, dbapi

import lakestore as ls
from jepsen.system.server import free_port
from lakestore_server.access.principals import hash_of
from lakestore_server.access.scram import ScramVerifier
from tests.support import http2_fuzz, pgjdbc, postgres_fuzz, recorded
from tests.support.flight_client import FlightClient
from tests.support.process import ServerProcess
from tests.support.rights import token_of, write_auth

ORDER_COUNT = 50
COUNT = "SELECT count(*) FROM shop.orders"
SECONDS = 120.0
_GRANTS = {"boss": {"*": ["admin"]}, "ann": {"shop.*": ["read"]}, "bob": {"shop.*": ["read"]}}
_SCRIPT = r"""
\d
\d shop.orders
SELECT * FROM shop.orders ORDER BY 1 LIMIT 3;
\copy (SELECT * FROM shop.orders) TO STDOUT (FORMAT csv)
\set FETCH_COUNT 7
SELECT order_id FROM shop.orders;
BEGIN; SAVEPOINT a; SELECT nothing; ROLLBACK TO a; COMMIT;
SELECT order_id FROM shop.orders WHERE order_id < 3 \gdesc
"""


class Figures(NamedTuple):
    """What a process holds."""

    resident: int
    """Bytes."""
    threads: int
    sockets: int
    children: int


class FuzzedPorts:
    """The server. Principal `ann` proves her token by SCRAM. `bob` sends his in clear, so his sessions can be sent
    again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        token = token_of("ann")
        verifier = {"tokens": [{"sha256": hash_of(token), "scram": ScramVerifier.of("ann", token).text()}]}
        auth = write_auth(folder / "auth.yaml", _GRANTS, ann=verifier)
        self.port, self.flight_port = free_port(), free_port()
        environment = {
            "LAKESTORE_POSTGRES_PORT": str(self.port),
            "LAKESTORE_FLIGHT_PORT": str(self.flight_port),
            "LAKESTORE_LIMITS_SQL_START_MS": "10000",
            "LAKESTORE_LIMITS_PRINCIPAL_PERCENT": "100",
            "LAKESTORE_LIMITS_QUERY_PROCESSES": "3",
            "LAKESTORE_AUTH": str(auth),
        }
        self.server = ServerProcess(folder / "data", environment=environment)
        with ls.connect(self.server.address, token=token_of("boss")) as lake:
            orders = lake.create_table(
                "shop.orders", {"order_id": "int64", "customer": "string"}, primary_key=["order_id"]
            )
            orders.upsert([{"order_id": number, "customer": "ann"} for number in range(ORDER_COUNT)])
        self._witness = self.connected()
        self._flight = FlightClient(f"127.0.0.1:{self.flight_port}", token_of("ann"))
        self.postgres_sessions: list[list[bytes]] = []
        self.flight_sessions: list[list[bytes]] = []

    def connected(self, user: str = "ann", port: int = 0) -> psycopg.Connection[Any]:
        """An honest connection."""
        token = token_of(user)
        return psycopg.connect(
            host="127.0.0.1", port=port or self.port, user=user, password=token, dbname="shop", autocommit=True
        )

    # --- honest sessions

    def record(self, *, java: bool) -> None:
        """Keep what psql, psycopg, ADBC and, if asked, pgjdbc send."""
        with recorded.Recorder(self.port) as recorder:
            self._psql(recorder.port)
            self._psycopg(recorder.port)
            if java:
                parts = "(values|errors|pieces|batch|arrays)/extended.*|getColumns|copy|transactions|cancel"
                pgjdbc.lines(f"127.0.0.1:{recorder.port}/shop", "bob", token_of("bob"), f"only={parts}")
        self.postgres_sessions = [recorded.postgres_messages(each) for each in recorder.sessions]
        with recorded.Recorder(self.flight_port) as recorder:
            self._adbc(recorder.port)
        self.flight_sessions = [recorded.http2_frames(each) for each in recorder.sessions if each]

    @staticmethod
    def _psql(port: int) -> None:
        command = ["psql", "-X", "-h", "127.0.0.1", "-p", str(port), "-U", "bob", "-d", "shop", "-f", "-"]
        subprocess.run(
            command, input=_SCRIPT, env={**os.environ, "PGPASSWORD": token_of("bob"), "PAGER": "cat"},
            capture_output=True, text=True, timeout=SECONDS, check=True,
        )  # fmt: skip

    def _psycopg(self, port: int) -> None:
        with self.connected("bob", port) as connection, connection.cursor(binary=True) as cursor:
            for number in range(8):
                cursor.execute("SELECT * FROM orders WHERE order_id = %s", [number])
            cursor.execute("SELECT %s::date, %s::numeric, %s", ["2026-11-28", "1.5", ["a", None]])
            with suppress(psycopg.Error), connection.pipeline():
                connection.execute("SELECT 1")
                connection.execute("SELECT nothing")
            with connection.transaction(), connection.cursor("named") as named:
                named.execute("SELECT order_id FROM orders")
                named.fetchmany(3)
            with cursor.copy("COPY orders TO STDOUT (FORMAT binary)") as copy:
                for _ in copy:
                    pass

    @staticmethod
    def _adbc(port: int) -> None:
        options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token_of('bob')}"}
        with dbapi.connect(f"grpc://127.0.0.1:{port}", db_kwargs=options) as connection, connection.cursor() as cursor:
            cursor.execute(COUNT)
            cursor.fetchall()
            cursor.execute("SELECT * FROM shop.orders WHERE order_id = ?", [7])
            cursor.fetch_arrow_table()
            connection.adbc_get_objects(depth="columns").read_all()
            with suppress(dbapi.Error):
                cursor.execute("SELECT nothing")

    # --- attacks

    def attack(self, chance: random.Random) -> None:
        """One hostile connection; what it answers is read in part or not at all."""
        if self.flight_sessions and chance.random() < 0.3:
            self._send(chance, self.flight_port, http2_fuzz.broken(chance, chance.choice(self.flight_sessions)))
            return
        if self.postgres_sessions and chance.random() < 0.6:
            data = postgres_fuzz.replayed(chance, chance.choice(self.postgres_sessions))
        else:
            data = postgres_fuzz.beginning(chance) + postgres_fuzz.broken(chance, postgres_fuzz.messages(chance))
        self._send(chance, self.port, data)

    @staticmethod
    def _send(chance: random.Random, port: int, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as attacker, suppress(OSError):
            cut = chance.randrange(len(data) + 1)
            attacker.sendall(data[:cut])
            attacker.sendall(data[cut:])
            attacker.settimeout(chance.choice((0.01, 0.05, 0.2)))
            for _ in range(chance.choice((0, 1, 50))):
                if not attacker.recv(1 << 16):
                    break
            if chance.random() < 0.2:
                attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    # --- what must hold

    def check(self) -> None:
        """The witness's sessions and a new one are answered."""
        assert self._witness.execute(COUNT.encode()).fetchall() == [(ORDER_COUNT,)]
        assert self._flight.query(COUNT).to_pydict() == {"count_star()": [ORDER_COUNT]}
        with self.connected() as connection:
            assert connection.execute("SELECT customer FROM shop.orders WHERE order_id = 7").fetchall() == [("ann",)]

    def figures(self) -> Figures:
        """Of the server's process."""
        place = Path(f"/proc/{self.server.pid}")
        pages = int((place / "statm").read_text().split()[1])
        return Figures(pages * 4096, len(_names(place / "task")), _sockets(place / "fd"), _children(place))

    def close(self) -> None:
        """End all. `errors` of the server then has its log."""
        self._witness.close()
        self._flight.__exit__(None, None, None)
        self.server.stop()


def _names(folder: Path) -> Sequence[str]:
    return os.listdir(folder)


def _sockets(folder: Path) -> int:
    count = 0
    for name in _names(folder):
        with suppress(OSError):  # closed meanwhile
            count += os.readlink(folder / name).startswith("socket:")
    return count


def _children(place: Path) -> int:
    return sum(len((task / "children").read_text().split()) for task in (place / "task").iterdir() if task.exists())
