"""The gRPC edge: the service's verbs, health and reflection. Errors leave as status and metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lakestore import rpc
from lakestore.errors import Internal, LakestoreError
from lakestore.limits import DEFAULT, Limits
from lakestore.server.permits import Permits
from lakestore.server.service import Service

log = logging.getLogger("lakestore.grpc")
_CODES = {
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "PlanExpired": grpc.StatusCode.NOT_FOUND,
    "Conflict": grpc.StatusCode.ALREADY_EXISTS,
    "Fenced": grpc.StatusCode.FAILED_PRECONDITION,
    "Unavailable": grpc.StatusCode.UNAVAILABLE,
    "Exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Corrupt": grpc.StatusCode.DATA_LOSS,
    "PositionExpired": grpc.StatusCode.OUT_OF_RANGE,
    "Internal": grpc.StatusCode.INTERNAL,
}


class GrpcServer:
    """Serves a `Service` on one address."""

    def __init__(self, service: Service, address: str, limits: Limits = DEFAULT) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="grpc")
        options = [*rpc.options(limits.message_bytes), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=limits.threads)
        streams = Permits(limits.streams, 0.0, f"{limits.streams} streams are open, the limit: try again later")
        handlers = {
            method.name: _handler(service, method, streams) for method in rpc.methods() if service.has(method.attribute)
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rpc.SERVICE, handlers),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((rpc.SERVICE, reflection.SERVICE_NAME), self._server)
        self.port = self._server.add_insecure_port(address)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        for name in ("", rpc.SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_seconds: float) -> None:
        """Stop taking calls; running ones have the grace to end."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _handler(service: Service, method: rpc.Method, streams: Permits) -> Any:
    verb = service.verb(method.attribute)
    coders = {"request_deserializer": method.request.FromString, "response_serializer": method.answer.SerializeToString}
    if method.streams_in:
        return grpc.stream_stream_rpc_method_handler(_streaming(verb, streams), **coders)
    if method.name == "Changes":
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: _guarded(lambda: verb(request, context.is_active), context, streams), **coders
        )
    if method.streams_out:
        return grpc.unary_stream_rpc_method_handler(_streaming(verb, streams), **coders)
    return grpc.unary_unary_rpc_method_handler(_unary(verb), **coders)


def _unary(verb: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return verb(request)
        except LakestoreError as error:
            _abort(context, error)
        except Exception as error:  # the edge: a defect becomes a typed error, never a traceback at the client
            log.exception("a call failed")
            _abort(context, Internal(f"a defect of the server: {error}", applied="unknown"))

    return call


def _streaming(
    verb: Callable[[Any], Iterator[Any]], streams: Permits
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    return lambda request, context: _guarded(lambda: verb(request), context, streams)


def _guarded(begin: Callable[[], Iterator[Any]], context: grpc.ServicerContext, streams: Permits) -> Iterator[Any]:
    try:
        with streams.taken(1):
            yield from begin()
    except LakestoreError as error:
        _abort(context, error)
    except Exception as error:  # the edge, as for single calls
        log.exception("a stream failed")
        _abort(context, Internal(f"a defect of the server: {error}", applied="unknown"))


def _abort(context: grpc.ServicerContext, error: LakestoreError) -> None:
    context.set_trailing_metadata(rpc.pack_error(error))
    context.abort(_CODES.get(error.kind, grpc.StatusCode.INTERNAL), error.message)
