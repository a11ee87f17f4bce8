"""The console of one server: its parts put together, and its routes."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from lakestore_server.access.admission import Admission
from lakestore_server.edge.console.answers import endpoint
from lakestore_server.edge.console.api import Api, Holds
from lakestore_server.edge.console.files import Files
from lakestore_server.edge.console.lags import Lags
from lakestore_server.edge.console.queries import Queries
from lakestore_server.edge.console.rpcs import Rpcs
from lakestore_server.edge.console.tails import Tails
from lakestore_server.host.clock import Clock
from lakestore_server.operate.board import Board
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.metric_sources import Sources
from lakestore_server.operate.sampler import Sampler
from lakestore_server.service import Service

API = "/console/api"


class Console:
    """Pages and their JSON. `start` begins the curves, `close` ends what pages wait for."""

    def __init__(self, service: Service, sources: Sources, admission: Admission, clock: Clock) -> None:
        engine = sources.engine
        self._rpcs, self._files = Rpcs(service, admission), Files()
        self.clients = Clients(clock)
        """The connections of both ports, which tell of their calls."""
        self.sampler = Sampler(engine, service.status, service.calls, clock)
        """The duty that fills the curves."""
        self._tails = Tails(self._rpcs, engine.limits, self.clients)
        self._queries = Queries(self._rpcs, engine.limits, sources.query_deaths)
        board = Board(service.status, clock)
        self._api = Api(self._rpcs, admission, board, self.sampler.history, self.clients, engine.now_us)
        self._lags = Lags(self._rpcs, self.sampler.history)
        self._holds = Holds(self._rpcs, sources.leases, lambda: engine.view)

    def routes(self) -> list[BaseRoute]:
        """Every route; `policy.ROUTES` has a row for each."""
        api = self._api
        reads = {
            "/me": api.me,
            "/status": api.status,
            "/history": api.history,
            "/clients": api.clients,
            "/streams": api.streams,
            "/streams/history": self._lags.lags,
            "/holds": self._holds.holds,
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
        ]

    def start(self) -> None:
        """Begin to draw curves."""
        self.sampler.start()

    def close(self) -> None:
        """End tails, queries and curves."""
        self._tails.close()
        self._queries.close()
        self.sampler.close()
