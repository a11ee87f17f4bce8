"""A server: engine, catalog and service put together, with or without its two ports."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from lakestore.errors import Unavailable
from lakestore.server import exposure, recovery
from lakestore.server.access import Access
from lakestore.server.admission import Admission, Tables
from lakestore.server.catalog.catalog import Catalog
from lakestore.server.catalog.store import Store, storage_for
from lakestore.server.clock import Clock, RealClock
from lakestore.server.disk import Disk, RealDisk
from lakestore.server.engine import Engine
from lakestore.server.grpc_server import GrpcServer
from lakestore.server.http import HttpServer, app
from lakestore.server.leases import Leases
from lakestore.server.ledger import JournalLedger
from lakestore.server.retention import Retention
from lakestore.server.service import Service
from lakestore.server.settings import Settings
from lakestore.server.subscriptions import Subscriptions

log = logging.getLogger("lakestore.server")
STOP_SECONDS = 2.0


class Server:
    """Everything behind the ports. `close` is idempotent."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.settings = settings
        exposure.check(settings)
        self._keys = exposure.keys(settings.tls)
        self._lock = recovery.lock_folder(settings.data)
        clock = clock or RealClock()
        scheme = "https" if self._keys else "http"
        self.about = {"warehouse": settings.warehouse_uri, "http": "", "grpc": "", "scheme": scheme}
        try:
            key = exposure.token_key(settings.data) if settings.auth else b""
            file = Path(settings.auth) if settings.auth else None
            self.access = Access(file, clock, key, settings.limits.access_token_seconds)
            self.engine = Engine(
                settings.data, disk or RealDisk(), clock, on_fatal=on_fatal or _no_op, limits=settings.limits
            )
        except BaseException:
            self._lock.close()
            raise
        held = {uuid: frozenset(state.tiers) for uuid, state in self.engine.view.tables.items()}
        leases = Leases(clock, held, settings.lease_grace_seconds, settings.limits)
        store = Store(storage_for(settings.warehouse_uri))
        self.catalog = Catalog(JournalLedger(self.engine, leases), store, settings.warehouse_uri)
        subscriptions = Subscriptions(self.engine, settings.subscription_idle_seconds)
        self.retention = Retention(self.engine, leases, subscriptions, clock, settings.retention_check_seconds)
        self.service = Service(self.engine, self.catalog, leases, clock, self.about, subscriptions, self.retention)
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None

    def start(self) -> None:
        """Open both ports."""
        host, limits = self.settings.host, self.settings.limits
        admission = Admission(self.access, Tables(self.engine), metrics_open=self.settings.metrics_open)
        gate = app(self.engine, self.catalog, admission, self.retention)
        self._http = HttpServer(gate, host, self.settings.http_port, self._keys, limits)
        self._http.start()
        try:
            self._grpc = GrpcServer(self.service, f"{host}:{self.settings.port}", admission, self._keys, limits)
        except RuntimeError as error:
            raise Unavailable(f"the gRPC port {self.settings.port} cannot be opened: is it in use?") from error
        self.about.update(http=f"{host}:{self._http.port}", grpc=f"{host}:{self._grpc.port}")
        self._grpc.start()

    def close(self) -> None:
        """Close ports, write a last checkpoint, release the folder."""
        if self._grpc:
            self._grpc.stop(STOP_SECONDS)
        if self._http:
            self._http.stop()
        self.retention.close()
        self.engine.close()
        self._lock.close()


def _no_op(_: BaseException) -> None:
    """In process: the engine answers `Unavailable` from now on."""


def _end_process(_: BaseException) -> None:
    """A server that cannot write its journal must not go on."""
    logging.shutdown()
    os._exit(70)


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal; `announce` is told the ports."""
    server = Server(settings, on_fatal=_end_process)
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: server.access.refresh())
    try:
        server.start()
        about = server.about
        announce(
            f"lakestore serves gRPC on {about['grpc']}, catalog and metrics on {about['scheme']}://{about['http']}"
        )
        stop.wait()
    finally:
        server.close()
