"""The Iceberg REST protocol over a `Catalog`: the verbs of the warehouse `lake`, mounted under `/iceberg`.

`VERBS` is the one list of endpoints: routes, routes under a prefix (`presented_rest`) and the answer of /v1/config are
made from it.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT
from lakestore.model import outside_values
from lakestore_server.access.finders import catalog_target
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import NoSuchNamespace
from lakestore_server.catalog.metadata_store import StoredMetadata
from lakestore_server.catalog.schemas import Json
from lakestore_server.edge.catalog_request import (
    CREDENTIALS,
    CatalogRequest,
    Endpoints,
    Sources,
    Verb,
    empty_answer,
    json_answer,
)
from lakestore_server.snapshots import warehouse
from lakestore_server.state.catalog_change import SqlView

_PROPERTIES_MAX, _PROPERTY_CHARS_MAX = 100_000, 1 << 20
PAGE_SIZE_MAX = 100_000


SECRET_ANSWER = {"cache-control": "no-store"}
"""Headers of an answer with keys."""


def _table(call: CatalogRequest, name: Name, stored: StoredMetadata, *, refs_only: bool = False) -> Response:
    """A LoadTableResult from the stored bytes, without parsing them, and the keys that the engine asks for."""
    refresh = f"{call.place}{CREDENTIALS}" if "table" in call.path else ""
    keys = call.keys_for(name, stored.doc["location"], writes=True, refresh=refresh)
    content: Json = {"metadata": orjson.Fragment(stored.data) if stored.data else stored.doc, "config": {}, **keys}
    if refs_only:
        named = {ref["snapshot-id"] for ref in stored.doc["refs"].values()}
        kept = [snapshot for snapshot in stored.doc["snapshots"] if snapshot["snapshot-id"] in named]
        content["metadata"] = {**stored.doc, "snapshots": kept}
    if stored.location:
        content["metadata-location"] = stored.location
    return json_answer(content, headers=SECRET_ANSWER if keys else None)


def _level(value: Any) -> str:
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
        raise Invalid("a namespace has exactly one level here, as in ['sales']")
    return value[0]


def _identifier(value: Any) -> Name:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise Invalid("a table identifier is {namespace: [name], name: name}")
    return Name(_level(value.get("namespace")), value["name"])


def _strings(value: Mapping[str, Any]) -> Mapping[str, str]:
    if not all(isinstance(part, str) for part in value.values()):
        raise Invalid("properties are texts")
    return value


def _config(call: CatalogRequest) -> Response:
    endpoints = [f"{method} {prefixed(path)}" for method, path, _ in VERBS if path != CONFIG]
    prefix = warehouse.prefix_of(call.query.get("warehouse", ""), call.catalog.warehouse)
    overrides = {"prefix": prefix} if prefix else {}
    store = {} if call.sources.engine_keys is None else call.sources.engine_keys.endpoint_config()
    said = {"defaults": store, "overrides": overrides, "endpoints": endpoints, "idempotency-key-lifetime": "PT30M"}
    if prefix and call.sources.presented is not None:
        call.sources.presented.warm()
    return json_answer(said)


def _list_namespaces(call: CatalogRequest) -> Response:
    parent = call.query.get("parent")
    if parent:
        if not call.sees_namespace(parent):
            raise NoSuchNamespace(f"Namespace does not exist: {parent}")
        call.catalog.namespace(parent)
        return json_answer({"namespaces": []})
    names, more = _page(call, [name for name in call.catalog.namespaces() if call.sees_namespace(name)])
    return json_answer({"namespaces": [[name] for name in names], **more})


def _page(call: CatalogRequest, names: Sequence[str]) -> tuple[Sequence[str], Json]:
    """The requested page of a sorted list and its continuation; the whole list without a page size. A page's token is
    the last name before it, so names that come and go between pages move no other."""
    size, token = call.query.get("pageSize"), call.query.get("pageToken")
    if size is None and token is None:
        return names, {}
    try:
        after = base64.urlsafe_b64decode(token or "").decode()
        wanted = PAGE_SIZE_MAX if size is None else int(size)
    except ValueError as error:
        raise Invalid(f"pageSize {size!r} or pageToken {token!r} is none: start the list again") from error
    if not 1 <= wanted <= PAGE_SIZE_MAX:
        raise Invalid(f"pageSize is a whole number from 1 to {PAGE_SIZE_MAX}, not {size!r}")
    rest = names[bisect.bisect_right(names, after) :] if token else names
    page = rest[:wanted]
    more = base64.urlsafe_b64encode(page[-1].encode()).decode() if len(rest) > wanted else None
    return page, {"next-page-token": more}


def _create_namespace(call: CatalogRequest) -> Response:
    name, properties = _level(call.body.get("namespace")), _strings(call.field("properties", dict, {}))
    call.catalog.create_namespace(name, properties, call.key)
    return json_answer({"namespace": [name], "properties": properties})


def _load_namespace(call: CatalogRequest) -> Response:
    return json_answer({"namespace": [call.namespace], "properties": dict(call.catalog.namespace(call.namespace))})


def _has_namespace(call: CatalogRequest) -> Response:
    call.catalog.namespace(call.namespace)
    return empty_answer()


def _drop_namespace(call: CatalogRequest) -> Response:
    call.catalog.drop_namespace(call.namespace, call.key)
    return empty_answer()


def _update_namespace(call: CatalogRequest) -> Response:
    removals = outside_values.list_of(outside_values.text(_PROPERTY_CHARS_MAX), _PROPERTIES_MAX)(
        call.field("removals", list, []), "removals"
    )
    updates = _strings(call.field("updates", dict, {}))
    if set(removals) & updates.keys():
        raise Invalid("a property is both removed and updated")
    return json_answer(call.catalog.update_namespace(call.namespace, removals, updates, call.key))


def _list_tables(call: CatalogRequest) -> Response:
    return list_tables(call, call.catalog.tables(call.namespace))


def list_tables(call: CatalogRequest, found: Iterable[str]) -> Response:
    """These tables of the path's namespace, without those that the caller may not know."""
    space = call.namespace
    seen = [name for name in found if call.principal.sees(catalog_target(space, name))]
    names, more = _page(call, seen)
    return json_answer({"identifiers": [{"namespace": [space], "name": name} for name in names], **more})


def _create_table(call: CatalogRequest) -> Response:
    call.field("schema", dict)
    for field in ("partition-spec", "write-order"):
        call.field(field, dict, {})
    _strings(call.field("properties", dict, {}))
    stored = call.catalog.create_table(call.namespace, call.body, call.key)
    return _table(call, Name(call.namespace, call.field("name", str)), stored)


def _register_table(call: CatalogRequest) -> Response:
    name = Name(call.namespace, call.field("name", str))
    stored = call.catalog.register(
        name.namespace,
        name.table,
        call.field("metadata-location", str),
        overwrite=call.field("overwrite", bool, False),
        key=call.key,
    )
    return _table(call, name, stored)


def _load_table(call: CatalogRequest) -> Response:
    return _table(call, call.name, call.catalog.load(call.name), refs_only=call.query.get("snapshots") == "refs")


def _load_credentials(call: CatalogRequest) -> Response:
    folder = call.catalog.load(call.name).doc["location"]
    return credentials_answer(call.keys_for(call.name, folder, writes=True, is_asked=True))


def credentials_answer(keys: Json) -> Response:
    """The next key of a table; an empty list for a principal that gets none."""
    return json_answer({"storage-credentials": keys.get("storage-credentials", [])}, headers=SECRET_ANSWER)


def _has_table(call: CatalogRequest) -> Response:
    call.catalog.load(call.name)
    return empty_answer()


def _commit_table(call: CatalogRequest) -> Response:
    return _table(call, call.name, call.catalog.commit([_change(call.body, call.name)], call.key)[0])


def _change(body: Any, name: Name | None = None) -> TableChange:
    if not isinstance(body, dict):
        raise Invalid("a table change is an object")
    asked, updates = body.get("requirements") or [], body.get("updates") or []
    for each in (asked, updates):
        if not isinstance(each, list) or not all(isinstance(part, dict) for part in each):
            raise Invalid("requirements and updates are lists of objects")
    return TableChange(name or _identifier(body.get("identifier")), asked, updates)


def _drop_table(call: CatalogRequest) -> Response:
    purge = call.query.get("purgeRequested", "false").lower()
    if purge not in ("true", "false"):
        raise Invalid(f"purgeRequested is true or false, not {purge!r}")
    call.catalog.drop_table(call.name, call.key, purge=purge == "true")
    return empty_answer()


def _rename_table(call: CatalogRequest) -> Response:
    call.catalog.rename_table(_identifier(call.body.get("source")), _identifier(call.body.get("destination")), call.key)
    return empty_answer()


def _commit_transaction(call: CatalogRequest) -> Response:
    call.catalog.commit([_change(each) for each in call.field("table-changes", list)], call.key)
    return empty_answer()


def _report_metrics(call: CatalogRequest) -> Response:
    return empty_answer()


def _view(view: SqlView) -> Response:
    """A LoadViewResult from the stored text, without parsing it."""
    content = {"metadata-location": view.location, "metadata": orjson.Fragment(view.document), "config": {}}
    return json_answer(content)


def _list_views(call: CatalogRequest) -> Response:
    return list_tables(call, call.catalog.views.names(call.namespace))


def _create_view(call: CatalogRequest) -> Response:
    for field in ("schema", "view-version"):
        call.field(field, dict)
    _strings(call.field("properties", dict, {}))
    return _view(call.catalog.views.create(call.namespace, call.body, call.key))


def _load_view(call: CatalogRequest) -> Response:
    return _view(call.catalog.views.load(call.view))


def _has_view(call: CatalogRequest) -> Response:
    call.catalog.views.load(call.view)
    return empty_answer()


def _replace_view(call: CatalogRequest) -> Response:
    change = _change(call.body, call.view)
    return _view(call.catalog.views.replace(change.name, change.requirements, change.updates, call.key))


def _drop_view(call: CatalogRequest) -> Response:
    call.catalog.views.drop(call.view, call.key)
    return empty_answer()


def _rename_view(call: CatalogRequest) -> Response:
    source, target = _identifier(call.body.get("source")), _identifier(call.body.get("destination"))
    call.catalog.views.rename(source, target, call.key)
    return empty_answer()


CONFIG = "/v1/config"
_NAMESPACE = "/v1/namespaces/{namespace}"
TABLES = _NAMESPACE + "/tables"
TABLE = TABLES + "/{table}"
REPORTS = TABLE + "/metrics"
TABLE_KEYS = TABLE + CREDENTIALS
_VIEWS = _NAMESPACE + "/views"
_VIEW = _VIEWS + "/{view}"
Verbs = tuple[tuple[str, str, Verb], ...]
VERBS: Verbs = (
    ("GET", CONFIG, _config),
    ("GET", "/v1/namespaces", _list_namespaces),
    ("POST", "/v1/namespaces", _create_namespace),
    ("GET", _NAMESPACE, _load_namespace),
    ("HEAD", _NAMESPACE, _has_namespace),
    ("DELETE", _NAMESPACE, _drop_namespace),
    ("POST", _NAMESPACE + "/properties", _update_namespace),
    ("GET", TABLES, _list_tables),
    ("POST", TABLES, _create_table),
    ("POST", _NAMESPACE + "/register", _register_table),
    ("GET", TABLE, _load_table),
    ("HEAD", TABLE, _has_table),
    ("POST", TABLE, _commit_table),
    ("DELETE", TABLE, _drop_table),
    ("POST", "/v1/tables/rename", _rename_table),
    ("POST", "/v1/transactions/commit", _commit_transaction),
    ("POST", REPORTS, _report_metrics),
    ("GET", TABLE_KEYS, _load_credentials),
    ("GET", _VIEWS, _list_views),
    ("POST", _VIEWS, _create_view),
    ("GET", _VIEW, _load_view),
    ("HEAD", _VIEW, _has_view),
    ("POST", _VIEW, _replace_view),
    ("DELETE", _VIEW, _drop_view),
    ("POST", "/v1/views/rename", _rename_view),
)
"""Method, path and verb of every endpoint."""


def prefixed(path: str) -> str:
    """An endpoint's path under a prefix."""
    return path.replace("/v1/", "/v1/{prefix}/", 1)


def routes(sources: Sources, body_bytes_max: int = DEFAULT.http_body_bytes, verbs: Verbs = VERBS) -> list[Route]:
    """The catalog's routes, for a `Mount` under `/iceberg`."""
    endpoints, by_path = Endpoints(sources, body_bytes_max), dict[str, list[tuple[str, Verb]]]()
    changes = {verb for method, path, verb in VERBS if method in ("POST", "DELETE") and path != REPORTS}
    for method, path, verb in verbs:
        by_path.setdefault(path, []).append((method, verb))
    # A GET route answers HEAD too, so the HEAD routes come first.
    return [
        Route(path, endpoints.endpoint_for(verb, changes=verb in changes), methods=[method])
        for path, found in by_path.items()
        for method, verb in sorted(found, key=lambda each: each[0] != "HEAD")
    ]
