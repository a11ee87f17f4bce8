"""The gate of the HTTP port: a request's caller, its right, and no more of its body than the server will hold.

Every request passes here before any route sees it. A body is taken whole, within a limit of bytes and of time,
only after its sender is known, except for the one small body in which a sender asks for an access token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.routing import BaseRoute, Match, Mount, Route

from lakestore.errors import Invalid, LakestoreError, NotAuthenticated
from lakestore.limits import DEFAULT, Limits
from lakestore_server.access.admission import Admission, facts_of
from lakestore_server.access.callers import Caller, basic
from lakestore_server.access.policy import Row
from lakestore_server.edge import http_errors
from lakestore_server.edge.catalog_request import CALLER
from lakestore_server.edge.http_errors import ClientStalled
from lakestore_server.edge.http_shares import HttpShares
from lakestore_server.edge.page_guard import PageGuard
from lakestore_server.operate.clients import Clients

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
CERTIFICATE = "lakestore.certificate"
"""Key of the scope under which the protocol puts the names of the client's certificate."""
ADVANCE = "lakestore.advance"
"""Key of the scope under which the protocol puts the function to call once a request's sender is known, or all of it
is there; a connection that does not come so far in time is closed."""
OPEN_BODY_BYTES_MAX = 64 << 10
"""Limit of the body of a request whose sender is not known yet."""
_ICEBERG, _CONSOLE = "/iceberg/", "/console/"
_BODILESS = ("GET", "HEAD")
_ONCE = frozenset(
    (b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"idempotency-key", b"origin")
)
"""Headers by which a request is judged: a proxy in front may go by another one of two than the server does."""
_SHOWN_CHARS = 100
"""Characters of an unknown path that log and refusal show."""


class ClientGone(Exception):
    """The client went away within its request."""


@dataclass(frozen=True, slots=True)
class MatchedRoute:
    """The route of a request."""

    template: str
    path: dict[str, str]


class Gate:
    """An ASGI application in front of another."""

    def __init__(
        self,
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
            # Only now: a body counts against `http_bodies_bytes` for as long as it is in memory.
            self._shares.let_go(owner, len(body))

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[bytes, Caller | None]:
        """(body, caller) of a request that may go on."""
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
        # A right that does not depend on the body is asked for before a byte of the body is read.
        if row is None or not row.body:
            self._admission.check(row, caller, facts_of(matched.path, None), what)
        if method in _BODILESS:  # whoever sends one with these waits for nobody
            _advance(scope)
            return b"", caller
        body = await self._body(receive, caller)
        _advance(scope)
        if row is not None and row.body:
            try:
                self._admission.check(row, caller, facts_of(matched.path, _parsed(body)), what)
            except LakestoreError:
                self._shares.let_go(_owner(caller), len(body))
                raise
        return body, caller

    def _check_page(self, scope: Scope, row: Row | None, token: str) -> None:
        """Refuse a foreign page's request that a browser lets pass without a token."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        if row is not None and row.right == "open":
            return
        if self._admission.access.is_open:
            self._guard.check(headers, (scope.get("server") or ("",))[0])
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
    """The route that the application will choose, found in the same way."""
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
    """The principal that a request is counted against; empty where there are none."""
    return caller.counted_as if caller else ""


def _advance(scope: Scope) -> None:
    """Tell the connection that its request got on; there is none in a test of the gate alone."""
    told = scope.get(ADVANCE)
    if told is not None:
        told()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _token(scope: Scope) -> str:
    """The token of a request; empty if there is none.

    A browser sends Basic by itself, also for a page of somebody else's, so Basic is taken only where nothing changes.
    """
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
    """Refuse a head that is too large, which the parser only does while it is incomplete, or that reads in two ways."""
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
    """A compressed body could unfold to any size, and no client of ours sends one."""
    encoding = _header(scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise Invalid("a request body with a Content-Encoding is not taken: send it as it is")


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the request body is no JSON: {error}") from error


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages for the application: the body that was read already, then those that still come."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


async def _refuse(scope: Scope, send: Send, error: LakestoreError) -> None:
    status, body = http_errors.answer(error)
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        # A browser asks for a name and a password itself where Basic is offered; the console asks by its own form.
        basic_helps = not scope["path"].startswith((_ICEBERG, _CONSOLE))
        headers.append(
            (b"www-authenticate", b'Basic realm="lakestore"' if basic_helps else b'Bearer realm="lakestore"')
        )
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
