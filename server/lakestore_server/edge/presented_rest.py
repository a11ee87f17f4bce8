"""The Iceberg REST protocol under a prefix: warehouses that present every table at a cut, read-only.

Every verb of the warehouse `lake` exists. Verbs that write are refused with 403, which no client retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
from starlette.responses import Response
from starlette.routing import Route

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT
from lakestore.model import names
from lakestore.model.table import Table
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import Forbidden, NoSuchTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.edge import iceberg_rest
from lakestore_server.edge.catalog_request import CREDENTIALS, CatalogRequest, Slow, Sources, Verb, empty_answer
from lakestore_server.edge.iceberg_rest import CONFIG, REPORTS, TABLE, TABLE_KEYS, TABLES, VERBS, Verbs, prefixed
from lakestore_server.snapshots import warehouse
from lakestore_server.snapshots.presented_tables import LoadAnswer, LoadRequest, SnapshotTables, with_keys
from lakestore_server.snapshots.warehouse import Warehouse

LEASE_HEADER = "x-lakestore-lease-seconds"
"""The header of a load that asks for another lease than the default."""
_READS = ("GET", "HEAD")
_ROOTED = "ClickHouse/"
"""The user agent that misreads paths outside a table's location; it gets the whole warehouse as location."""


def verbs() -> Verbs:
    """Method, path and verb of every endpoint under a prefix."""
    return tuple((method, prefixed(path), _shown(method, path, verb)) for method, path, verb in VERBS if path != CONFIG)


def routes(sources: Sources, body_bytes_max: int = DEFAULT.http_body_bytes) -> list[Route]:
    """The routes under a prefix, for the catalog's `Mount`."""
    return iceberg_rest.routes(sources, body_bytes_max, verbs())


def _shown(method: str, path: str, verb: Verb) -> Verb:
    own: dict[tuple[str, str], Callable[[CatalogRequest, Verb], Response | Slow]] = {
        ("GET", TABLES): _list_tables,
        ("GET", TABLE): _load_table,
        ("HEAD", TABLE): _has_table,
        ("POST", REPORTS): _report,
        ("GET", TABLE_KEYS): _load_credentials,
    }
    if (method, path) in own:
        return lambda call: own[method, path](call, verb)
    return _as_in_lake(verb) if method in _READS else _refused


def _as_in_lake(verb: Verb) -> Verb:
    def of(call: CatalogRequest) -> Response | Slow:
        _warehouse(call)
        return verb(call)

    return of


def _refused(call: CatalogRequest) -> Response:
    _warehouse(call)
    raise Forbidden(
        "a presented cut is read-only: write rows with `lakestore` (lake.table(…), df.write.format('lakestore')), and"
        " maintain the lake's own tables in the warehouse `lake`"
    )


def _warehouse(call: CatalogRequest) -> Warehouse:
    return warehouse.of_prefix(call.path["prefix"])


def _presented(call: CatalogRequest) -> SnapshotTables:
    presented = call.sources.presented
    assert presented is not None
    return presented


def _list_tables(call: CatalogRequest, _: Verb) -> Response:
    """Under a position: our tables that existed there. Foreign tables have no state there."""
    found, position = call.catalog.tables(call.namespace), _warehouse(call).position
    if position:
        found = [name for name in found if _presented(call).was_there(f"{call.namespace}.{name}", position)]
    return iceberg_rest.list_tables(call, found)


def _load_table(call: CatalogRequest, of_lake: Verb) -> Response | Slow:
    ask = _ask(call)
    if ask is None:
        return of_lake(call)
    presented = _presented(call)
    keys = _keys(call, ask, refresh=f"{call.place}{CREDENTIALS}")
    if keys or ask.names_of:
        ask = replace(ask, etags="")  # a 304 would leave the engine with a key that ends
    answer = presented.kept(ask)
    if answer is None:
        return Slow(lambda: _answered(presented.load(ask), keys, ask.names_of))
    return _answered(answer, keys, ask.names_of)


def _keys(call: CatalogRequest, ask: LoadRequest, *, refresh: str = "", is_asked: bool = False) -> Json:
    """The keys for a cut's files and the lake's files below them."""
    space, _, table = ask.table.partition(".")
    folders = _presented(call).folders(ask)
    return call.keys_for(Name(space, table), *folders, writes=False, refresh=refresh, is_asked=is_asked)


def _load_credentials(call: CatalogRequest, of_lake: Verb) -> Response | Slow:
    ask = _ask(call)
    return of_lake(call) if ask is None else iceberg_rest.credentials_answer(_keys(call, ask, is_asked=True))


def _answered(answer: LoadAnswer, keys: Json, names_of: Table | None) -> Response:
    if names_of is not None and answer.body is not None:
        answer = LoadAnswer(f'{answer.etag.rstrip(chr(34))}-{names_of.schema_id}"', renamed(answer.body, names_of))
    headers = {"etag": answer.etag, **(iceberg_rest.SECRET_ANSWER if keys else {})}
    if answer.body is None:
        return Response(status_code=304, headers=headers)
    return Response(with_keys(answer.body, keys), headers=headers, media_type="application/json")


def renamed(body: bytes, version: Table) -> bytes:
    """An answer whose columns have the names of a version. Iceberg finds columns in files by their ids. A newer column
    with such a name is left out."""
    said = orjson.loads(body)
    doc = said["metadata"]
    names = {column.id: column.name for column in version.columns}
    schema = next(each for each in doc["schemas"] if each["schema-id"] == doc["current-schema-id"])
    taken = {names[field["id"]].lower() for field in schema["fields"] if field["id"] in names}
    kept = [field for field in schema["fields"] if field["id"] in names or field["name"].lower() not in taken]
    schema["fields"] = [{**field, "name": names.get(field["id"], field["name"])} for field in kept]
    return orjson.dumps(said)


def _has_table(call: CatalogRequest, of_lake: Verb) -> Response | Slow:
    ask = _ask(call)
    if ask is None:
        return of_lake(call)
    _presented(call).check(ask)
    return empty_answer()


def _report(call: CatalogRequest, _: Verb) -> Response:
    _warehouse(call)
    _presented(call).figures.reported()
    return empty_answer()


def _ask(call: CatalogRequest) -> LoadRequest | None:
    """The load that a request asks for; None for a foreign table, which `now` shows as it is."""
    shown, name = _warehouse(call), call.name
    ledger, position = call.catalog.ledger, shown.position
    names_of: Table | None = None
    if ledger.own_table(name.namespace, name.table) is None:
        is_known = name.table in ledger.pointers(name.namespace)
        parted = None if is_known or position else names.split_position(name.table)
        base, names_of = call.catalog.resolved(type(name)(name.namespace, parted[0] if parted else name.table))
        if is_known or ledger.own_table(base.namespace, base.table) is None:
            _check_not_ours(call, shown)
            return None
        name, position = base, warehouse.said_position(parted[1]) if parted else position
    return LoadRequest(
        table=str(name),
        position=position,
        format_version=shown.format_version,
        seconds=_seconds(call),
        etags=call.headers.get("if-none-match", ""),
        is_rooted=call.headers.get("user-agent", "").startswith(_ROOTED),
        names_of=names_of,
    )


def _check_not_ours(call: CatalogRequest, shown: Warehouse) -> None:
    """`NoSuchTable` unless the table is foreign and the warehouse shows foreign tables."""
    name = call.name
    if shown.position and name.table in call.catalog.ledger.pointers(name.namespace):
        raise NoSuchTable(
            f"{name} is not a table of Lakestore's, and so at no position of its: read it in the warehouse `now` or"
            " `lake`, there with Iceberg's own time travel"
        )
    if names.split_version(name.table) is not None and name.table not in call.catalog.ledger.pointers(name.namespace):
        raise NoSuchTable(f"Table does not exist: {name}")


def _seconds(call: CatalogRequest) -> int:
    said = call.headers.get(LEASE_HEADER, "")
    if not said:
        return 0
    if not (said.isascii() and said.isdecimal() and len(said) <= 9 and int(said)):
        raise Invalid(f"X-Lakestore-Lease-Seconds is a whole number of seconds, not {said[:20]!r}")
    return int(said)
