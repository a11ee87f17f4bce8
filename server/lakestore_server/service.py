"""A server's verbs by name, gathered from the modules that own them: what gRPC and the in-process transport call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from lakestore.errors import Internal, Invalid
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.changes.stream import Feed
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.producers import Writes
from lakestore_server.duties.expiry import Expiry
from lakestore_server.duties.retention import Retention
from lakestore_server.host.clock import Clock
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.iceberg.tables import Tables
from lakestore_server.iceberg.tierer_epoch import Tierer
from lakestore_server.operate import verify
from lakestore_server.operate.backup import Backups
from lakestore_server.operate.calls import Calls
from lakestore_server.read.leases import Leases
from lakestore_server.read.lookup import Lookups
from lakestore_server.read.plan import Plans
from lakestore_server.read.positions import token_text
from lakestore_server.state.state import TableState


class Looks:
    """What a server says of itself. Thread-safe."""

    def __init__(
        self, engine: Engine, about: dict[str, str], retention: Retention, expiry: Expiry, clock: Clock
    ) -> None:
        self._engine, self._about, self._retention, self._expiry, self._clock = engine, about, retention, expiry, clock
        self._began = clock.monotonic()

    def hello(self, request: pb.HelloRequest) -> pb.HelloAnswer:
        """Who this is; a client that is too old for this server is told so."""
        if request.protocol < rpc.PROTOCOL_MIN:
            raise Invalid(
                f"the client ({request.release}) speaks protocol {request.protocol}, this server ({RELEASE})"
                f" {rpc.PROTOCOL_MIN} to {rpc.PROTOCOL}: install a newer lakestore at the client"
            )
        return pb.HelloAnswer(
            release=RELEASE,
            protocol_min=rpc.PROTOCOL_MIN,
            protocol=rpc.PROTOCOL,
            timeline=self._engine.timeline,
        )

    def status(self, request: pb.StatusRequest) -> pb.StatusAnswer:
        """The server and its tables, as JSON."""
        view = self._engine.view
        names = list(request.tables) or sorted(view.names)
        tables = [self._table(view.named(name)) for name in names]
        about = {
            **self._about,
            "timeline": self._engine.timeline,
            "lsn": view.lsn,
            "index": self._engine.index.state,
            "index_size": self._index_size(),
            "damage": self._engine.scrubber.damage or "none known",
            "token": token_text(self._engine, view.lsn),
            **self._health(),
        }
        return pb.StatusAnswer(status=orjson.dumps({**about, "tables": tables}).decode())

    def _index_size(self) -> dict[str, Any]:
        """As of the last checkpoint or rebuild; the file has free pages, too."""
        index = self._engine.index
        return {
            "keys": index.size.keys,
            "bytes": index.size.bytes,
            "bytes_per_key": round(index.size.key_bytes, 1),
            "grown_keys": index.size.keys - index.size_at_start.keys,
            "grown_bytes": index.size.bytes - index.size_at_start.bytes,
            "file_bytes": self._engine.index_bytes(),
        }

    def _table(self, state: TableState) -> dict[str, Any]:
        decision = self._retention.decision(state.table.uuid)
        held = {"held_by": decision.holders(), "held_bytes": decision.held_bytes} if decision else {}
        ahead = self._engine.lake_ahead.get(state.table.uuid, "")
        figures = self._expiry.figures(state)
        expiring = {"expired": figures.expired, "next_expiry_us": figures.next_us} if figures else {}
        return {**verify.table_status(state), **held, **expiring, "lake_ahead": ahead}

    def _health(self) -> dict[str, Any]:
        now, engine = self._clock.monotonic(), self._engine
        return {
            "release": RELEASE,
            "health": "going down" if engine.is_draining else "serving",
            "uptime_seconds": round(now - self._began, 1),
            "checkpoint_age_seconds": round(now - engine.checkpoints.at, 1),
            "checkpoints_failed": engine.checkpoints.failed,
            "journal_bytes": engine.journal_bytes,
            "disk_free_bytes": engine.disk_free_bytes(),
        }

    def audit(self, request: pb.AuditRequest) -> pb.AuditAnswer:
        """Fold the log and compare it with the index, at one cut; when asked, read every stored byte before."""
        view = self._engine.view
        answer = pb.AuditAnswer(token=token_text(self._engine, view.lsn))
        if request.deep:
            verify.deep(self._engine, view.named(request.table), answer)
        if answer.damage:
            return answer
        answer.buckets.extend(verify.bucket_audits(self._engine, view, request.table))
        return answer


class Service:
    """One server's verbs. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        leases: Leases,
        clock: Clock,
        about: dict[str, str],
        subscriptions: Subscriptions,
        retention: Retention,
        expiry: Expiry,
        calls: Calls,
    ) -> None:
        parts = (
            Tables(engine, catalog),
            Writes(engine),
            Lookups(engine),
            Feed(engine, subscriptions, leases, clock),
            subscriptions,
            Plans(engine, leases),
            Tierer(engine, clock),
            Looks(engine, about, retention, expiry, clock),
            Backups(engine),
        )
        self.calls = calls
        self._verbs = {method.attribute: _verb(parts, method) for method in rpc.methods()}

    def verb(self, name: str) -> Callable[..., Any]:
        """The verb of an RPC, named as `rpc.Method.attribute`."""
        return self._verbs[name]

    def watched(self, method: rpc.Method) -> Callable[..., Any]:
        """The verb of an RPC as a port calls it: counted, and refused while the server drains."""
        return self.calls.watched(method, self._verbs[method.attribute])


def _verb(parts: tuple[object, ...], method: rpc.Method) -> Callable[..., Any]:
    for part in parts:
        verb: Callable[..., Any] | None = getattr(part, method.attribute, None)
        if verb is not None:
            return verb
    raise Internal(f"a defect of the server: no part of it has the verb {method.name}")
