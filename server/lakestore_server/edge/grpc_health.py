"""Health checks by gRPC's own protocol, for whoever asks, beside the limits of calls that do work."""

from __future__ import annotations

import threading

from lakestore.wire.grpc import grpc

# isort: split
# Below gRPC's own import, which sets how gRPC behaves in a fork: the package imports gRPC itself.
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from lakestore_server.edge.rpc_port import Rpc

SERVICE = "grpc.health.v1.Health"
WATCHERS_MAX = 1_000
"""Watchers that are told of changes; for one more the oldest one goes."""
_Status = health_pb2.HealthCheckResponse


class Health:
    """The answers to health checks. Thread-safe; nothing here waits."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._services = services
        self._status = _Status.NOT_SERVING
        self._watchers: dict[Rpc, str] = {}

    def set(self, *, serving: bool) -> None:
        """Tell all that ask, and all watchers."""
        with self._lock:
            self._status = _Status.SERVING if serving else _Status.NOT_SERVING
            watchers = dict(self._watchers)
        for watcher, service in watchers.items():
            watcher.send(self._of(service).SerializeToString(), _nothing)

    def asked(self, rpc: Rpc, data: bytes) -> None:
        """Answer a call, whose only message this is."""
        try:
            service = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            rpc.finish(grpc.StatusCode.INVALID_ARGUMENT, "the message is no HealthCheckRequest")
            return
        if rpc.path == f"/{SERVICE}/Watch":
            self._watch(rpc, service)
        elif rpc.path == f"/{SERVICE}/List":
            statuses = {name: self._of(name) for name in self._services}
            rpc.answer(health_pb2.HealthListResponse(statuses=statuses).SerializeToString())
        elif service in self._services:
            rpc.answer(self._of(service).SerializeToString())
        else:
            rpc.finish(grpc.StatusCode.NOT_FOUND, f"there is no service {service!r} here"[:200])

    def _of(self, service: str) -> health_pb2.HealthCheckResponse:
        return _Status(status=self._status if service in self._services else _Status.SERVICE_UNKNOWN)

    def _watch(self, rpc: Rpc, service: str) -> None:
        with self._lock:
            oldest = next(iter(self._watchers)) if len(self._watchers) >= WATCHERS_MAX else None
            self._watchers[rpc] = service
        if oldest is not None:
            oldest.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch: ask by Check")
        rpc.add_callback(lambda: self._forget(rpc))
        rpc.send(self._of(service).SerializeToString(), _nothing)

    def _forget(self, rpc: Rpc) -> None:
        with self._lock:
            self._watchers.pop(rpc, None)


def _nothing() -> None:
    """A message that was sent asks for no other."""
