"""The HTTP edge: the Iceberg REST catalog, OAuth, metrics, health and the console, all behind a `Gate`."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakestore.errors import Invalid, LakestoreError, NotAuthenticated, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Access, Caller, basic
from lakestore_server.catalog.engine_keys import EngineKeys
from lakestore_server.edge import catalog_request, iceberg_rest, presented_rest
from lakestore_server.edge.addresses import is_in_use
from lakestore_server.edge.console.routes import Console
from lakestore_server.edge.http_gate import ADVANCE, CERTIFICATE, Gate, PageGuard
from lakestore_server.edge.leader_link import LeaderLink
from lakestore_server.edge.tls import TlsKeys, names_of
from lakestore_server.operate import metrics
from lakestore_server.operate.first_copy import CopyProgress
from lakestore_server.operate.metric_sources import Sources
from lakestore_server.operate.status import JournalStatus

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 (the name of a kind of token)
_FIELDS_MAX = 32


def token_answer(access: Access, body: bytes, authorization: str) -> tuple[int, dict[str, Any]]:
    """(HTTP status, answer) to a request for a token."""
    try:
        fields = dict(parse_qsl(body.decode(), max_num_fields=_FIELDS_MAX))
    except ValueError:
        return _refused(400, "invalid_request", "the body is no form")
    grant = fields.get("grant_type", "")
    try:
        if grant == "client_credentials":
            caller = _client(access, *_credentials(fields, authorization))
        elif grant == EXCHANGE:
            caller = access.caller(fields.get("subject_token", ""))
        else:
            return _refused(400, "unsupported_grant_type", "grant_type is client_credentials or token exchange")
        token, seconds = access.exchanged(caller)
    except LakestoreError as error:
        return _refused(401, "invalid_client", error.message)
    return 200, {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": seconds,
        "issued_token_type": ACCESS_TOKEN,
        "scope": "catalog",
    }


def _credentials(fields: dict[str, str], authorization: str) -> tuple[str, str]:
    scheme, _, said = authorization.partition(" ")
    if scheme.lower() == "basic":
        return basic(said)
    return fields.get("client_id", ""), fields.get("client_secret", "")


def _client(access: Access, name: str, secret: str) -> Caller:
    if not access.is_open and not secret:
        raise NotAuthenticated("client_secret is missing: it is the token of a principal")
    caller = access.caller(secret)
    if name and not access.is_open and name != caller.principal.name:
        raise NotAuthenticated("client_id and client_secret do not belong together")
    return caller


def _refused(status: int, error: str, why: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": error, "error_description": why}


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with limits of time and number."""

    def __init__(self, *, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self.is_advanced = False
        """Whether the sender of the present request is known, or the request is complete."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        facts = {CERTIFICATE: names_of(transport.get_extra_info("peercert")), ADVANCE: self._advance}
        self.app = _told(self.app, facts)
        self._expect_head()
        if len(self.connections) > self._limits.http_connections:
            self._make_room()

    @property
    def is_busy(self) -> bool:
        cycle: Any = self.cycle  # None until the first request; its type does not say so
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        self.is_advanced = False
        super().on_response_complete()
        if not self.is_busy and not self.transport.is_closing():
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._timer)
        self._stop(self._writing)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._writing)
        self._writing = self.loop.call_later(self._limits.http_stall_ms / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._writing)
        super().resume_writing()

    def _expect_head(self) -> None:
        self._stop(self._timer)
        self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self._limits.http_header_ms / 1000, self._give_up)

    def _advance(self) -> None:
        self.is_advanced = True
        self._stop(self._timer)

    def _give_up(self) -> None:
        if not self.is_advanced:
            self.transport.abort()

    def _make_room(self) -> None:
        behind = [each for each in self.connections if isinstance(each, GuardedProtocol) and not each.is_advanced]
        oldest = min(behind, key=lambda each: each.waiting_since, default=self)
        oldest.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def _told(application: Any, facts: Mapping[str, Any]) -> Callable[..., Any]:
    """The application, which gets facts of the connection in its scope."""

    async def told(scope: Any, receive: Any, send: Any) -> Any:
        scope.update(facts)
        return await application(scope, receive, send)

    return told


log = logging.getLogger("lakestore.http")
START_SECONDS = 20.0
COPY_RETRY_SECONDS = 5
_TOKENS_PATH = "/v1/oauth/tokens"


def app(
    sources: Sources,
    admission: Admission,
    console: Console,
    allowed_hosts: Sequence[str] = (),
    keys: TlsKeys | None = None,
    *,
    engine_keys: EngineKeys | None = None,
) -> Gate:
    """All routes of the HTTP port, behind their gate. The leader's port has certificates if `keys` are given."""
    found = routes(sources, admission, console, keys, engine_keys)
    inner = Starlette(routes=found, exception_handlers=_UNKNOWN)
    return Gate(
        application=inner,
        routes=found,
        admission=admission,
        limits=sources.engine.limits,
        guard=PageGuard(allowed_hosts),
        clients=console.clients,
    )


def routes(
    sources: Sources,
    admission: Admission,
    console: Console,
    keys: TlsKeys | None = None,
    engine_keys: EngineKeys | None = None,
) -> list[BaseRoute]:
    """Every route of the HTTP port; `policy.ROUTES` has a row for each."""
    engine = sources.engine

    def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.text(sources), media_type="text/plain; version=0.0.4")

    def show_alive(_: Request) -> Response:
        return PlainTextResponse("going down\n", 503) if engine.is_draining else PlainTextResponse("ok\n")

    def show_ready(request: Request) -> Response:
        """For load balancers: with `?role=leader` or `follower` only such a server is ready."""
        found, wanted = JournalStatus.of(engine.loop, time.monotonic()), request.query_params.get("role")
        is_ready = not engine.is_draining and wanted in (None, found.role)
        about = {"ready": is_ready, "role": found.role, "epoch": found.epoch, "lag_ms": found.lag_ms}
        return JSONResponse(about, 200 if is_ready else 503)

    async def give_token(request: Request) -> Response:
        body, authorization = await request.body(), request.headers.get("authorization", "")
        status, answer = await run_in_threadpool(token_answer, admission.access, body, authorization)
        return JSONResponse(answer, status, headers={"cache-control": "no-store"})

    tokens = Route(_TOKENS_PATH, give_token, methods=["POST"])
    leader = LeaderLink(engine.loop, keys, is_open=admission.access.is_open) if engine.role else None
    catalog = catalog_request.Sources(sources.catalog, sources.presented, leader, engine_keys)
    bytes_max = engine.limits.http_body_bytes
    return [
        *console.routes(),
        Route("/healthz", show_alive),
        Route("/ready", show_ready),
        Route("/metrics", show_metrics),
        Mount(
            "/iceberg",
            routes=[tokens, *iceberg_rest.routes(catalog, bytes_max), *presented_rest.routes(catalog, bytes_max)],
        ),
    ]


async def _no_such_call(request: Request, error: Exception) -> Response:
    """The answer for an unknown path or method, in the form that catalog clients read."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    status, body = catalog_request.no_such_call(status, f"{request.method} {request.url.path}")
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(body, status, headers, media_type="application/json")


_UNKNOWN: Mapping[Any, Any] = {404: _no_such_call, 405: _no_such_call}


def copy_app(progress: CopyProgress) -> Starlette:
    """The routes of a server that copies the checkpoint of another one: it lives, and is not ready."""

    def show_ready(_: Request) -> Response:
        about = {"ready": False, "role": "copying", "peer": progress.peer, "percent": progress.percent}
        rate = {"mb_per_second": progress.mb_per_second, "problem": progress.problem}
        return JSONResponse({**about, **rate}, 503, headers={"retry-after": str(COPY_RETRY_SECONDS)})

    def show_alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/healthz", show_alive), Route("/ready", show_ready)])


class HttpServer:
    """uvicorn in a thread."""

    def __init__(
        self,
        *,
        application: Gate | Starlette,
        host: str,
        port: int,
        keys: TlsKeys | None = None,
        limits: Limits = DEFAULT,
        on_end: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`on_end` is called if the server ends without `stop`."""
        own: Any = application
        protocol: Any = partial(GuardedProtocol, limits=limits)
        config = uvicorn.Config(
            own,
            host=host.strip("[]"),
            port=port,
            log_level="warning",
            log_config=None,
            lifespan="off",
            ws="none",
            http=protocol,
            h11_max_incomplete_event_size=limits.header_bytes,
            server_header=False,
            proxy_headers=False,
            ssl_context_factory=_renewing(keys) if keys else None,
        )
        self._host, self._wanted = host, config.port
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._on_end = on_end
        self.port = 0

    def start(self) -> None:
        """Begin to serve; the port is known afterwards."""
        refused = Unavailable(
            f"the HTTP port {self._wanted} cannot be opened: is it in use? --http-port 0 picks a free one"
        )
        if is_in_use(self._host, self._wanted):  # uvicorn would print a line of its own
            raise refused
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise refused
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            if self.port and not self._server.should_exit:
                log.critical("the HTTP server has ended by itself")
                self._on_end(Unavailable("the HTTP server has ended by itself"))

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(10)


def _renewing(keys: TlsKeys) -> Callable[[Any, Any], ssl.SSLContext]:
    """A TLS context that reads its files again when they have changed, for later connections."""

    def made(_: Any, __: Any) -> ssl.SSLContext:
        context = keys.context()
        stamp = [keys.stamp()]

        def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            if keys.stamp() == stamp[0]:
                return
            stamp[0] = keys.stamp()
            try:
                connection.context = keys.context()
                keys.load(context)
            except Invalid as error:
                log.error("the certificate stays as it was: %s", error.message)

        context.sni_callback = renew
        return context

    return made
