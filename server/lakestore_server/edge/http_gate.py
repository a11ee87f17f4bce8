"""The gate of the HTTP port: finds a request's caller, checks the right, bounds the body. Every request passes here
first.

A body is read whole, within limits of bytes and time, only after its sender is known. The exception is the small body
that asks for an access token.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import orjson
from starlette.routing import BaseRoute, Match, Mount, Route

from lakestore.errors import Denied, Exhausted, Invalid, LakestoreError, NotAuthenticated
from lakestore.limits import DEFAULT, Limits
from lakestore_server.access.admission import Admission, facts_of
from lakestore_server.access.callers import Caller, basic
from lakestore_server.access.policy import Row
from lakestore_server.edge import catalog_request
from lakestore_server.edge.catalog_request import CALLER, ClientStalled
from lakestore_server.edge.tls import is_loopback
from lakestore_server.host.quota import share_of
from lakestore_server.operate.clients import Clients

ANY_HOST = "*"
"""The entry of `http.allowed_hosts` that allows every host name."""


class PageGuard:
    """The rules of one server for requests of web pages."""

    def __init__(self, allowed_hosts: Sequence[str] = ()) -> None:
        self._allowed = frozenset(_name(host) for host in allowed_hosts)

    def check_headers(self, headers: Mapping[str, str], local_address: str) -> None:
        """`Denied` or `Invalid` for a request that a foreign page may have sent."""
        host = headers.get("host", "")
        if not self._is_ours(_name(host), local_address):
            raise Denied(f"host {host!r} is not known here: use localhost, name it in http.allowed_hosts, or set auth")
        self.check_page(headers)
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body and not _is_json(headers.get("content-type", "")):
            raise Invalid("the request's body is no JSON by its head: send `Content-Type: application/json`")

    @staticmethod
    def check_page(headers: Mapping[str, str]) -> None:
        """`Denied` for a foreign page's request: a browser shows a client certificate for every page."""
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, headers.get("host", "")):
            raise Denied(f"a page of {origin!r} may not call this server without a token: it takes only its own pages")

    def _is_ours(self, name: str, local_address: str) -> bool:
        if ANY_HOST in self._allowed or name in self._allowed or name.endswith(".localhost"):
            return True
        # An address cannot be rebound like a name: the address of this connection is this server.
        return is_loopback(name) or (_is_address(name) and name == local_address)


def _name(host: str) -> str:
    """The host without its port in one spelling; empty if it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_same(origin: str, host: str) -> bool:
    """Whether a page's origin is the host and port of the request."""
    return urlsplit(origin).netloc.lower() == host.lower() if "://" in origin else False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


THREADS = 40
"""Requests answered at once, in starlette's thread pool."""


class HttpShares:
    """The shares of one port's callers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()
        """Owner to bytes; the empty name has the bytes of unknown callers."""
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    def hold(self, owner: str, nbytes: int) -> None:
        """Count more bytes of an owner, or `Exhausted`; in both cases `let_go` must release them."""
        self._held[owner] += nbytes
        most = self._limits.http_bodies_bytes
        if self._held.total() > most or (owner and self._held[owner] > share_of(most, self._limits)):
            raise Exhausted("too many large requests at once: try again later")

    def let_go(self, owner: str, nbytes: int) -> None:
        self._held[owner] -= nbytes
        if not self._held[owner]:
            del self._held[owner]

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for the owner's turn to be answered; no wait without an owner."""
        if not owner:
            yield
            return
        semaphore = self._turns.get(owner)
        if semaphore is None:
            semaphore = self._turns[owner] = asyncio.Semaphore(share_of(THREADS, self._limits))
        async with semaphore:
            yield


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
CERTIFICATE = "lakestore.certificate"
"""Key of the scope with the names in the client's certificate."""
ADVANCE = "lakestore.advance"
"""Key of the scope with the function that the gate calls once a request's sender is known or the request is complete. A
connection that does not get so far in time is closed."""
OPEN_BODY_BYTES_MAX = 64 << 10
"""The largest body of a request with an unknown sender."""
_ICEBERG, _CONSOLE = "/iceberg/", "/console/"
_BODILESS = ("GET", "HEAD")
_ONCE = frozenset(
    (b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"idempotency-key", b"origin")
)
"""Headers that decide about a request: a proxy might use the other one of two equal headers."""
_SHOWN_CHARS = 100
"""Characters of an unknown path in log and refusal."""


class ClientGone(Exception):
    """The client closed the connection during its request."""


@dataclass(frozen=True, slots=True)
class MatchedRoute:
    """The route of a request."""

    template: str
    path: dict[str, str]


class Gate:
    """An ASGI application in front of another."""

    def __init__(
        self,
        *,
        application: Application,
        routes: Sequence[BaseRoute],
        admission: Admission,
        limits: Limits = DEFAULT,
        guard: PageGuard | None = None,
        clients: Clients | None = None,
    ) -> None:
        self._application, self._routes, self._admission, self._limits = application, routes, admission, limits
        self._guard = guard or PageGuard()
        self._shares, self._clients = HttpShares(limits), clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; a refusal is answered here."""
        if scope["type"] != "http":
            return
        try:
            body, caller = await self._admitted(scope, receive)
        except ClientGone:
            return
        except LakestoreError as error:
            await _refuse(scope, send, error)
            return
        owner = _owner(caller)
        try:
            async with self._shares.turn(owner):
                await self._application({**scope, CALLER: caller}, _replayed(body, receive), send)
        finally:
            # Only now: a body counts against `http_bodies_bytes` while it is in memory.
            self._shares.let_go(owner, len(body))

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[bytes, Caller | None]:
        """(body, caller) of an admitted request."""
        _check_head(scope, self._limits.header_bytes)
        matched = _matched(self._routes, scope)
        method = scope["method"]
        row = self._admission.route(method, matched.template) if matched else None
        if row is None and matched and method == "HEAD":
            row = self._admission.route("GET", matched.template)
        what = f"{method} {matched.template if matched else scope['path'][:_SHOWN_CHARS]}"
        token = _token(scope)
        self._check_page(scope, row, token)
        caller = self._admission.http_caller(row, token, scope.get(CERTIFICATE, ()), what)
        if caller is not None:
            self._note(scope, caller, what)
            _advance(scope)
        _check_encoding(scope)
        if matched is None:
            return b"", caller
        # If the right does not depend on the body, it is checked before the body is read.
        if row is None or not row.body:
            self._admission.check_right(row, caller, facts_of(matched.path, None), what)
        if method in _BODILESS:  # a sender of a body with these methods waits for nobody
            _advance(scope)
            return b"", caller
        body = await self._body(receive, caller)
        _advance(scope)
        if row is not None and row.body:
            try:
                self._admission.check_right(row, caller, facts_of(matched.path, _parsed(body)), what)
            except LakestoreError:
                self._shares.let_go(_owner(caller), len(body))
                raise
        return body, caller

    def _check_page(self, scope: Scope, row: Row | None, token: str) -> None:
        """Refuse a foreign page's request that a browser sends without a token."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if row is not None and row.right == "open":
            return
        if self._admission.access.is_open:
            self._guard.check_headers(headers, (scope.get("server") or ("",))[0])
        elif not token and scope.get(CERTIFICATE):
            self._guard.check_page(headers)

    def _note(self, scope: Scope, caller: Caller, what: str) -> None:
        if self._clients is not None and scope.get("client"):
            self._clients.calls("http", caller.counted_as, ":".join(map(str, scope["client"])), what)

    async def _body(self, receive: Receive, caller: Caller | None) -> bytes:
        data, owner = bytearray(), _owner(caller)
        bytes_max = self._limits.http_body_bytes if caller else OPEN_BODY_BYTES_MAX
        try:
            while True:
                message = await asyncio.wait_for(receive(), self._limits.http_stall_ms / 1000)
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                data += part
                self._shares.hold(owner, len(part))
                if len(data) > bytes_max:
                    raise Invalid(f"the request body is larger than {bytes_max} bytes")
                if not message.get("more_body", False):
                    return bytes(data)
        except TimeoutError:
            self._shares.let_go(owner, len(data))
            raise ClientStalled("the request body did not come in time: send it again") from None
        except (ClientGone, LakestoreError):
            self._shares.let_go(owner, len(data))
            raise


def _matched(routes: Sequence[BaseRoute], scope: Scope) -> MatchedRoute | None:
    """The route that the application will choose, found the same way."""
    for route in routes:
        match, child = route.matches(scope)
        if match is not Match.FULL:
            continue
        if isinstance(route, Mount):
            inner = _matched(route.routes or (), {**scope, **child})
            return MatchedRoute(route.path + inner.template, inner.path) if inner else None
        if isinstance(route, Route):
            return MatchedRoute(route.path, {name: str(value) for name, value in child["path_params"].items()})
    return None


def _owner(caller: Caller | None) -> str:
    """The principal whose quota a request uses; empty on a server without principals."""
    return caller.counted_as if caller else ""


def _advance(scope: Scope) -> None:
    """Tell the connection that its request advanced; tests of the gate alone have no connection."""
    told = scope.get(ADVANCE)
    if told is not None:
        told()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _token(scope: Scope) -> str:
    """The token of a request; empty if there is none. A browser sends Basic by itself, also for foreign pages, so Basic
    is accepted only for requests that change nothing."""
    scheme, _, said = _header(scope, b"authorization").partition(" ")
    if not scheme:
        return ""
    if scheme.lower() == "bearer" and said.strip():
        return said.strip()
    if scheme.lower() == "basic" and scope["method"] in ("GET", "HEAD"):
        return basic(said)[1]
    if scheme.lower() == "basic" and scope["path"].endswith("/oauth/tokens"):
        return ""
    raise NotAuthenticated("the Authorization header is not `Bearer <token>`")


def _check_head(scope: Scope, bytes_max: int) -> None:
    """Refuse a head that is too large or ambiguous; the parser checks the size of incomplete heads only."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > bytes_max:
        raise Invalid(f"the head of the request is larger than {bytes_max} bytes")
    names = [name for name, _ in scope["headers"]]
    if len(names) > len(set(names)) and (twice := next((name for name in _ONCE if names.count(name) > 1), None)):
        raise Invalid(f"the head of the request has the header {twice.decode()} more than once: send it once")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Invalid("the request has both Content-Length and Transfer-Encoding: send one of them")


def _check_encoding(scope: Scope) -> None:
    """Refuse a compressed body: it could expand to any size, and our clients send none."""
    encoding = _header(scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise Invalid("a request body with a Content-Encoding is not taken: send it as it is")


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the request body is not JSON: {error}") from error


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages for the application: the body that was read, then the rest."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


async def _refuse(scope: Scope, send: Send, error: LakestoreError) -> None:
    status, own, body = catalog_request.answer(error)
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(name.encode(), value.encode()) for name, value in own.items()]
    if status == 401:
        # A browser asks for name and password if Basic is offered; the console has its own form.
        basic_helps = not scope["path"].startswith((_ICEBERG, _CONSOLE))
        headers.append(
            (b"www-authenticate", b'Basic realm="lakestore"' if basic_helps else b'Bearer realm="lakestore"')
        )
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
