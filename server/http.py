"""The HTTP edge: the Iceberg REST catalog, metrics, and a page that says what runs here."""

from __future__ import annotations

import html
import threading
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from lakestore.errors import Unavailable
from lakestore.server import metrics
from lakestore.server.audit import table_status
from lakestore.server.catalog import rest
from lakestore.server.catalog.catalog import Catalog
from lakestore.server.engine import Engine

START_SECONDS = 20.0


def app(engine: Engine, catalog: Catalog) -> Starlette:
    """All routes of the HTTP port."""

    def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.text(engine), media_type="text/plain; version=0.0.4")

    def show_console(_: Request) -> Response:
        return HTMLResponse(_console(engine))

    routes = [
        Route("/", show_console),
        Route("/metrics", show_metrics),
        Mount("/iceberg", routes=rest.routes(catalog, engine.limits.http_body_bytes)),
    ]
    return Starlette(routes=routes)


def _console(engine: Engine) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(s['name'])}<td>{s['rows']:,}<td>{s['hot']:,}<td>{s['buckets']}<td>{s['freshness']}"
        for s in map(table_status, engine.view.tables.values())
    )
    head = "<tr><th>table<th>live rows<th>offsets not yet tiered<th>buckets<th>freshness"
    return f"<!doctype html><title>Lakestore</title><h1>Lakestore</h1><table border=1>{head}{rows}</table>"


class HttpServer:
    """uvicorn in a thread."""

    def __init__(self, application: Starlette, host: str, port: int) -> None:
        config = uvicorn.Config(application, host=host, port=port, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self.port = 0

    def start(self) -> None:
        """Begin to serve; the port is known then."""
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable("the HTTP port cannot be opened: is it in use?")
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Stop and wait."""
        self._server.should_exit = True
        self._thread.join(10)
