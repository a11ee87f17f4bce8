"""One request to the catalog, and the error boundary around its verb.

Bodies are read on the event loop. Every verb runs in a thread, so disk and journal never block the loop. A verb whose
answer may take long returns `Slow` work, which waits among its kind and delays no other request.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lakestore.errors import Invalid, LakestoreError, NotAuthenticated
from lakestore.model import names, outside_values
from lakestore.wire import errors
from lakestore_server.access.callers import Caller
from lakestore_server.access.finders import catalog_target
from lakestore_server.access.principals import Principal
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.engine_keys import EngineKeys, TableFiles
from lakestore_server.catalog.errors import (
    AlreadyExists,
    BadView,
    Forbidden,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
)
from lakestore_server.catalog.owners import called_by
from lakestore_server.catalog.schemas import Json
from lakestore_server.edge.leader_link import LeaderLink, SentRequest
from lakestore_server.snapshots.presented_tables import SnapshotTables

_NAMES: dict[type[LakestoreError], tuple[int, str]] = {
    NoSuchNamespace: (404, "NoSuchNamespaceException"),
    NoSuchTable: (404, "NoSuchTableException"),
    NoSuchView: (404, "NoSuchViewException"),
    NoSuchWarehouse: (404, "NoSuchWarehouseException"),
    AlreadyExists: (409, "AlreadyExistsException"),
    NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    Forbidden: (403, "ForbiddenException"),
    BadView: (400, "IllegalArgumentException"),
}
_KINDS = {
    "Invalid": (400, "BadRequestException"),
    "PositionExpired": (400, "BadRequestException"),
    "NotFound": (404, "NotFoundException"),
    "Conflict": (409, "CommitFailedException"),
    "Fenced": (403, "ForbiddenException"),
    "Denied": (403, "ForbiddenException"),
    "NotAuthenticated": (401, "NotAuthorizedException"),
    "Unavailable": (503, "ServiceUnavailableException"),
    "Exhausted": (503, "SlowDownException"),
    "LimitReached": (400, "BadRequestException"),
    "NotFresh": (503, "ServiceUnavailableException"),
    "PlanExpired": (503, "ServiceUnavailableException"),
}
"""A missing kind is answered like its nearest superclass that is here."""
UNKNOWN = (500, "CommitStateUnknownException")


class ClientStalled(LakestoreError):
    """The client stopped in the middle of its request."""

    kind = "Invalid"


def status_of(error: LakestoreError) -> tuple[int, str]:
    """HTTP status and protocol name of an error; UNKNOWN for a change that may have been applied."""
    if error.applied == "unknown":
        return UNKNOWN
    if isinstance(error, ClientStalled):
        return 408, "BadRequestException"
    above = (each.kind for each in type(error).__mro__ if issubclass(each, LakestoreError))
    known = (_KINDS[kind] for kind in (error.kind, *above) if kind in _KINDS)
    return _NAMES.get(type(error)) or next(known, (500, "InternalServerError"))


def answer(error: LakestoreError) -> tuple[int, dict[str, str], bytes]:
    """HTTP status, headers and body of an error. A 503 says in whole seconds when to try again."""
    status, name = status_of(error)
    headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))} if status == 503 else {}
    return status, headers, _error_body(status, name, error.message)


def no_such_call(status: int, call: str) -> tuple[int, bytes]:
    """HTTP status and body for an unknown path or method."""
    name = "UnsupportedOperationException" if status == 405 else "NoSuchCallException"
    return status, _error_body(
        status, name, f"{call[:200]}: there is no such call here; GET /iceberg/v1/config lists the catalog's"
    )


def _error_body(status: int, name: str, message: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": name, "code": status}})


DELEGATION, VENDED = "x-iceberg-access-delegation", "vended-credentials"
"""The header by which an engine asks for keys of the store, and its value."""
CREDENTIALS = "/credentials"
"""The end of the path at which an engine gets the next key of a table."""
CALLER = "lakestore.caller"
"""Key of the scope under which the gate puts the `Caller`."""
IDEMPOTENCY_KEY_CHARS_MAX = 128
LEVELS = "\x1f"
"""The separator of a namespace's levels in a path."""
SLOW_THREADS = 64
"""Slow requests at once; further ones wait."""
_LOG = logging.getLogger("lakestore.catalog")


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a server that verbs of the catalog use."""

    catalog: Catalog
    presented: SnapshotTables | None = None
    """None: no warehouse but the lake, as in tests of the catalog alone."""
    leader: LeaderLink | None = None
    """None: this server alone has the journal."""
    engine_keys: EngineKeys | None = None
    """None: engines get no keys, as in tests of the catalog alone."""


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """One request after its body was read."""

    sources: Sources
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Json
    key: str
    """Idempotency-Key, bound to this request; empty without one."""
    principal: Principal
    """The caller, whom the gate has admitted. Lists show what this principal may know."""
    place: str = ""
    """The path of the request below `/iceberg`, as it came."""

    @property
    def catalog(self) -> Catalog:
        return self.sources.catalog

    @property
    def namespace(self) -> str:
        """The namespace in the path, which has one level."""
        name = self.path["namespace"]
        if LEVELS in name or not self.sees_namespace(name):
            raise NoSuchNamespace(f"Namespace does not exist: {name.replace(LEVELS, '.')}")
        return name

    def sees_namespace(self, name: str) -> bool:
        return self.principal.sees_namespace(name.replace(".", LEVELS))

    @property
    def name(self) -> Name:
        """The table in the path. Spark asks for `db.table.branch_x` as a table in a deeper namespace and continues if
        it does not exist."""
        space, table = self.path["namespace"], self.path["table"]
        if LEVELS in space:
            raise NoSuchTable(f"Table does not exist: {space.replace(LEVELS, '.')}.{table}")
        return Name(space, table)

    @property
    def view(self) -> Name:
        """The SQL view in the path."""
        space, view = self.path["namespace"], self.path["view"]
        if LEVELS in space:
            raise NoSuchView(f"View does not exist: {space.replace(LEVELS, '.')}.{view}")
        return Name(space, view)

    def keys_for(self, name: Name, *folders: str, writes: bool, refresh: str = "", is_asked: bool = False) -> Json:
        """`config` and `storage-credentials` for a table's folders; empty unless the engine asks for keys, or
        `is_asked`, and the principal may have one. `refresh` is the path at which the engine gets the next key."""
        keys = self.sources.engine_keys
        if keys is None or not (is_asked or VENDED in self.headers.get(DELEGATION, "")):
            return {}
        ledger, parted = self.catalog.ledger, names.split_version(name.table)
        if parted is not None and ledger.own_table(name.namespace, parted[0]) is not None:
            name = Name(name.namespace, parted[0])
        right = "write" if ledger.own_table(name.namespace, name.table) is None else "tier"
        target = catalog_target(name.namespace, name.table)
        return keys.answer(
            self.principal, TableFiles(target, folders, right if writes else ""), refresh, is_load=not is_asked
        )

    def field(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """A field of the body; `Invalid` for another type, or without field and default."""
        value = self.body.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind):
            raise Invalid(f"field {key!r} of the request is missing or malformed")
        return value


@dataclass(frozen=True, slots=True)
class Slow:
    """An answer that may take long."""

    work: Callable[[], Response]


Verb = Callable[[CatalogRequest], Response | Slow]


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def empty_answer(status: int = 204) -> Response:
    """An answer without a body."""
    return Response(status_code=status)


def _problem(error: LakestoreError) -> Response:
    status, headers, body = answer(error)
    return Response(body, status, headers, media_type="application/json")


def _run(work: Callable[[], Response | Slow]) -> Response | Slow:
    try:
        return work()
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
        raise Invalid(f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("the request body is not a JSON object")
    outside_values.plain()(body, "the request body")
    return body


def _key(request: Request, principal: Principal, body: bytes) -> str:
    """The stored form of the request's key: with another sender, call or body it is another key."""
    key = request.headers.get("idempotency-key", "")
    if len(key) > IDEMPOTENCY_KEY_CHARS_MAX:
        raise Invalid(f"Idempotency-Key is longer than {IDEMPOTENCY_KEY_CHARS_MAX} characters")
    if not key:
        return ""
    parts = (principal.name, request.method, request.url.path, request.url.query, key)
    said = b"".join(hashlib.sha256(part).digest() for part in (*(part.encode() for part in parts), body))
    return hashlib.sha256(said).hexdigest()


def _sent(request: Request, body: bytes) -> SentRequest:
    """The request as it came, below the whole port's root."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    return SentRequest(request.method, f"{path}?{query}" if query else path, headers, body)


def _principal(request: Request) -> Principal:
    """The caller that the gate has put into the scope; a request that bypassed the gate is refused."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise NotAuthenticated("the request came to the catalog without a caller: this is a defect of the server")
    return caller.principal


class Endpoints:
    """The requests of one port, from HTTP to verbs and back."""

    def __init__(self, sources: Sources, bytes_max: int) -> None:
        self._sources, self._bytes_max = sources, bytes_max
        self._slow = anyio.CapacityLimiter(SLOW_THREADS)

    def endpoint_for(self, verb: Verb, *, changes: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a route. A verb that `changes` the catalog runs at the server that leads."""

        async def endpoint(request: Request) -> Response:
            try:
                data = await _body(request, self._bytes_max)
                call = self._call(request, data)
            except LakestoreError as error:
                return _problem(error)
            work = self._led(verb, _sent(request, data)) if changes else verb
            with called_by(call.principal):
                answer = await run_in_threadpool(_run, lambda: work(call))
                if isinstance(answer, Slow):
                    answer = await anyio.to_thread.run_sync(_run, answer.work, limiter=self._slow)
            assert isinstance(answer, Response)
            return answer

        return endpoint

    def _led(self, verb: Verb, request: SentRequest) -> Verb:
        """The verb at the leader; at a server that follows, the way to the leader."""
        leader = self._sources.leader
        if leader is None:
            return verb
        if not leader.is_leading:
            return lambda _: Slow(lambda: leader.answer(request))

        def answer(call: CatalogRequest) -> Response | Slow:
            own = _run(lambda: verb(call))  # a refusal is marked too: its client loads what is in the way
            return leader.mark(request, own) if isinstance(own, Response) else own

        return answer

    def _call(self, request: Request, data: bytes) -> CatalogRequest:
        principal = _principal(request)
        key, body = _key(request, principal, data), _object(data)
        path, query, headers = request.path_params, request.query_params, request.headers
        place = request.scope["raw_path"].decode("latin-1").partition("/iceberg")[2]
        return CatalogRequest(self._sources, path, query, headers, body, key, principal, place)
