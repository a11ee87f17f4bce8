"""The policy: one row for every RPC and every HTTP route. A call without a row is denied.

A row names a right, and how the tables of a request are found in it. The right is needed on each of these tables;
where a request names none, on some table. Beside `principals.RIGHTS` there are: `open`, for everybody; `known`, for
every principal; `see`, any right at all; `commit`, which is `tier` for a table of Lakestore's, `write` for others and
`admin` for a new one. A row also says what of a call is the principal's own, and which list its answer cuts to what
the principal may know of. docs/rights.md is written from this table (`rights_page`). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, Protocol

from lakestore.errors import Denied
from lakestore.model import names
from lakestore.model.requirement import feed_of
from lakestore_server.access.principals import EVERYTHING, RIGHTS, Principal

SERVICE = "/lakestore.v1.Lakestore/"
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/"
CATALOG = "/iceberg/v1"
CONSOLE = "/console/api"
_NAMESPACE = f"{CATALOG}/namespaces/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"


Kind = Literal["own", "other", "absent"]
_COMMIT: Mapping[Kind, str] = {"own": "tier", "other": "write", "absent": "admin"}


class TableFacts(Protocol):
    """The server's knowledge of things that a request names other than by a table's name."""

    def table_of(self, uuid: str) -> str | None:
        """The name of the table with that uuid."""

    def kind_of(self, table: str) -> Kind:
        """Whether a table of the catalog is ours, another one, or absent."""


@dataclass(frozen=True, slots=True)
class HttpRequestFacts:
    """The parts of an HTTP request that rights depend on: parameters of its path, and its body."""

    path: Mapping[str, str]
    body: Mapping[str, Any]


Finder = Callable[[Any, TableFacts], Iterable[str]]


class Own(Enum):
    """A thing of one principal's in a call: the field that holds it, and the thing in words."""

    PRODUCER = "producer"
    REGISTERS = "registers"
    """`registers` of the request: names, or moves that have them."""
    REGISTER_PREFIX = "prefix"
    """`prefix` and `after` of the request, of names of registers."""
    SUBSCRIPTION = "subscription"
    LEASE = "lease"
    """`lease` of the request."""
    GRANTED_LEASE = "granted lease"
    """`lease` of the answer."""


class Listing(Enum):
    """A list in an answer that leaves out what the principal may not know of, in words."""

    TABLES = "tables with some right"
    DROPPED = "dropped tables with some right"
    DATABASES = "databases with a table that may be seen"
    STATUS = "tables with some right, in the status"
    SUBSCRIPTIONS = "the principal's own subscriptions"
    PRODUCERS = "the principal's own producers"
    REGISTERS = "the principal's own registers"
    PAGE = "tables with some right, in the console"
    CLIENTS = "the principal's own connections"
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
    """The tables that the right is needed on, in words."""
    body: bool = False
    """Whether the tables stand in the body of an HTTP request."""
    owns: tuple[Own, ...] = ()
    """Things of the call that belong to the principal alone."""
    lists: Listing | None = None
    """The list of the answer that leaves out what the principal may not know of."""
    reads: Finder | None = None
    """The tables whose rows the answer shows, on which `read` is needed as well."""
    by_uuid: bool = False
    """Whether the request names tables by uuid: a refusal does not tell their names."""


def check(row: Row | None, principal: Principal, asked: Any, known: TableFacts, what: str) -> None:
    """`Denied` unless the principal may; `what` names a call without a rule."""
    row = _ruled(row, what)
    if row.right in ("open", "known"):
        return
    targets = list(row.finder(asked, known))
    for target in targets:
        _check_one(row, principal, target, known, what)
    for target in row.reads(asked, known) if row.reads is not None else ():
        if not principal.may("read", target):
            raise Denied(_sentence(principal, "read", target))
    if not targets and row.right != "see" and not principal.may_somewhere(row.right):
        raise Denied(_sentence(principal, row.right, "any table"))


def check_possible(row: Row | None, principal: Principal, what: str) -> None:
    """`Denied` if no request whatever of this kind is allowed: asked before a request is received."""
    row = _ruled(row, what)
    if row.right in RIGHTS and not principal.may_somewhere(row.right):
        raise Denied(_sentence(principal, row.right, "any table"))


def _ruled(row: Row | None, what: str) -> Row:
    if row is None:
        raise Denied(f"{what} has no rule, so nobody may call it: this is a defect of the server")
    return row


def _check_one(row: Row, principal: Principal, target: str, known: TableFacts, what: str) -> None:
    if row.right == "see":
        if not principal.sees(target):
            raise Denied(_sentence(principal, "read", target))
        return
    needed = _COMMIT[known.kind_of(target)] if row.right == "commit" else row.right
    if principal.may(needed, target):
        return
    # The right that is missing tells whether there is such a table, and of which kind.
    told = needed if row.right != "commit" or principal.sees(target) else "write"
    raise Denied(_sentence(principal, told, "that table" if row.by_uuid else target))


def _sentence(principal: Principal, right: str, target: str) -> str:
    shown = "every table" if target == EVERYTHING else target
    return f"{principal.name} has no right {right!r} on {shown}: ask who runs the server for it"


def catalog_target(namespace: Any, table: Any) -> str:
    """The name of a catalog's table for patterns; no pattern can name a dot inside a namespace."""
    return f"{str(namespace).replace('.', chr(31))}.{table}"


# Finders of the tables of an RPC.


def _nothing(_: Any, __: TableFacts) -> Sequence[str]:
    return ()


def _fed_tables(request: Any, _: TableFacts) -> Iterable[str]:
    return dict.fromkeys(found.table for name in request.registers if (found := feed_of(name)))


def _everything(_: Any, __: TableFacts) -> Sequence[str]:
    return (EVERYTHING,)


def _table_field(request: Any, _: TableFacts) -> Sequence[str]:
    return (request.table,)


def _both_names(request: Any, _: TableFacts) -> Sequence[str]:
    return (request.table, request.new_name) if request.new_name else (request.table,)


def _tables_field(request: Any, _: TableFacts) -> Sequence[str]:
    return list(request.tables)


def _changes_field(request: Any, _: TableFacts) -> Iterable[str]:
    return dict.fromkeys(change.table for change in request.changes)


def _change_field(request: Any, _: TableFacts) -> Sequence[str]:
    return (request.change.table,)


def _wanted_field(request: Any, _: TableFacts) -> Iterable[str]:
    return [change.table for change in request.changes if change.want_rows]


def _definition_field(request: Any, _: TableFacts) -> Sequence[str]:
    """A definition that cannot be read names no table; the verb refuses it after this."""
    try:
        return (str(json.loads(request.definition)["name"]),)
    except (ValueError, KeyError, TypeError, RecursionError):
        return (EVERYTHING,)


def _uuid_field(request: Any, known: TableFacts) -> Sequence[str]:
    """A table that was dropped has no name, so only a principal with every right is told so."""
    return (known.table_of(request.table_uuid) or EVERYTHING,)


_NAMED = "`table`"
_OF_DATABASE = Row("admin", lambda asked, _: (catalog_target(asked.database, EVERYTHING),), "every table of `database`")
RPCS: dict[str, Row] = {
    f"{SERVICE}Hello": Row("known", _nothing),
    f"{SERVICE}Head": Row("known", _nothing, owns=(Own.GRANTED_LEASE,)),
    f"{SERVICE}CreateTable": Row("admin", _definition_field, "the name in `definition`"),
    f"{SERVICE}DropTable": Row("admin", _table_field, _NAMED),
    f"{SERVICE}AlterTable": Row("admin", _table_field, _NAMED),
    f"{SERVICE}GetTable": Row("see", _table_field, _NAMED),
    f"{SERVICE}ListTables": Row("known", _nothing, lists=Listing.TABLES),
    f"{SERVICE}RenameTable": Row("admin", _both_names, "both names"),
    f"{SERVICE}TruncateTable": Row("admin", _table_field, _NAMED, lists=Listing.SUBSCRIPTIONS),
    f"{SERVICE}UndropTable": Row("admin", _both_names, "both names"),
    f"{SERVICE}ListDroppedTables": Row("known", _nothing, lists=Listing.DROPPED),
    f"{SERVICE}DeleteWhere": Row("write", _table_field, "`table`, and `read` too", reads=_table_field),
    f"{SERVICE}ListDatabases": Row("known", _nothing, lists=Listing.DATABASES),
    **dict.fromkeys((f"{SERVICE}CreateDatabase", f"{SERVICE}DropDatabase"), _OF_DATABASE),
    f"{SERVICE}OpenProducer": Row("write", _nothing, "some table", owns=(Own.PRODUCER,)),
    f"{SERVICE}ListProducers": Row("known", _nothing, lists=Listing.PRODUCERS),
    f"{SERVICE}DropProducer": Row("write", _nothing, "some table", owns=(Own.PRODUCER,)),
    f"{SERVICE}OpenRegisters": Row("write", _fed_tables, "some table; the tables of feeds", owns=(Own.REGISTERS,)),
    f"{SERVICE}ListRegisters": Row("known", _nothing, owns=(Own.REGISTER_PREFIX,), lists=Listing.REGISTERS),
    f"{SERVICE}DropRegisters": Row("write", _nothing, "some table", owns=(Own.REGISTERS,)),
    f"{SERVICE}UploadPart": Row("write", _change_field, "the table of `change`"),
    f"{SERVICE}DropParts": Row("write", _nothing, "some table"),
    f"{SERVICE}Commit": Row(
        "write",
        _changes_field,
        "each table of `changes`, or some table; `read` too on those with `want_rows`",
        owns=(Own.PRODUCER, Own.REGISTERS),
        reads=_wanted_field,
    ),
    f"{SERVICE}Write": Row(
        "write",
        _changes_field,
        "each table of `changes`, or some table, for every commit of the stream",
        owns=(Own.PRODUCER, Own.REGISTERS),
    ),
    f"{SERVICE}Lookup": Row("read", _table_field, _NAMED),
    f"{SERVICE}Changes": Row(
        "read", _tables_field, "each of `tables`; asked again when rights change", owns=(Own.SUBSCRIPTION,)
    ),
    f"{SERVICE}ChangeRanges": Row("read", _table_field, _NAMED),
    f"{SERVICE}Ack": Row("read", _nothing, "some table", owns=(Own.SUBSCRIPTION,)),
    f"{SERVICE}ListSubscriptions": Row("known", _nothing, lists=Listing.SUBSCRIPTIONS),
    f"{SERVICE}DropSubscription": Row("read", _nothing, "some table", owns=(Own.SUBSCRIPTION,)),
    f"{SERVICE}ResetSubscription": Row("read", _nothing, "some table", owns=(Own.SUBSCRIPTION,)),
    f"{SERVICE}Plan": Row("read", _tables_field, "each of `tables`", owns=(Own.GRANTED_LEASE,)),
    f"{SERVICE}Fetch": Row("read", _uuid_field, "the table of `table_uuid`", owns=(Own.LEASE,), by_uuid=True),
    f"{SERVICE}RenewLease": Row("read", _nothing, "some table", owns=(Own.LEASE,)),
    f"{SERVICE}ReleaseLease": Row("read", _nothing, "some table", owns=(Own.LEASE,)),
    f"{SERVICE}AcquireTierer": Row("tier", _everything, "every table"),
    f"{SERVICE}ReleaseTierer": Row("tier", _everything, "every table"),
    f"{SERVICE}Status": Row("see", _tables_field, "each of `tables`", lists=Listing.STATUS),
    f"{SERVICE}Audit": Row("read", _table_field, _NAMED),
    f"{SERVICE}Backup": Row("admin", _everything, "every table"),
    f"{SERVICE}AcceptClock": Row("admin", _everything, "every table"),
    f"{SERVICE}Report": Row("write", _nothing, "some table", owns=(Own.PRODUCER,)),
    "/lakestore.v1.SmallCalls/Talk": Row("known", _nothing, "every call on it is judged by itself"),
    f"{HEALTH}Check": Row("open", _nothing),
    f"{HEALTH}List": Row("open", _nothing),
    f"{HEALTH}Watch": Row("open", _nothing),
    f"{REFLECTION}ServerReflectionInfo": Row("known", _nothing),
}
"""Every RPC, by its path on the wire."""


# Finders of the tables of an HTTP request. A malformed request asks for a right on everything.


def _path_table(asked: HttpRequestFacts, known: TableFacts) -> Sequence[str]:
    return (_unversioned(catalog_target(asked.path["namespace"], asked.path["table"]), known),)


def _unversioned(target: str, known: TableFacts) -> str:
    """`shop.orders$3` is a version of `shop.orders`, if that is ours."""
    parted = names.parted(target)
    return parted[0] if parted and known.kind_of(parted[0]) == "own" else target


def _path_cut(asked: HttpRequestFacts, known: TableFacts) -> Sequence[str]:
    """`shop.orders@<position>` is a cut of `shop.orders`, if that is ours and no table has the whole name."""
    target = catalog_target(asked.path["namespace"], asked.path["table"])
    parted = names.positioned(target)
    is_cut = parted is not None and known.kind_of(target) == "absent" and known.kind_of(parted[0]) == "own"
    return (parted[0],) if parted is not None and is_cut else (target,)


def _path_name(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    return (asked.path["table"],)


def _path_namespace(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    return (catalog_target(asked.path["namespace"], EVERYTHING),)


def _body_namespace(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    levels = asked.body.get("namespace")
    if not isinstance(levels, list) or len(levels) != 1 or not isinstance(levels[0], str):
        return (EVERYTHING,)
    return (catalog_target(levels[0], EVERYTHING),)


def _body_name(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    name = asked.body.get("name")
    return (catalog_target(asked.path["namespace"], name if isinstance(name, str) else EVERYTHING),)


def _identifier(said: Any) -> str:
    try:
        (level,), name = said["namespace"], said["name"]
    except (TypeError, KeyError, ValueError):
        return EVERYTHING
    return catalog_target(level, name) if isinstance(level, str) and isinstance(name, str) else EVERYTHING


def _body_rename(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    return (_identifier(asked.body.get("source")), _identifier(asked.body.get("destination")))


def _body_changes(asked: HttpRequestFacts, known: TableFacts) -> Sequence[str]:
    changes = asked.body.get("table-changes")
    if not isinstance(changes, list) or not changes:
        return (EVERYTHING,)
    named = [_identifier(each.get("identifier")) if isinstance(each, dict) else EVERYTHING for each in changes]
    return [_unversioned(target, known) for target in named]


_PATH = "the table of the path"
_REFUSED = "nobody may: what is presented is read-only"
_SPACE = "every table of the namespace"
ROUTES: dict[tuple[str, str], Row] = {
    ("GET", "/"): Row("open", _nothing, "the page alone, which tells nothing of the server"),
    ("GET", "/console/{file}"): Row("open", _nothing, "its parts"),
    ("POST", f"{CONSOLE}/session"): Row("open", _nothing, "the credentials stand in the request"),
    ("POST", f"{CONSOLE}/renew"): Row("known", _nothing),
    ("GET", f"{CONSOLE}/me"): Row("known", _nothing),
    ("GET", f"{CONSOLE}/status"): Row("known", _nothing, lists=Listing.PAGE),
    ("GET", f"{CONSOLE}/history"): Row("read", _everything, "every table"),
    ("GET", f"{CONSOLE}/clients"): Row("known", _nothing, lists=Listing.CLIENTS),
    ("GET", f"{CONSOLE}/streams"): Row("known", _nothing, lists=Listing.STREAMS),
    ("GET", f"{CONSOLE}/streams/history"): Row("known", _nothing, lists=Listing.LAGS),
    ("GET", f"{CONSOLE}/holds"): Row("known", _nothing, lists=Listing.LEASES),
    ("GET", f"{CONSOLE}/tables/{{table}}"): Row("see", _path_name, _PATH),
    ("GET", f"{CONSOLE}/tables/{{table}}/history"): Row("see", _path_name, _PATH),
    ("GET", f"{CONSOLE}/tables/{{table}}/tail"): Row("read", _path_name, f"{_PATH}; asked again when rights change"),
    ("POST", f"{CONSOLE}/query"): Row("read", _nothing, "some table; each table of the query, as its RPCs are judged"),
    ("GET", "/healthz"): Row("open", _nothing),
    ("GET", "/metrics"): Row("read", _everything, "every table, unless `metrics_open` is set"),
    ("POST", f"{CATALOG}/oauth/tokens"): Row("open", _nothing, "the credentials stand in the request"),
    ("GET", f"{CATALOG}/config"): Row("known", _nothing),
    ("GET", f"{CATALOG}/namespaces"): Row("known", _nothing, lists=Listing.NAMESPACES),
    ("POST", f"{CATALOG}/namespaces"): Row("admin", _body_namespace, _SPACE, body=True),
    ("GET", _NAMESPACE): Row("known", _nothing, "a namespace without a table that may be seen does not exist"),
    ("HEAD", _NAMESPACE): Row("known", _nothing, "a namespace without a table that may be seen does not exist"),
    ("DELETE", _NAMESPACE): Row("admin", _path_namespace, _SPACE),
    ("POST", f"{_NAMESPACE}/properties"): Row("admin", _path_namespace, _SPACE),
    ("GET", f"{_NAMESPACE}/tables"): Row("known", _nothing, lists=Listing.NAMES),
    ("POST", f"{_NAMESPACE}/tables"): Row("admin", _body_name, "the new table", body=True),
    ("POST", f"{_NAMESPACE}/register"): Row("admin", _body_name, "the new table", body=True),
    ("GET", _TABLE): Row("read", _path_table, _PATH),
    ("HEAD", _TABLE): Row("read", _path_table, _PATH),
    ("POST", _TABLE): Row("commit", _path_table, _PATH),
    ("DELETE", _TABLE): Row("admin", _path_table, _PATH),
    ("POST", f"{CATALOG}/tables/rename"): Row("admin", _body_rename, "both names", body=True),
    ("POST", f"{CATALOG}/transactions/commit"): Row("commit", _body_changes, "each table of the request", body=True),
    ("POST", f"{_TABLE}/metrics"): Row("read", _path_table, _PATH),
    ("GET", f"{_NAMESPACE}/views"): Row("known", _nothing, "there are no views"),
    ("GET", _VIEW): Row("known", _nothing, "there are no views"),
    ("HEAD", _VIEW): Row("known", _nothing, "there are no views"),
}
"""Every route of the HTTP port, by method and path."""


def _under_prefix(method: str, path: str, row: Row) -> Row:
    """The rule of a verb under a prefix, where a verb that writes is refused to everybody."""
    if (method, path) in (("GET", _TABLE), ("HEAD", _TABLE), ("POST", f"{_TABLE}/metrics")):
        return replace(row, finder=_path_cut)
    return row if method in ("GET", "HEAD") else Row("known", _nothing, _REFUSED)


ROUTES |= {
    (method, path.replace(CATALOG, f"{CATALOG}/{{prefix}}", 1)): _under_prefix(method, path, row)
    for (method, path), row in tuple(ROUTES.items())
    if path.startswith(f"{CATALOG}/") and not path.endswith(("/config", "/oauth/tokens"))
}
