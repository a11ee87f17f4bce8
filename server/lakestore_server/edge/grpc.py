"""The gRPC edge: the service's verbs, health and reflection behind `Admission`. Errors leave as status and metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lakestore.wire.grpc import grpc

# isort: split
# Below gRPC's own import, which sets how gRPC behaves in a fork: both packages import gRPC themselves.
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lakestore.errors import Internal, Invalid, LakestoreError, NotAuthenticated
from lakestore.limits import DEFAULT, Limits
from lakestore.wire import errors, rpc
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.host.permits import Permits
from lakestore_server.service import Service

log = logging.getLogger("lakestore.grpc")
_CODES = {
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "PlanExpired": grpc.StatusCode.NOT_FOUND,
    "Conflict": grpc.StatusCode.ALREADY_EXISTS,
    "Fenced": grpc.StatusCode.FAILED_PRECONDITION,
    "Denied": grpc.StatusCode.PERMISSION_DENIED,
    "NotAuthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "Unavailable": grpc.StatusCode.UNAVAILABLE,
    "Exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Corrupt": grpc.StatusCode.DATA_LOSS,
    "PositionExpired": grpc.StatusCode.OUT_OF_RANGE,
    "Internal": grpc.StatusCode.INTERNAL,
}


class GrpcServer:
    """The gRPC port of a `Service` on one address, by TLS if there are keys."""

    def __init__(
        self,
        service: Service,
        address: str,
        admission: Admission,
        keys: TlsKeys | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="grpc")
        self._server = grpc.server(
            self._pool,
            interceptors=[_Gate(admission)],
            options=_options(limits),
            maximum_concurrent_rpcs=limits.threads,
        )
        streams = Permits(limits.streams, 0.0, f"{limits.streams} streams are open, the limit: try again later")
        handlers = {method.name: _handler(service, method, streams) for method in rpc.methods()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rpc.SERVICE, handlers),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((rpc.SERVICE, reflection.SERVICE_NAME), self._server)
        if keys is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, _credentials(keys))

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        for name in ("", rpc.SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def turn_away(self) -> None:
        """Tell health checks that this server goes; calls are still answered."""
        self._health.enter_graceful_shutdown()

    def stop(self, grace_seconds: float) -> None:
        """Stop taking calls; running ones have the grace to end."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        *rpc.options(limits.message_bytes),
        *rpc.SERVER_KEEPALIVE,
        ("grpc.so_reuseport", 0),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.connection_streams),
    ]


def _credentials(keys: TlsKeys) -> grpc.ServerCredentials:
    """TLS of the port: with a client CA every client must show a certificate; handshakes use the files as they are."""
    state = {"stamp": keys.stamp()}

    def configured() -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = keys.read()
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=client_ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        stamp = keys.stamp()
        if stamp == state["stamp"]:
            return None
        state["stamp"] = stamp
        try:
            return configured()
        except Invalid as error:
            log.error("the certificate stays as it was: %s", error.message)
            return None

    fetch: Any = renewed  # None means no change, which the stubs do not say
    return grpc.dynamic_ssl_server_credentials(configured(), fetch, require_client_authentication=bool(keys.client_ca))


class _Gate(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """The gate of every service of this port: no call passes but by `Admission`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._admitted: dict[str, tuple[Any, Any]] = {}
        """Path to a handler and the admitted handler that was made of it."""

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler, path = continuation(handler_call_details), handler_call_details.method
        if handler is None or self._admission.is_open(path):
            return handler
        # gRPC asks at every call; a handler is wrapped once. An unknown path is no key here: its handler is None.
        known = self._admitted.get(path)
        if known is not None and known[0] is handler:
            return known[1]

        def begin(context: grpc.ServicerContext) -> RpcCall:
            return self._admission.rpc(path, _token(context), _certificate_names(context))

        self._admitted[path] = handler, _admitted(handler, begin)
        return self._admitted[path][1]


def _admitted(handler: Any, begin: Callable[[grpc.ServicerContext], RpcCall]) -> Any:
    """The handler of the same shape whose requests and answers go through a `RpcCall`."""
    coders = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }

    def incoming(call: RpcCall, asked: Any) -> Any:
        return call.requests(asked) if handler.request_streaming else call.request(asked)

    def unary(asked: Any, context: grpc.ServicerContext) -> Any:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        try:
            call = begin(context)
            request = incoming(call, asked)
        except LakestoreError as error:
            _abort(context, error)
        # Outside of the `try`: a verb's own errors have ended the call by `context.abort` already.
        return call.answer(behaviour(request, context))

    def stream(asked: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        try:
            call = begin(context)
            yield from call.answers(behaviour(incoming(call, asked), context))
        except LakestoreError as error:
            _abort(context, error)

    makers = {
        (False, False): (grpc.unary_unary_rpc_method_handler, unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, stream),
    }
    make, behave = makers[handler.request_streaming, handler.response_streaming]
    return make(behave, **coders)


def _token(context: grpc.ServicerContext) -> str:
    """The bearer token of a call; empty if there is none."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            scheme, _, token = (value.decode("latin-1") if isinstance(value, bytes) else value).partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise NotAuthenticated("the authorization metadata is not `Bearer <token>`")
            return token.strip()
    return ""


def _certificate_names(context: grpc.ServicerContext) -> Sequence[str]:
    """The names in the client's certificate, which TLS has checked."""
    said: Any = context.auth_context()
    fields = ("x509_common_name", "x509_subject_alternative_name")
    return [value.decode("utf-8", "replace") for field in fields for value in said.get(field, ())]


def _handler(service: Service, method: rpc.Method, streams: Permits) -> Any:
    verb = service.watched(method)
    coders = {"request_deserializer": method.request.FromString, "response_serializer": method.answer.SerializeToString}
    if method.streams_in:
        return grpc.stream_stream_rpc_method_handler(_streaming(verb, streams), **coders)
    if method.name == "Changes":
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: _guarded(lambda: verb(request, context), context, streams),
            request_deserializer=method.request.FromString,
            response_serializer=lambda prepared: prepared.data,
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
    context.set_trailing_metadata(errors.pack_error(error))
    context.abort(_CODES.get(error.kind, grpc.StatusCode.INTERNAL), error.message)
