"""The Iceberg REST protocol over a `Catalog`: HTTP in, verbs, HTTP out. Mounted under `/iceberg`.

Bodies are read on the event loop; every verb runs in a thread, so that disk and journal never block it.
`VERBS` is the one list of endpoints: routes and the answer of /v1/config are made from it.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakestore.errors import Invalid, LakestoreError
from lakestore.limits import DEFAULT
from lakestore.model import typed
from lakestore.wire import errors
from lakestore_server.access.policy import catalog_target
from lakestore_server.access.principals import ANYONE, Principal
from lakestore_server.edge import http_errors
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.iceberg.commits import TableChange
from lakestore_server.iceberg.contents import Name
from lakestore_server.iceberg.errors import NoSuchNamespace, NoSuchTable, NoSuchView
from lakestore_server.iceberg.metadata_store import StoredMetadata
from lakestore_server.iceberg.schemas import Json

CALLER = "lakestore.caller"
"""Key of the scope under which the gate puts the `Caller`; without a caller, as in a test, everyone has every right."""
IDEMPOTENCY_KEY_CHARS_MAX = 128
_PROPERTIES_MAX, _PROPERTY_CHARS_MAX = 100_000, 1 << 20
PAGE_SIZE_MAX = 100_000
_LEVELS = "\x1f"
"""The separator of a namespace's levels in a path."""
_LOG = logging.getLogger("lakestore.catalog")


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """One request, read."""

    catalog: Catalog
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Json
    key: str
    """Idempotency-Key, bound to this very request; empty if none was sent."""
    principal: Principal
    """The caller. The gate has checked the call itself; lists hold what the principal may know of."""

    @property
    def namespace(self) -> str:
        """The namespace in the path; only one level exists."""
        name = self.path["namespace"]
        if _LEVELS in name or not self.sees_namespace(name):
            raise NoSuchNamespace(f"Namespace does not exist: {name.replace(_LEVELS, '.')}")
        return name

    def sees_namespace(self, name: str) -> bool:
        """Whether the caller may know of a namespace."""
        return self.principal.sees_namespace(name.replace(".", _LEVELS))

    @property
    def name(self) -> Name:
        """The table in the path.

        Spark asks for `db.table.branch_x` as a table in a deeper namespace and goes on when there is no such table.
        """
        space, table = self.path["namespace"], self.path["table"]
        if _LEVELS in space:
            raise NoSuchTable(f"Table does not exist: {space.replace(_LEVELS, '.')}.{table}")
        return Name(space, table)

    def field(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """A field of the body; `Invalid` if its kind is another, or if the field is missing without a default."""
        value = self.body.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind):
            raise Invalid(f"field {key!r} of the request is missing or malformed")
        return value


Verb = Callable[[CatalogRequest], Response]


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _done(status: int = 204) -> Response:
    return Response(status_code=status)


def _table(stored: StoredMetadata, *, refs_only: bool = False) -> Response:
    """A LoadTableResult; the stored bytes are not parsed or written again."""
    content: Json = {"metadata": orjson.Fragment(stored.data) if stored.data else stored.doc, "config": {}}
    if refs_only:
        named = {ref["snapshot-id"] for ref in stored.doc["refs"].values()}
        kept = [snapshot for snapshot in stored.doc["snapshots"] if snapshot["snapshot-id"] in named]
        content["metadata"] = {**stored.doc, "snapshots": kept}
    if stored.location:
        content["metadata-location"] = stored.location
    return _json(content)


def _level(value: Any) -> str:
    """The name in a namespace's array of levels."""
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
    endpoints = [
        f"{method} {path.replace('/v1/', '/v1/{prefix}/', 1)}"
        for method, path, _ in VERBS
        if path not in ("/v1/config", _VIEWS, _VIEW)
    ]
    return _json({"defaults": {}, "overrides": {}, "endpoints": endpoints, "idempotency-key-lifetime": "PT30M"})


def _list_namespaces(call: CatalogRequest) -> Response:
    parent = call.query.get("parent")
    if parent:
        if not call.sees_namespace(parent):
            raise NoSuchNamespace(f"Namespace does not exist: {parent}")
        call.catalog.namespace(parent)
        return _json({"namespaces": []})
    names, more = _page(call, [name for name in call.catalog.namespaces() if call.sees_namespace(name)])
    return _json({"namespaces": [[name] for name in names], **more})


def _page(call: CatalogRequest, names: Sequence[str]) -> tuple[Sequence[str], Json]:
    """The names that a list's request asks for, sorted before, and where they go on; all of them if it asks for none.

    A page's token is the last name before it, so that names which come and go between two pages move no other.
    """
    size, token = call.query.get("pageSize"), call.query.get("pageToken")
    if size is None and token is None:
        return names, {}
    try:
        after = base64.urlsafe_b64decode(token or "").decode()
        wanted = PAGE_SIZE_MAX if size is None else int(size)
    except ValueError as error:
        raise Invalid(f"pageSize {size!r} or pageToken {token!r} is none: begin the list anew") from error
    if not 1 <= wanted <= PAGE_SIZE_MAX:
        raise Invalid(f"pageSize is a whole number from 1 to {PAGE_SIZE_MAX}, not {size!r}")
    rest = names[bisect.bisect_right(names, after) :] if token else names
    page = rest[:wanted]
    more = base64.urlsafe_b64encode(page[-1].encode()).decode() if len(rest) > wanted else None
    return page, {"next-page-token": more}


def _create_namespace(call: CatalogRequest) -> Response:
    name, properties = _level(call.body.get("namespace")), _strings(call.field("properties", dict, {}))
    call.catalog.create_namespace(name, properties, call.key)
    return _json({"namespace": [name], "properties": properties})


def _load_namespace(call: CatalogRequest) -> Response:
    return _json({"namespace": [call.namespace], "properties": dict(call.catalog.namespace(call.namespace))})


def _has_namespace(call: CatalogRequest) -> Response:
    call.catalog.namespace(call.namespace)
    return _done()


def _drop_namespace(call: CatalogRequest) -> Response:
    call.catalog.drop_namespace(call.namespace, call.key)
    return _done()


def _update_namespace(call: CatalogRequest) -> Response:
    removals = typed.list_of(typed.text(_PROPERTY_CHARS_MAX), _PROPERTIES_MAX)(
        call.field("removals", list, []), "removals"
    )
    updates = _strings(call.field("updates", dict, {}))
    if set(removals) & updates.keys():
        raise Invalid("a property is both removed and updated")
    return _json(call.catalog.update_namespace(call.namespace, removals, updates, call.key))


def _list_tables(call: CatalogRequest) -> Response:
    space = call.namespace
    seen = [name for name in call.catalog.tables(space) if call.principal.sees(catalog_target(space, name))]
    names, more = _page(call, seen)
    return _json({"identifiers": [{"namespace": [space], "name": name} for name in names], **more})


def _create_table(call: CatalogRequest) -> Response:
    call.field("schema", dict)
    for field in ("partition-spec", "write-order"):
        call.field(field, dict, {})
    _strings(call.field("properties", dict, {}))
    return _table(call.catalog.create_table(call.namespace, call.body, call.key))


def _register_table(call: CatalogRequest) -> Response:
    return _table(
        call.catalog.register(
            call.namespace,
            call.field("name", str),
            call.field("metadata-location", str),
            overwrite=call.field("overwrite", bool, False),
            key=call.key,
        )
    )


def _load_table(call: CatalogRequest) -> Response:
    return _table(call.catalog.load(call.name), refs_only=call.query.get("snapshots") == "refs")


def _has_table(call: CatalogRequest) -> Response:
    call.catalog.load(call.name)
    return _done()


def _commit_table(call: CatalogRequest) -> Response:
    return _table(call.catalog.commit([_change(call.body, call.name)], call.key)[0])


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
    return _done()


def _rename_table(call: CatalogRequest) -> Response:
    call.catalog.rename_table(_identifier(call.body.get("source")), _identifier(call.body.get("destination")), call.key)
    return _done()


def _commit_transaction(call: CatalogRequest) -> Response:
    call.catalog.commit([_change(each) for each in call.field("table-changes", list)], call.key)
    return _done()


def _report_metrics(call: CatalogRequest) -> Response:
    return _done()


def _list_views(call: CatalogRequest) -> Response:
    call.catalog.namespace(call.namespace)
    return _json({"identifiers": []})


def _load_view(call: CatalogRequest) -> Response:
    raise NoSuchView(f"View does not exist: {call.namespace}.{call.path['view']}")


_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = _NAMESPACE + "/tables/{table}"
_VIEWS = _NAMESPACE + "/views"
_VIEW = _VIEWS + "/{view}"
VERBS: tuple[tuple[str, str, Verb], ...] = (
    ("GET", "/v1/config", _config),
    ("GET", "/v1/namespaces", _list_namespaces),
    ("POST", "/v1/namespaces", _create_namespace),
    ("GET", _NAMESPACE, _load_namespace),
    ("HEAD", _NAMESPACE, _has_namespace),
    ("DELETE", _NAMESPACE, _drop_namespace),
    ("POST", _NAMESPACE + "/properties", _update_namespace),
    ("GET", _NAMESPACE + "/tables", _list_tables),
    ("POST", _NAMESPACE + "/tables", _create_table),
    ("POST", _NAMESPACE + "/register", _register_table),
    ("GET", _TABLE, _load_table),
    ("HEAD", _TABLE, _has_table),
    ("POST", _TABLE, _commit_table),
    ("DELETE", _TABLE, _drop_table),
    ("POST", "/v1/tables/rename", _rename_table),
    ("POST", "/v1/transactions/commit", _commit_transaction),
    ("POST", _TABLE + "/metrics", _report_metrics),
    ("GET", _VIEWS, _list_views),
    ("GET", _VIEW, _load_view),
    ("HEAD", _VIEW, _load_view),
)
"""Method, path and verb of every endpoint. Those of views answer clients that ask unasked: there are none."""


def _problem(error: LakestoreError) -> Response:
    status, body = http_errors.answer(error)
    return Response(body, status, media_type="application/json")


def _run(verb: Verb, call: CatalogRequest) -> Response:
    """The boundary: every error leaves as an answer of the protocol."""
    try:
        return verb(call)
    except LakestoreError as error:
        return _problem(error)
    except RecursionError:
        return _problem(Invalid("the request is nested too deeply: nothing was changed"))
    except Exception as error:
        _LOG.exception("a catalog request failed")
        return _problem(errors.defect(error))


async def _body(request: Request, bytes_max: int) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > bytes_max:
            raise Invalid(f"the request body is larger than {bytes_max} bytes")
    return bytes(data)


def _object(data: bytes) -> Json:
    try:
        body = orjson.loads(data) if data else {}
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the request body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the request body is no JSON object")
    typed.plain()(body, "the request body")
    return body


def _key(request: Request, principal: Principal, body: bytes) -> str:
    """The request's key as it is kept: another sender, call or body with the same key is another request."""
    key = request.headers.get("idempotency-key", "")
    if len(key) > IDEMPOTENCY_KEY_CHARS_MAX:
        raise Invalid(f"Idempotency-Key is longer than {IDEMPOTENCY_KEY_CHARS_MAX} characters")
    if not key:
        return ""
    parts = (principal.name, request.method, request.url.path, request.url.query, key)
    said = b"".join(hashlib.sha256(part).digest() for part in (*(part.encode() for part in parts), body))
    return hashlib.sha256(said).hexdigest()


def _endpoint(catalog: Catalog, verb: Verb, bytes_max: int) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            data = await _body(request, bytes_max)
            caller = request.scope.get(CALLER)
            principal = caller.principal if caller else ANYONE
            key, body = _key(request, principal, data), _object(data)
            call = CatalogRequest(catalog, request.path_params, request.query_params, body, key, principal)
        except LakestoreError as error:
            return _problem(error)
        return await run_in_threadpool(_run, verb, call)

    return endpoint


def routes(catalog: Catalog, body_bytes_max: int = DEFAULT.http_body_bytes) -> list[Route]:
    """The catalog's routes, for a `Mount` under `/iceberg`."""
    by_path: dict[str, list[tuple[str, Verb]]] = {}
    for method, path, verb in VERBS:
        by_path.setdefault(path, []).append((method, verb))
    # A route for GET answers HEAD too, so the HEAD routes come first.
    return [
        Route(path, _endpoint(catalog, verb, body_bytes_max), methods=[method])
        for path, verbs in by_path.items()
        for method, verb in sorted(verbs, key=lambda each: each[0] != "HEAD")
    ]


def app(catalog: Catalog) -> Starlette:
    """The catalog as an application of its own, at the root."""
    return Starlette(routes=routes(catalog))
