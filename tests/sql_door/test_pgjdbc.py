"""PostgreSQL's own JDBC driver: what it shows of the Postgres port is what it shows of a PostgreSQL server."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from lakestore_server.access.principals import hash_of
from lakestore_server.access.scram import ScramVerifier
from lakestore_server.settings import Postgres as PostgresPort
from lakestore_server.settings import Tls
from tests.support import pgjdbc
from tests.support.certificates import Authority
from tests.support.postgres import USER, Postgres
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.sql_door import ORDERS, Door, order

ORDER_ROWS = 4
LINES_FEWEST = 900
_MORE = "(values|given|arrays)/extended(/1|ForPrepared.*|CacheEverything.*)|values/(extended/(5/0|-1/1)|simple/5/1)"
"""Parts that take long: more ways to send the same values."""
DIFFERENCES: Mapping[str, str] = {
    r"product\|PostgreSQL": "the port says another major version than the server beside it",
    r"product/transactions|transactions\|false|transactions/level": "every transaction reads one cut: repeatable read",
    r"getCatalogs": "there is one database",
    r"getIndexInfo": "numbers of rows and pages are unknown",
    r"get(Table|Column)Privileges": "a server without principals has one owner, lakestore",
    r"getUDTs|typeinfo\|.*\|(2001|2002|2003)\|": "tables have no row types; domains of information_schema are texts",
    r"columns/\w+\|\d\|(b|\?column\?|bool)\|": "numbers that are computed and constants are as in DuckDB",
    r"arrays/.*1\.50": "numeric without digits has ten behind the point",
    r"zones\|1\|1899": "a text of a time in a zone before 1912 leaves out the seconds of its offset",
    r"zones\|(.*-?03|.*GMT|\+03:30|.*-03:30)|zones\|3\|null|zones\|labels": "a zone by its offset has whole hours",
    r"errors/|positions\|": "DuckDB words errors, and tells the place of some",
    r"copy\|.*FORCE_QUOTE": "COPY has no FORCE_QUOTE",
    r"state\|is_superuser|state\|default_transaction_read_only": "the port only reads",
    r"escapes\|": "lengths and parts of dates are int8, sign is an int4; case is that of Unicode",
}
"""Pattern of the lines that differ, to the reason."""


@pytest.fixture(scope="module", params=["most", pytest.param("rest", marks=pytest.mark.long)])
def parts(request: pytest.FixtureRequest) -> str:
    """The option that names the parts of the program to run."""
    return f"only={_MORE}" if request.param == "rest" else f"only=(?!({_MORE})$).*"


@pytest.fixture(scope="module")
def ours(parts: str, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """What the driver shows of the port."""
    with Door(tmp_path_factory.mktemp("door")) as door:
        pgjdbc.add_lines(door.lake)
        return pgjdbc.lines(f"{door.host}:{door.port}/shop", USER, "any", parts)


@pytest.fixture(scope="module")
def theirs(parts: str) -> Sequence[str]:
    """What the driver shows of a PostgreSQL with the same tables."""
    with Postgres() as real:
        pgjdbc.fill(real)
        return pgjdbc.lines(f"127.0.0.1:{real.port}/shop", USER, "any", parts)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_driver_shows_what_it_shows_of_postgresql(ours: Sequence[str], theirs: Sequence[str]) -> None:
    assert ours[-1] == theirs[-1] == "end"
    assert len(ours) >= LINES_FEWEST
    differing = [line for line in _differing(theirs, ours) if not _reason(line[1:])]
    assert not differing, "\n".join(differing)


def test_the_driver_reads_a_table_after_every_way_to_come_in(tmp_path: Path) -> None:
    with Guarded(tmp_path) as (address, ca):
        plain = pgjdbc.lines(address, "ann", token_of("ann"), "sslmode=disable", "sslmode=require")
        assert plain == [f"connect|sslmode={mode}|ann|{ORDER_ROWS}|true" for mode in ("disable", "require")]
        scram = "channelBinding=disable&requireAuth=scram-sha-256"
        full = f"sslmode=verify-full&sslrootcert={ca}&{scram}"
        assert pgjdbc.lines(address, "ann", token_of("ann"), full) == [f"connect|{full}|ann|{ORDER_ROWS}|true"]
        bound = f"sslmode=verify-full&sslrootcert={ca}&channelBinding=require&requireAuth=scram-sha-256"
        assert pgjdbc.lines(address, "ann", token_of("ann"), bound) == [f"connect|{bound}|ann|{ORDER_ROWS}|true"]
        (wrong,) = pgjdbc.lines(address, "ann", "wrong", "sslmode=require")
        assert "|28P01|" in wrong
        (clear,) = pgjdbc.lines(address, "bob", token_of("bob"), "sslmode=require&requireAuth=password")
        assert clear.endswith(f"|bob|{ORDER_ROWS}|true")
        (denied,) = pgjdbc.lines(address, "eve", token_of("eve"), "sslmode=require")
        assert "|42501|" in denied or "|42P01|" in denied


class Guarded:
    """A server with TLS and principals. A context manager: (address, the authority's certificate)."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        signed, token = authority.sign("localhost"), token_of("ann")
        verifier = {"tokens": [{"sha256": hash_of(token), "scram": ScramVerifier.of("ann", token).text()}]}
        grants = {"ann": {"shop.*": ["read"]}, "bob": {"shop.*": ["read"]}, "eve": {"other.*": ["read"]}}
        auth = write_auth(folder / "auth.yaml", grants, ann=verifier)
        tls = Tls(cert=str(signed.cert), key=str(signed.key))
        self._served = Served(folder / "data", ports=True, postgres=PostgresPort(port=0), auth=str(auth), tls=tls)
        table = self._served.lake.create_table("shop.orders", ORDERS, primary_key=["order_id"])
        table.upsert([order(number) for number in range(ORDER_ROWS)])
        port = self._served.server.about["postgres"].rpartition(":")[2]
        self._about = f"localhost:{port}/shop", authority.cert

    def __enter__(self) -> tuple[str, Path]:
        return self._about

    def __exit__(self, *_: object) -> None:
        self._served.__exit__(None, None, None)


def _differing(theirs: Sequence[str], ours: Sequence[str]) -> Iterator[str]:
    """Lines of one side, `-` of theirs and `+` of ours, compared part by part."""
    parts: dict[str, tuple[list[str], list[str]]] = {}
    for side, lines in enumerate((theirs, ours)):
        for line in lines:
            parts.setdefault(line.partition("|")[0], ([], []))[side].append(line)
    for left, right in parts.values():
        if left != right:
            marked = difflib.unified_diff(left, right, lineterm="", n=0)
            yield from (line for line in marked if not line.startswith(("---", "+++", "@@")))


def _reason(line: str) -> str:
    return next((reason for pattern, reason in DIFFERENCES.items() if re.match(pattern, line)), "")
