"""A server with its SQL ports open: tables of every kind, hot rows and rows of the lake, principals with few rights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import psycopg
import pyarrow as pa

import lakestore as ls
from lakestore.limits import Limits
from lakestore.model import types
from lakestore_server.access.principals import hash_of
from lakestore_server.access.scram import ScramVerifier
from lakestore_server.main import Server
from lakestore_server.settings import Postgres, Settings
from tests.support.log_tierer import LogTierer
from tests.support.rights import token_of, write_auth

_MOMENT = dt.datetime(2026, 11, 28, 15, 30, 1, 234567)
EVERY: dict[str, tuple[str, Any, Any]] = {
    "truth": ("bool", True, False),
    "tiny": ("int8", -(2**7), 2**7 - 1),
    "small": ("int16", -(2**15), 2**15 - 1),
    "whole": ("int32", -(2**31), 2**31 - 1),
    "big": ("int64", -(2**63), 2**63 - 1),
    "utiny": ("uint8", 0, 2**8 - 1),
    "usmall": ("uint16", 0, 2**16 - 1),
    "uwhole": ("uint32", 0, 2**32 - 1),
    "real": ("float32", 0.5, -1.25),
    "double": ("float64", 0.1, -1e300),
    "text": ("string", "", "Zeile 1\nTab\tStrich\\ \"Wort\" 'Übergröße' 雪 😀"),
    "bytes": ("binary", b"", bytes(range(256))),
    "five": ("fixed(5)", b"\0\1\2\3\4", "fünf".encode()),
    "day": ("date", dt.date(1700, 1, 1), dt.date(2200, 12, 31)),
    "clock": ("time", dt.time(0, 0), dt.time(23, 59, 59, 999999)),
    "local": ("timestamp", dt.datetime(1900, 1, 1), _MOMENT),
    "moment": ("timestamptz", dt.datetime(1900, 1, 1, tzinfo=dt.UTC), _MOMENT.replace(tzinfo=dt.UTC)),
    "price": ("decimal(20,3)", Decimal("0.000"), Decimal("-12345678901234567.890")),
    "numbers": ("list<int64>", [], [1, None, -3]),
    "words": ("list<string>", [], ["a,b", None, 'c"d\\e', "", "NULL"]),
    "days": ("list<date>", [], [dt.date(2026, 2, 28), None]),
    "place": ("struct<city: string, code: int32>", {"city": "Köln", "code": None}, {"city": 'a"b', "code": 7}),
    "props": ("map<string, int64>", [], [("a", 1), ("ß", None)]),
    "deep": ("list<list<int32>>", [], [[1, 2], [], None]),
}
"""Column to its type and two values. A third row of the table is null throughout."""
JSON: dict[str, tuple[Any, Any]] = {
    "place": ({"city": "Köln", "code": None}, {"city": 'a"b', "code": 7}),
    "props": ({}, {"a": 1, "ß": None}),
    "deep": ([], [[1, 2], [], None]),
}
"""The values of columns that a Postgres driver sees as jsonb."""
ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
EVENTS = pa.schema([("seq", pa.int64()), ("kind", pa.string())])
ODD = pa.schema([("Order Id", pa.int64()), ("Größe", pa.string()), ('"; DROP TABLE x; --', pa.string())])
ORDER_COUNT, TIERED, HOT = 100, 50, 30
PRINCIPALS: dict[str, Mapping[str, list[str]]] = {
    "boss": {"*": ["admin"]},
    "ann": {"shop.*": ["read"]},
    "zoe@example.com": {"shop.events": ["read"], "shop.orders": ["write"]},
    "writer": {"shop.*": ["write"]},
}
"""`writer` may see the tables of shop and read none; `zoe` may see shop.orders and not read it."""


def order(number: int) -> dict[str, Any]:
    """Row of shop.orders."""
    return {
        "order_id": number,
        "customer": f"customer {number % 7}",
        "amount": Decimal(number * 100 + 1).scaleb(-2),
        "created_at": dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC) + dt.timedelta(minutes=number),
    }


def every_rows() -> list[dict[str, Any]]:
    """The three rows of shop.every."""
    first = {name: low for name, (_, low, _) in EVERY.items()}
    second = {name: high for name, (_, _, high) in EVERY.items()}
    return [{"id": 1, **first}, {"id": 2, **second}, {"id": 3, **dict.fromkeys(EVERY)}]


class Door:
    """A server in this process. A context manager."""

    def __init__(self, folder: Path, *, guarded: bool = False, **settings: Any) -> None:
        """`guarded`: only the principals of `PRINCIPALS` may come in."""
        auth = write_auth(folder / "auth.yaml", PRINCIPALS, **_tokens()) if guarded else None
        limits = Limits(query_processes=4, principal_percent=100)
        given: dict[str, Any] = {
            "port": 0,
            "http_port": 0,
            "lease_grace_seconds": 0.0,
            "auth": str(auth or ""),
            "limits": limits,
        }
        self.guarded = guarded
        self.server = Server(Settings(folder / "data", postgres=Postgres(port=0), **given | settings))
        self.server.start()
        self.host, port = self.server.about["postgres"].rsplit(":", 1)
        self.port = int(port)
        self.lake = ls.connect(self.server.about["grpc"], token=token_of("boss") if guarded else None)
        self._fill()

    def _fill(self) -> None:
        lake = self.lake
        lake.create_table("shop.orders", ORDERS, primary_key=["order_id"], buckets=2)
        lake.table("shop.orders").upsert([order(number) for number in range(ORDER_COUNT)])
        lake.create_table("shop.events", EVENTS)
        events = [{"seq": number, "kind": "even" if number % 2 == 0 else "odd"} for number in range(TIERED + HOT)]
        lake.table("shop.events").append(events[:TIERED])
        more = {"token": token_of("boss")} if self.guarded else {}
        LogTierer(self.server, lake.transport, **more).flush("shop.events")
        lake.table("shop.events").append(events[TIERED:])
        fields = [(name, types.arrow_type(kind)) for name, (kind, _, _) in EVERY.items()]
        lake.create_table("shop.every", pa.schema([("id", pa.int64()), *fields]), primary_key=["id"])
        lake.table("shop.every").upsert(pa.Table.from_pylist(every_rows(), pa.schema([("id", pa.int64()), *fields])))
        lake.create_table("shop.OddNames", ODD, primary_key=["Order Id"])
        lake.table("shop.OddNames").upsert([dict(zip(ODD.names, (1, "groß", "x"), strict=True))])
        lake.create_table("Hr.salaries", pa.schema([("name", pa.string()), ("pay", pa.int64())]))
        lake.table("Hr.salaries").append([{"name": "ann", "pay": 7}])

    def dsn(self, user: str = "", **more: Any) -> dict[str, Any]:
        """Keywords of a connection: host, port, user, dbname, password."""
        user = user or ("ann" if self.guarded else "anybody")
        password = token_of(user) if self.guarded else "any"
        return {"host": self.host, "port": self.port, "user": user, "password": password, "dbname": "shop", **more}

    def connect(self, user: str = "", **more: Any) -> psycopg.Connection[Any]:
        """A connection of psycopg that commits by itself."""
        return psycopg.connect(**self.dsn(user), autocommit=True, **more)

    def close(self) -> None:
        """End client and server."""
        self.lake.close()
        self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tokens() -> dict[str, dict[str, Any]]:
    """Entries of the auth file with a verifier, so that clients prove who they are by SCRAM; `writer` has none."""
    entries = {}
    for name in PRINCIPALS:
        token = token_of(name)
        scram = {"scram": ScramVerifier.of(name, token).text()} if name != "writer" else {}
        entries[name] = {"tokens": [{"sha256": hash_of(token), **scram}]}
    return entries
