"""The policy: one row for every RPC and every HTTP route. A call without a row is denied. Pure.

A row names a right and a finder of the request's tables. The right is needed on each of these tables; if the request
names none, on some table. Besides `principals.RIGHTS` there are the rights:

- `open`: everybody. `known`: every principal. `see`: any right on the table.
- `commit`: `tier` on our tables, `write` on foreign ones, `admin` on new ones.

A row also says which fields belong to the principal and how the answer's list is cut. `make docs` writes docs/rights.md
from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lakestore.errors import Denied
from lakestore.v1.lakestore_pb2 import Rule
from lakestore.wire import rpc
from lakestore_server.access import finders
from lakestore_server.access.finders import Finder, Kind, TableFacts, catalog_target
from lakestore_server.access.principals import EVERYTHING, RIGHTS, Principal


def reference() -> str:
    """The text of docs/rights.md."""
    lines = [
        "# Rights",
        "",
        "Written by `make docs` from the table by which the server decides, `access/policy.py`. `read`, `write`,",
        "`tier` and `admin` are granted on tables (SECURITY.md). There are no rights on rows or columns.",
        "",
        "| right | who has it |",
        "|---|---|",
        "| `read`, `write` | a principal with the grant, or with `admin`; `tier` includes `read` |",
        "| `tier` | a principal with the grant, or with `admin` |",
        "| `admin` | a principal with the grant; it includes the other three |",
        "| `open` | everybody |",
        "| `known` | every principal |",
        "| `see` | a principal with any right on the table |",
        "| `commit` | `tier` on Lakestore's own tables, `write` on others, `admin` on new ones |",
        "",
        "- A request needs the right on each table that it names. A request that names no table needs the",
        "  right on some table.",
        "- Producers, registers, subscriptions and leases belong to their principal. No other principal can open,",
        "  fence, move, acknowledge or read by them.",
        "- A list in an answer leaves out what the principal may not know of.",
        "- A key of the warehouse's S3 store is in the answer to a load that asks for one and has the right:",
        "  `read` on the table for a key of `engine_keys.role`, which writes with `tier` (`write` on a table of",
        "  another engine); on every table `read`, or `tier` for the key that writes, for a static key.",
        "",
        "## gRPC",
        "",
        *_markdown(("RPC", path.rsplit("/", 1)[-1], row) for path, row in RPCS.items() if not path.startswith(FLIGHT)),
        "",
        "## Flight SQL",
        "",
        *_markdown(("RPC", path.removeprefix(FLIGHT), row) for path, row in RPCS.items() if path.startswith(FLIGHT)),
        "",
        "## HTTP",
        "",
        *_markdown(("route", f"{method} {path}", row) for (method, path), row in ROUTES.items()),
        "",
    ]
    return "\n".join(lines)


def _markdown(rows: Iterable[tuple[str, str, Row]]) -> Iterable[str]:
    first = True
    for head, name, row in rows:
        if first:
            yield f"| {head} | right | on | the principal's own | list in the answer |"
            yield "|---|---|---|---|---|"
            first = False
        owns = ", ".join(own.value for own in row.owns)
        lists = row.lists.value if row.lists else ""
        yield f"| `{name}` | {row.right} | {row.tables or '-'} | {owns or '-'} | {lists or '-'} |"


HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/"
FLIGHT = "/arrow.flight.protocol.FlightService/"
CATALOG = "/iceberg/v1"
CONSOLE = "/console/api"
_NAMESPACE = f"{CATALOG}/namespaces/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_KEYS = f"{_TABLE}/credentials"
_VIEW = f"{_NAMESPACE}/views/{{view}}"
_UNTARGETED = ("open", "known", "see")
"""Rights for which a call without tables needs no table."""
_COMMIT: Mapping[Kind, str] = {"own": "tier", "other": "write", "absent": "admin"}


class Own(Enum):
    """A thing of one principal in a call: its field, and the thing in words."""

    PRODUCER = "producer"
    REGISTERS = "registers"
    """`registers` of the request: names, or register updates."""
    REGISTER_PREFIX = "prefix"
    """`prefix` and `after` of the request: beginnings of register names."""
    SUBSCRIPTION = "subscription"
    LEASE = "lease"
    """`lease` of the request."""
    GRANTED_LEASE = "granted lease"
    """`lease` of the answer."""


class Listing(Enum):
    """A list in an answer, in words, without entries that the principal may not know."""

    TABLES = "tables with some right"
    DROPPED = "dropped tables with some right"
    PROPOSALS = "proposals of tables with some right"
    DATABASES = "databases with a table that may be seen"
    STATUS = "tables with some right, in the status"
    SUBSCRIPTIONS = "the principal's own subscriptions"
    PRODUCERS = "the principal's own producers"
    REGISTERS = "the principal's own registers"
    PAGE = "tables with some right, in the console"
    CLIENTS = "the principal's own connections"
    QUERIES = "the principal's own queries"
    LEASES = "the principal's own leases, and dropped tables with some right"
    STREAMS = "the principal's own subscriptions, producers and registers"
    LAGS = "the principal's own subscriptions, over tables with some right, and its own bridges"
    NAMESPACES = "namespaces with a table that may be seen"
    NAMES = "names of tables with some right"


@dataclass(frozen=True, slots=True)
class Row:
    """One rule."""

    right: str
    finder: Finder
    tables: str = ""
    """The tables that need the right, in words."""
    body: bool = False
    """Whether the body of an HTTP request names the tables."""
    owns: tuple[Own, ...] = ()
    """Things of the call that belong to the principal."""
    lists: Listing | None = None
    """The list of the answer that is cut to what the principal may know."""
    reads: Finder | None = None
    """The tables whose rows the answer shows: `read` is needed on them too."""
    by_uuid: bool = False
    """Whether the request names tables by uuid; a refusal then hides their names."""
    held: Finder | None = None
    """Tables of a thing with a stored name, by their present names: `read` is needed on each."""
    present: Finder | None = None
    """Tables read by uuid, by their present names: `read` is needed on each while the call runs."""
    alias: Callable[[str, TableFacts], str] | None = None
    """The table whose right a catalog name needs; a refusal repeats the name of the request."""


def check_right(row: Row | None, principal: Principal, asked: Any, known: TableFacts, what: str) -> None:
    """`Denied` unless the principal may; `what` names a call without a rule."""
    row = _ruled(row, what)
    targets = list(row.finder(asked, known))
    for target in targets:
        _check_one(row, principal, target, known)
    for target in row.reads(asked, known) if row.reads is not None else ():
        if not principal.may("read", target):
            raise Denied(_sentence(principal, "read", target))
    leases = Own.GRANTED_LEASE in row.owns and asked.lease_seconds > 0
    if leases and not principal.may_somewhere("read"):
        raise Denied(_sentence(principal, "read", "any table"))
    if not targets and row.right not in _UNTARGETED and not principal.may_somewhere(row.right):
        raise Denied(_sentence(principal, row.right, "any table"))


def check_present(row: Row, principal: Principal, asked: Any, known: TableFacts, present: Iterable[str]) -> None:
    """`Denied` unless the principal may read the tables with these present names. The refusal names a table only if the
    request does: the principal must not learn a table's new name."""
    for target in present:
        if principal.may("read", target):
            continue
        if not row.by_uuid and target in row.finder(asked, known):
            raise Denied(_sentence(principal, "read", target))
        raise Denied(_sentence(principal, "read", "a table of this call, by the name that the table has now"))


def check_possible(row: Row | None, principal: Principal, what: str) -> None:
    """`Denied` if no request of this kind is allowed; checked before a request is read."""
    row = _ruled(row, what)
    if row.right in RIGHTS and not principal.may_somewhere(row.right):
        raise Denied(_sentence(principal, row.right, "any table"))


def _ruled(row: Row | None, what: str) -> Row:
    if row is None:
        raise Denied(f"{what} has no rule and is denied: this is a defect of the server")
    return row


def _check_one(row: Row, principal: Principal, target: str, known: TableFacts) -> None:
    table = row.alias(target, known) if row.alias is not None else target
    if row.right == "see":
        if not principal.sees(table):
            raise Denied(_sentence(principal, "read", target))
        return
    needed = _COMMIT[known.kind_of(table)] if row.right == "commit" else row.right
    if principal.may(needed, table):
        return
    # The name of a missing right would reveal whether a table exists and is ours.
    shown = needed if row.right != "commit" or principal.sees(table) else "write"
    raise Denied(_sentence(principal, shown, "that table" if row.by_uuid else target))


def _sentence(principal: Principal, right: str, target: str) -> str:
    shown = "every table" if target == EVERYTHING else target
    return f"{principal.name} has no right {right!r} on {shown}: ask the server's operator for it"


_NAMED = "`table`"


def _database(asked: Any, _: TableFacts) -> Iterable[str]:
    return (catalog_target(asked.database, EVERYTHING),)


def _rpc(name: str, finder: Finder, tables: str = "", **rest: Any) -> tuple[str, Row]:
    """Path and row of one of our RPCs. The right that it needs stands in the proto file."""
    method = rpc.METHODS[name]
    return method.path, Row(Rule.Right.Name(method.rule.right).lower(), finder, tables, **rest)


_OWN_RPCS = (
    _rpc("Hello", finders.no_table),
    _rpc("Head", finders.no_table, "with a lease `read` on some table", owns=(Own.GRANTED_LEASE,)),
    _rpc("CreateTable", finders.definition_field, "the name in `definition`"),
    _rpc("DropTable", finders.table_field, _NAMED),
    _rpc("AlterTable", finders.table_field, _NAMED),
    _rpc("ListProposals", finders.no_table, lists=Listing.PROPOSALS),
    _rpc("DecideProposal", finders.table_field, "`table`; the verb asks for an approver, or `admin` without an owner"),
    _rpc("GetTable", finders.table_field, _NAMED),
    _rpc("ListTables", finders.no_table, lists=Listing.TABLES),
    _rpc("RenameTable", finders.both_names, "both names"),
    _rpc("RescaleTable", finders.table_field, _NAMED),
    _rpc("ReplayTable", finders.branch_names, "`table` and, if set, `into`"),
    _rpc("TruncateTable", finders.table_field, _NAMED, lists=Listing.SUBSCRIPTIONS),
    _rpc("AdoptTable", finders.adopted_names, "`source` and `table`"),
    _rpc("ReleaseTable", finders.both_names, "both names"),
    _rpc("UndropTable", finders.both_names, "both names"),
    _rpc("ListDroppedTables", finders.no_table, lists=Listing.DROPPED),
    _rpc("DeleteWhere", finders.table_field, "`table`, and `read` too", reads=finders.table_field),
    *(_rpc(name, finders.table_field, _NAMED) for name in ("EraseRows", "ListErasures", "VerifyErased")),
    _rpc("ListDatabases", finders.no_table, lists=Listing.DATABASES),
    *(_rpc(name, _database, "every table of `database`") for name in ("CreateDatabase", "DropDatabase")),
    _rpc("OpenProducer", finders.no_table, "some table", owns=(Own.PRODUCER,)),
    _rpc("ListProducers", finders.no_table, lists=Listing.PRODUCERS),
    _rpc("DropProducer", finders.no_table, "some table", owns=(Own.PRODUCER,)),
    _rpc("OpenRegisters", finders.fed_tables, "some table; the tables of feeds", owns=(Own.REGISTERS,)),
    _rpc("ListRegisters", finders.no_table, owns=(Own.REGISTER_PREFIX,), lists=Listing.REGISTERS),
    _rpc("DropRegisters", finders.fed_tables, "some table; the tables of feeds", owns=(Own.REGISTERS,)),
    _rpc("UploadPart", finders.change_field, "the table of `change`"),
    _rpc("DropParts", finders.no_table, "some table"),
    _rpc(
        "Commit",
        finders.committed_tables,
        "each table of `changes` and of the feeds it moves, or some table; `read` too on those with `want_rows`",
        owns=(Own.PRODUCER, Own.REGISTERS),
        reads=finders.wanted_field,
    ),
    _rpc(
        "Write",
        finders.committed_tables,
        "each table of `changes` and of the feeds it moves, or some table, for every commit of the stream",
        owns=(Own.PRODUCER, Own.REGISTERS),
    ),
    _rpc("Lookup", finders.table_field, _NAMED),
    _rpc(
        "Changes",
        finders.tables_field,
        "each of `tables` and of the subscription's; while the stream runs, on these tables by their present names",
        owns=(Own.SUBSCRIPTION,),
        held=finders.present_subscription,
        present=finders.present_stream,
    ),
    _rpc("ChangeRanges", finders.table_field, _NAMED),
    *(
        _rpc(
            name,
            finders.no_table,
            "each table of the subscription, or some table",
            owns=(Own.SUBSCRIPTION,),
            held=finders.present_subscription,
        )
        for name in ("Ack", "ResetSubscription")
    ),
    _rpc("ListSubscriptions", finders.no_table, lists=Listing.SUBSCRIPTIONS),
    _rpc("DropSubscription", finders.no_table, "some table", owns=(Own.SUBSCRIPTION,)),
    _rpc("Plan", finders.tables_field, "each of `tables`", owns=(Own.GRANTED_LEASE,)),
    _rpc(
        "Fetch",
        finders.uuid_field,
        "the table of `table_uuid`",
        owns=(Own.LEASE,),
        by_uuid=True,
        present=finders.present_uuid,
    ),
    _rpc("StoreKey", finders.uuid_field, "the table of `table_uuid`", by_uuid=True),
    _rpc("RenewLease", finders.no_table, "some table", owns=(Own.LEASE,)),
    _rpc("ReleaseLease", finders.no_table, "some table", owns=(Own.LEASE,)),
    _rpc("AcquireTierer", finders.every_table, "every table"),
    _rpc("ReleaseTierer", finders.every_table, "every table"),
    _rpc("Status", finders.tables_field, "each of `tables`", lists=Listing.STATUS),
    _rpc("Audit", finders.table_field, _NAMED),
    _rpc("Backup", finders.every_table, "every table"),
    _rpc("CopyCheckpoint", finders.every_table, "every table"),
    _rpc("HoldSnapshots", finders.every_table, "every table"),
    _rpc("AcceptClock", finders.every_table, "every table"),
    _rpc("Report", finders.no_table, "some table", owns=(Own.PRODUCER,)),
)
_FLIGHT = "each table of the query, as its RPCs are judged; lists are cut as `ListTables` is"
RPCS: dict[str, Row] = {
    **dict(_OWN_RPCS),
    "/lakestore.v1.SmallCalls/Talk": Row("known", finders.no_table, "every call on it is judged by itself"),
    f"{HEALTH}Check": Row("open", finders.no_table),
    f"{HEALTH}List": Row("open", finders.no_table),
    f"{HEALTH}Watch": Row("open", finders.no_table),
    f"{REFLECTION}ServerReflectionInfo": Row("known", finders.no_table),
    f"{FLIGHT}Handshake": Row("known", finders.no_table, "name and token stand in the metadata"),
    **{f"{FLIGHT}{name}": Row("known", finders.no_table, _FLIGHT) for name in ("GetFlightInfo", "GetSchema", "DoGet")},
    f"{FLIGHT}DoAction": Row("known", finders.no_table, f"{_FLIGHT}; statements, transactions and options of its own"),
    f"{FLIGHT}DoPut": Row("known", finders.no_table, "parameters of its own statements; nobody may write here"),
    f"{FLIGHT}ListActions": Row("known", finders.no_table),
}
"""Every RPC by its path on the wire."""


_PATH = "the table of the path"
_VIEW_PATH = "the view of the path"
_REFUSED = "nobody may: what is presented is read-only"
_SPACE = "every table of the namespace"
ROUTES: dict[tuple[str, str], Row] = {
    ("GET", "/"): Row("open", finders.no_table, "the page alone, which tells nothing of the server"),
    ("GET", "/console/{file}"): Row("open", finders.no_table, "its parts"),
    ("POST", f"{CONSOLE}/session"): Row("open", finders.no_table, "the credentials stand in the request"),
    ("POST", f"{CONSOLE}/renew"): Row("known", finders.no_table),
    ("GET", f"{CONSOLE}/me"): Row("known", finders.no_table),
    ("GET", f"{CONSOLE}/status"): Row("known", finders.no_table, lists=Listing.PAGE),
    ("GET", f"{CONSOLE}/history"): Row("read", finders.every_table, "every table"),
    ("GET", f"{CONSOLE}/clients"): Row("known", finders.no_table, lists=Listing.CLIENTS),
    ("GET", f"{CONSOLE}/streams"): Row("known", finders.no_table, lists=Listing.STREAMS),
    ("GET", f"{CONSOLE}/streams/history"): Row("known", finders.no_table, lists=Listing.LAGS),
    ("GET", f"{CONSOLE}/holds"): Row("known", finders.no_table, lists=Listing.LEASES),
    ("GET", f"{CONSOLE}/tables/{{table}}"): Row("see", finders.path_name, _PATH),
    ("GET", f"{CONSOLE}/tables/{{table}}/history"): Row("see", finders.path_name, _PATH),
    ("GET", f"{CONSOLE}/tables/{{table}}/tail"): Row(
        "read", finders.path_name, f"{_PATH}; while the tail runs, on this table by its present name"
    ),
    ("POST", f"{CONSOLE}/query"): Row(
        "read", finders.no_table, "some table; each table of the query, as its RPCs are judged"
    ),
    ("GET", f"{CONSOLE}/queries"): Row("known", finders.no_table, lists=Listing.QUERIES),
    ("POST", f"{CONSOLE}/queries/{{number}}/cancel"): Row(
        "known", finders.no_table, "the verb asks for a query of the principal's own, or `admin` on every table"
    ),
    ("GET", "/healthz"): Row("open", finders.no_table),
    ("GET", "/ready"): Row("open", finders.no_table, "role, epoch and lag alone"),
    ("GET", "/metrics"): Row("read", finders.every_table, "every table, unless `metrics_open` is set"),
    ("POST", f"{CATALOG}/oauth/tokens"): Row("open", finders.no_table, "the credentials stand in the request"),
    ("GET", f"{CATALOG}/config"): Row("known", finders.no_table),
    ("GET", f"{CATALOG}/namespaces"): Row("known", finders.no_table, lists=Listing.NAMESPACES),
    ("POST", f"{CATALOG}/namespaces"): Row("admin", finders.body_namespace, _SPACE, body=True),
    ("GET", _NAMESPACE): Row("known", finders.no_table, "a namespace without a table that may be seen does not exist"),
    ("HEAD", _NAMESPACE): Row("known", finders.no_table, "a namespace without a table that may be seen does not exist"),
    ("DELETE", _NAMESPACE): Row("admin", finders.path_namespace, _SPACE),
    ("POST", f"{_NAMESPACE}/properties"): Row("admin", finders.path_namespace, _SPACE),
    ("GET", f"{_NAMESPACE}/tables"): Row("known", finders.no_table, lists=Listing.NAMES),
    ("POST", f"{_NAMESPACE}/tables"): Row("admin", finders.body_name, "the new table", body=True),
    ("POST", f"{_NAMESPACE}/register"): Row("admin", finders.body_name, "the new table", body=True),
    ("GET", _TABLE): Row("read", finders.path_table, _PATH, alias=finders.unversioned),
    ("HEAD", _TABLE): Row("read", finders.path_table, _PATH, alias=finders.unversioned),
    ("POST", _TABLE): Row("commit", finders.path_table, _PATH, alias=finders.unversioned),
    ("DELETE", _TABLE): Row("admin", finders.path_table, _PATH, alias=finders.unversioned),
    ("POST", f"{CATALOG}/tables/rename"): Row("admin", finders.body_rename, "both names", body=True),
    ("POST", f"{CATALOG}/transactions/commit"): Row(
        "commit", finders.body_changes, "each table of the request", body=True, alias=finders.unversioned
    ),
    ("POST", f"{_TABLE}/metrics"): Row("read", finders.path_table, _PATH, alias=finders.unversioned),
    ("GET", f"{_NAMESPACE}/views"): Row("known", finders.no_table, lists=Listing.NAMES),
    ("POST", f"{_NAMESPACE}/views"): Row("admin", finders.body_name, "the new view", body=True),
    ("GET", _VIEW): Row("read", finders.path_view, _VIEW_PATH),
    ("HEAD", _VIEW): Row("read", finders.path_view, _VIEW_PATH),
    ("POST", _VIEW): Row("admin", finders.path_view, _VIEW_PATH),
    ("DELETE", _VIEW): Row("admin", finders.path_view, _VIEW_PATH),
    ("POST", f"{CATALOG}/views/rename"): Row("admin", finders.body_rename, "both names", body=True),
    ("GET", _KEYS): Row("read", finders.path_table, _PATH, alias=finders.unversioned),
}
"""Every HTTP route by method and path."""


def _under_prefix(method: str, path: str, row: Row) -> Row:
    """The rule of a verb under a prefix; a verb that writes is denied to everybody."""
    if (method, path) in (("GET", _TABLE), ("HEAD", _TABLE), ("GET", _KEYS), ("POST", f"{_TABLE}/metrics")):
        return replace(row, alias=finders.uncut)
    return row if method in ("GET", "HEAD") else Row("known", finders.no_table, _REFUSED)


ROUTES |= {
    (method, path.replace(CATALOG, f"{CATALOG}/{{prefix}}", 1)): _under_prefix(method, path, row)
    for (method, path), row in tuple(ROUTES.items())
    if path.startswith(f"{CATALOG}/") and not path.endswith(("/config", "/oauth/tokens"))
}
