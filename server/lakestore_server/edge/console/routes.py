"""The routes of the console, and the object that holds its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lakestore.model.names import HIDDEN
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Caller
from lakestore_server.access.ownership import own_name
from lakestore_server.edge import catalog_request
from lakestore_server.edge.console.answers import endpoint, json
from lakestore_server.edge.console.api import Api, Holds
from lakestore_server.edge.console.queries import Queries
from lakestore_server.edge.console.tails import Tails
from lakestore_server.host.clock import Clock
from lakestore_server.operate.board import Board
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.history import Curves, History, Kind, Series
from lakestore_server.operate.metric_sources import Sources
from lakestore_server.operate.sampler import Sampler
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.queries.service import QueryService

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""The page loads and runs only its own files, never turns texts into markup, and cannot be framed by another page."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the pages."""

    data: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, StaticFile]:
    """The files of the pages, by name."""
    found = {}
    for entry in resources.files("lakestore_server.edge.console.static").iterdir():
        kind = entry.name.rpartition(".")[2]
        if kind in _TYPES:
            data = entry.read_bytes()
            found[entry.name] = StaticFile(data, _TYPES[kind], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


class StaticFiles:
    """The endpoints that serve the files."""

    def __init__(self) -> None:
        self._files = read_files()

    def index(self, request: Request) -> Response:
        """The start page."""
        return self._sent(request, self._files[INDEX])

    def file(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in self._files:
            status, body = catalog_request.no_such_call(404, f"{request.method} {request.url.path}")
            return Response(body, status, media_type="application/json")
        return self._sent(request, self._files[name])

    @staticmethod
    def _sent(request: Request, file: StaticFile) -> Response:
        headers = HEADERS | {"etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers, media_type=file.media_type)


SHOWN_MAX = 12
"""The most curves of one kind in a response: a page shows no more."""


class Lags:
    """The endpoint for the lag of streams. Thread-safe."""

    def __init__(self, rpcs: Rpcs, history: History) -> None:
        self._rpcs, self._history = rpcs, history

    def lags(self, request: Request, caller: Caller) -> Response:
        """Lag curves, over hours or days, of streams whose names contain all words of `filter`."""
        asked = request.query_params
        by_minutes, words = asked.get("by") == "minutes", asked.get("filter", "").lower().split()
        answer = self._rpcs.call(caller, "ListSubscriptions", pb.ListSubscriptionsRequest())
        readable = {each.name for each in answer.subscriptions if HIDDEN not in each.tables}
        own = {kind: self._own(caller, kind) for kind in (Kind.SUBSCRIPTION, Kind.BRIDGE)}
        own[Kind.SUBSCRIPTION] = {name: at for name, at in own[Kind.SUBSCRIPTION].items() if name in readable}
        found: dict[str, Any] = {}
        for kind, named in own.items():
            matching = {name: at for name, at in named.items() if all(word in name.lower() for word in words)}
            names = sorted(sorted(matching, key=lambda name: (-matching[name][1], name))[:SHOWN_MAX])
            series = [Series(kind, matching[name][0]) for name in names]
            curves = self._history.streams(series, 0, by_minutes=by_minutes)
            found[kind.value] = {"count": len(matching), **_curves_json(zip(names, curves, strict=True))}
        return json(found)

    def _own(self, caller: Caller, kind: Kind) -> Mapping[str, tuple[str, float]]:
        """The viewer's streams: the name that the viewer knows to the stored name and the newest lag."""
        shown = ((own_name(caller, kept_as), kept_as, lag) for kept_as, lag in self._history.newest(kind).items())
        return {name: (kept_as, lag) for name, kept_as, lag in shown if name is not None}


def _curves_json(curves: Iterable[tuple[str, Curves]]) -> dict[str, Any]:
    """The times of the longest curve, and the values of each curve. All curves end together; some begin later."""
    times: list[int] = []
    drawn = []
    for name, each in curves:
        times = max(times, each.times_us, key=len)
        drawn.append({"name": name, "values": each.values[0]})
    return {"times_us": times, "curves": drawn}


API = "/console/api"


class Console:
    """The console of one server. `start` begins to collect curves. `close` ends everything that a page may wait for."""

    def __init__(self, queries: QueryService, sources: Sources, admission: Admission, clock: Clock) -> None:
        engine = sources.engine
        self._rpcs, self._files = queries.rpcs, StaticFiles()
        self.clients = Clients(clock)
        """The connections of both ports; the ports report calls here."""
        self.sampler = Sampler(engine, sources.status, sources.calls, clock)
        """The duty that collects the curves."""
        self._tails = Tails(self._rpcs, engine.limits, self.clients)
        self._queries = Queries(queries, engine.limits)
        board = Board(sources.status, clock)
        self._api = Api(
            rpcs=self._rpcs,
            admission=admission,
            board=board,
            history=self.sampler.history,
            clients=self.clients,
            now_us=engine.now_us,
        )
        self._lags = Lags(self._rpcs, self.sampler.history)
        self._holds = Holds(self._rpcs, sources.leases, lambda: engine.view)

    def routes(self) -> list[BaseRoute]:
        """Every route. `policy.ROUTES` has a row for each."""
        api = self._api
        reads = {
            "/me": api.me,
            "/status": api.status,
            "/history": api.history,
            "/clients": api.clients,
            "/streams": api.streams,
            "/streams/history": self._lags.lags,
            "/holds": self._holds.holds,
            "/queries": self._queries.running,
            "/tables/{table}": api.table,
            "/tables/{table}/history": api.table_history,
        }
        return [
            Route("/", self._files.index),
            Route("/console/{file}", self._files.file),
            *(Route(API + path, endpoint(verb)) for path, verb in reads.items()),
            Route(f"{API}/tables/{{table}}/tail", self._tails.follow),
            Route(f"{API}/session", api.session, methods=["POST"]),
            Route(f"{API}/renew", endpoint(api.renew), methods=["POST"]),
            Route(f"{API}/query", self._queries.answer, methods=["POST"]),
            Route(f"{API}/queries/{{number}}/cancel", endpoint(self._queries.cancel), methods=["POST"]),
        ]

    def start(self) -> None:
        self.sampler.start()

    def close(self) -> None:
        self._tails.close()
        self.sampler.close()
