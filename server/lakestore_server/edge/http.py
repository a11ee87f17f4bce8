"""The HTTP edge: the Iceberg REST catalog, OAuth, metrics, health and the console, all behind a `Gate`."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from lakestore.errors import Invalid, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.access.admission import Admission
from lakestore_server.edge import catalog_request, http_errors, iceberg_rest, oauth, presented_rest
from lakestore_server.edge.addresses import is_in_use
from lakestore_server.edge.console.routes import Console
from lakestore_server.edge.http_connection import GuardedProtocol
from lakestore_server.edge.http_gate import Gate
from lakestore_server.edge.page_guard import PageGuard
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.operate import metrics
from lakestore_server.operate.metric_sources import Sources

log = logging.getLogger("lakestore.http")
START_SECONDS = 20.0
_TOKENS_PATH = "/v1/oauth/tokens"


def app(sources: Sources, admission: Admission, console: Console, allowed_hosts: Sequence[str] = ()) -> Gate:
    """All routes of the HTTP port, behind their gate."""
    found = routes(sources, admission, console)
    inner = Starlette(routes=found, exception_handlers=_UNKNOWN)
    return Gate(inner, found, admission, sources.engine.limits, PageGuard(allowed_hosts), console.clients)


def routes(sources: Sources, admission: Admission, console: Console) -> list[BaseRoute]:
    """Every route of the HTTP port; `policy.ROUTES` has a row for each."""
    engine = sources.engine

    def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.text(sources), media_type="text/plain; version=0.0.4")

    def show_alive(_: Request) -> Response:
        return PlainTextResponse("going down\n", 503) if engine.is_draining else PlainTextResponse("ok\n")

    async def give_token(request: Request) -> Response:
        body, authorization = await request.body(), request.headers.get("authorization", "")
        status, answer = await run_in_threadpool(oauth.answer, admission.access, body, authorization)
        return JSONResponse(answer, status, headers={"cache-control": "no-store"})

    tokens = Route(_TOKENS_PATH, give_token, methods=["POST"])
    catalog, bytes_max = catalog_request.Sources(sources.catalog, sources.presented), engine.limits.http_body_bytes
    return [
        *console.routes(),
        Route("/healthz", show_alive),
        Route("/metrics", show_metrics),
        Mount(
            "/iceberg",
            routes=[tokens, *iceberg_rest.routes(catalog, bytes_max), *presented_rest.routes(catalog, bytes_max)],
        ),
    ]


async def _no_such_call(request: Request, error: Exception) -> Response:
    """The answer to a path or a method that no route has, in the form that clients of the catalog read."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    status, body = http_errors.no_such_call(status, f"{request.method} {request.url.path}")
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(body, status, headers, media_type="application/json")


_UNKNOWN: Mapping[Any, Any] = {404: _no_such_call, 405: _no_such_call}


class HttpServer:
    """uvicorn in a thread."""

    def __init__(
        self,
        application: Gate,
        host: str,
        port: int,
        keys: TlsKeys | None = None,
        limits: Limits = DEFAULT,
        on_end: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`on_end` is told when the server ends without being stopped."""
        own: Any = application
        protocol: Any = partial(GuardedProtocol, limits=limits)
        config = uvicorn.Config(
            own,
            host=host,
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
        """Begin to serve; the port is known then."""
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
        """Stop and wait."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(10)


def _renewing(keys: TlsKeys) -> Callable[[Any, Any], ssl.SSLContext]:
    """TLS whose files are read again when they have changed, for the connections after that."""

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
