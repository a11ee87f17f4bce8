"""The Flight SQL port: calls of drivers, checked by their metadata, answered by `Verbs`.

As on the gRPC port, the metadata alone decides about a call before a byte of its message is read, a first message must
come in time, and the right of a caller is checked before each message of an answer and once a second between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from typing import Any

from lakestore.errors import Denied, Invalid, LakestoreError, NotAuthenticated, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore.v1 import flight_pb2 as pb
from lakestore.wire import errors
from lakestore.wire.errors import BUSY_SECONDS
from lakestore.wire.rpc import grpc, parsed
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.access.callers import basic
from lakestore_server.access.policy import FLIGHT
from lakestore_server.edge.arrivals import Arrivals
from lakestore_server.edge.first_messages import FirstMessages
from lakestore_server.edge.flight.verbs import COOKIE, Peer, Verbs
from lakestore_server.edge.rpc_callers import authorization, certificate_names, credentials_of
from lakestore_server.edge.rpc_port import STATUS_CODES, Rpc, RpcPort, port_options
from lakestore_server.edge.rpc_streams import AnswerStream
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.host.clock import Clock
from lakestore_server.host.quota import NoPermit, Quota, share_of
from lakestore_server.host.rate_limited_log import RateLimitedLog
from lakestore_server.host.workers import Workers
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.metric_sources import FlightFigures
from lakestore_server.queries.question import Cancelled

log = logging.getLogger("lakestore.flight")
THREADS = 64
"""Calls that are answered at once; one more is `Exhausted`. A query holds one while it computes a batch."""
MESSAGES_AHEAD = 3
"""Messages of an answer that its client has not taken when the next one is made, so that the query goes on."""
PARAMETER_BYTES_MAX = 4 << 20
"""Bytes of the rows that one `DoPut` sends: the parameters of a query."""
UPLOAD_MESSAGES_MAX = 100
"""Messages of one `DoPut`: a schema, dictionaries and a batch. Messages without bytes never reach the bound above."""
DEFECT_LOG_SECONDS = 60.0


class TooLate(Unavailable):
    """The message of a call has not come in time."""


class FlightPort:
    """The port on one address, with TLS if there are keys."""

    def __init__(
        self,
        *,
        verbs: Verbs,
        address: str,
        admission: Admission,
        clock: Clock,
        calls: Calls,
        clients: Clients,
        figures: FlightFigures,
        keys: TlsKeys | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._verbs, self._admission, self._calls, self._clients = verbs, admission, calls, clients
        self._figures = figures
        self._asks_certificates = keys is not None and keys.client_ca is not None
        self._workers = Workers(min(limits.threads, THREADS), "flight")
        refusal = f"{limits.streams} streams are open, the limit: try again later"
        self._permits = Quota(limits.streams, 0.0, refusal, share_of(limits.streams, limits))
        figures.streams, figures.handles = lambda: self._permits.held, verbs.handle_counts
        self._defects = RateLimitedLog(clock, DEFECT_LOG_SECONDS)
        self._streams: set[AnswerStream] = set()
        self._first_messages = FirstMessages(limits.waiting_calls, limits.first_message_ms / 1_000, self._too_late)
        self._arrivals = Arrivals(limits.receiving_bytes, limits.message_bytes, self._too_late)
        self._handlers: dict[str, Callable[[Rpc, RpcCall], None]] = {
            f"{FLIGHT}Handshake": self._greet,
            f"{FLIGHT}GetFlightInfo": partial(self._message, self._info),
            f"{FLIGHT}GetSchema": partial(self._message, self._schema),
            f"{FLIGHT}DoGet": partial(self._message, self._rows),
            f"{FLIGHT}DoAction": partial(self._message, self._act),
            f"{FLIGHT}ListActions": partial(self._message, self._list_actions),
            f"{FLIGHT}DoPut": self._put,
        }
        self._port = RpcPort(port_options(limits), self._arrivals, self._opened, self._ticked)
        self.port = self._port.bind(address, None if keys is None else credentials_of(keys))

    def start(self) -> None:
        self._port.start()

    def stop(self, grace_seconds: float) -> None:
        """Accept no more calls; running ones have the grace to end."""
        self._port.stop(grace_seconds)
        self._workers.close()

    # The port's thread: nothing blocks here.

    def _opened(self, call: Rpc) -> None:
        handler = self._handlers.get(call.path)
        if handler is None:
            name = call.path.rsplit("/", 1)[-1][:100]
            call.finish(grpc.StatusCode.UNIMPLEMENTED, f"this port has no {name}: it speaks Flight SQL, for queries")
            return
        try:
            admitted = self._admitted(call)
            if self._workers.is_full:
                raise NoPermit("the server is at its limit of calls: try again later", retry_after=BUSY_SECONDS)
        except LakestoreError as error:
            self._fail(call, error)
            return
        call.is_known = True
        self._clients.calls("flight", admitted.owner, call.peer, call.path.removeprefix(FLIGHT))
        handler(call, admitted)

    def _admitted(self, call: Rpc) -> RpcCall:
        """The call of a known caller. Basic credentials are a principal's name and one of its tokens."""
        scheme, said = authorization(call)
        name, token = basic(said) if scheme == "basic" else ("", said)
        if scheme and (scheme not in ("basic", "bearer") or not token):
            raise NotAuthenticated("the authorization metadata is neither `Bearer <token>` nor `Basic` name and token")
        names = certificate_names(call) if self._asks_certificates else ()
        admitted = self._admission.rpc(call.path, token, names)
        if name and admitted.owner and admitted.owner != name:
            raise NotAuthenticated("the name and the token do not belong together: the name is the token's principal")
        return admitted

    def _ticked(self, now: float) -> None:
        self._first_messages.tick(now)
        self._arrivals.tick(now, self._workers.run)
        for stream in list(self._streams):
            if stream.is_over:
                self._streams.discard(stream)
            else:
                stream.tick(now)

    def _too_late(self, call: Rpc, why: str) -> None:
        self._fail(call, TooLate(f"{why}: try again", applied="no", retry_after=BUSY_SECONDS), if_receiving=True)

    def _greet(self, call: Rpc, admitted: RpcCall) -> None:
        """A handshake: name and token come as Basic, and the token goes back as the one to send with each call."""
        scheme, said = authorization(call)
        token = basic(said)[1] if scheme == "basic" else said
        if not token:
            self._fail(call, Invalid("a handshake sends name and token as `authorization: Basic …`"))
            return
        told = (("authorization", f"Bearer {token}"),)
        call.opening = told
        call.send(pb.HandshakeResponse().SerializeToString(), lambda: call.finish(grpc.StatusCode.OK, trailing=told))

    def _message(self, begin: Callable[[Rpc, RpcCall, bytes], None], call: Rpc, admitted: RpcCall) -> None:
        """Begin a call once its only message is there."""

        def came(data: bytes | None) -> None:
            self._first_messages.came(call)
            if data is not None:
                begin(call, admitted, data)
            elif call.is_active():
                self._fail(call, Invalid("the call has no message"))

        self._first_messages.add(call)
        call.receive(came)

    def _info(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        self._workers.run(partial(self._answer, self._verbs.info, pb.FlightDescriptor, call, admitted, data))

    def _schema(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        self._workers.run(partial(self._answer, self._verbs.schema, pb.FlightDescriptor, call, admitted, data))

    def _rows(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        def items() -> Generator[bytes]:
            stream = self._verbs.rows(self._peer(call, admitted), parsed(pb.Ticket, data).ticket)
            call.add_callback(partial(stream.cancel, "its reader is gone"))
            yield from stream.items

        self._stream(call, admitted, items())

    def _act(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        def items() -> Generator[bytes]:
            answer = self._verbs.act(self._peer(call, admitted), parsed(pb.Action, data))
            if answer.cookie:
                call.opening = (("set-cookie", answer.cookie),)
            for body in answer.results:
                yield pb.Result(body=body).SerializeToString()

        self._stream(call, admitted, items())

    def _list_actions(self, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        def items() -> Generator[bytes]:
            for name in self._verbs.actions:
                yield pb.ActionType(type=name).SerializeToString()

        self._stream(call, admitted, items())

    def _put(self, call: Rpc, admitted: RpcCall) -> None:
        Upload(call, self._first_messages, partial(self._bind, call, admitted), partial(self._fail, call)).receive()

    def _bind(self, call: Rpc, admitted: RpcCall, parts: list[pb.FlightData]) -> None:
        def items() -> Generator[bytes]:
            said = self._verbs.put(self._peer(call, admitted), parts[0].flight_descriptor, parts)
            yield pb.PutResult(app_metadata=said).SerializeToString()

        self._stream(call, admitted, items())

    def _stream(self, call: Rpc, admitted: RpcCall, items: Generator[bytes]) -> None:
        stream = AnswerStream(
            rpc=call,
            call=admitted,
            items=self._counted(call, admitted, items),
            encode=_same,
            workers=self._workers,
            failed=self._fail,
            ahead=MESSAGES_AHEAD,
        )
        self._streams.add(stream)
        self._clients.opens("flight", admitted.owner, call.peer)
        call.add_callback(partial(self._clients.ends, "flight", admitted.owner, call.peer))
        stream.begin()

    def _counted(self, call: Rpc, admitted: RpcCall, items: Generator[bytes]) -> Generator[bytes]:
        """The items, while the call is counted and has a permit."""
        with ExitStack() as held:
            held.enter_context(self._permits.taken(1, admitted.owner))
            held.enter_context(self._calls.call(call.path.removeprefix(FLIGHT), is_stream=True))
            admitted.request(None)
            yield from items

    # The workers' threads.

    def _answer(self, verb: Callable[[Peer, Any], Any], kind: Any, call: Rpc, admitted: RpcCall, data: bytes) -> None:
        try:
            with self._calls.call(call.path.removeprefix(FLIGHT)):
                admitted.request(None)
                answer = verb(self._peer(call, admitted), parsed(kind, data))
            call.answer(answer.SerializeToString())
        except Exception as error:  # the edge: `_fail` tells a defect from a refusal
            self._fail(call, admitted.told(error) if isinstance(error, LakestoreError) else error)

    @staticmethod
    def _peer(call: Rpc, admitted: RpcCall) -> Peer:
        if admitted.caller is None:
            raise Denied("the call has no caller: this is a defect of the server")
        return Peer(admitted.caller, _session(call))

    def _fail(self, call: Rpc, error: Exception, *, if_receiving: bool = False) -> None:
        if not isinstance(error, LakestoreError):
            if count := self._defects.due((call.path, type(error))):
                log.error("%s failed by a defect, %d times since the last line", call.path, count, exc_info=error)
            error = errors.defect(error, "no")
        if isinstance(error, NoPermit | TooLate):
            self._figures.count_refusal()
        code = STATUS_CODES.get(error.kind, grpc.StatusCode.INTERNAL)
        if isinstance(error, Cancelled):
            code = grpc.StatusCode.CANCELLED
        call.finish(code, error.message, errors.pack_error(error), if_receiving=if_receiving)


class Upload:
    """The messages of one `DoPut`, up to their end. Used by the port's thread alone."""

    def __init__(
        self,
        call: Rpc,
        waiting: FirstMessages,
        end: Callable[[list[pb.FlightData]], None],
        failed: Callable[[LakestoreError], None],
    ) -> None:
        self._call, self._waiting, self._end, self._failed = call, waiting, end, failed
        self._parts: list[pb.FlightData] = []
        self._bytes = 0

    def receive(self) -> None:
        """Wait for the messages; all of them must come in the time of a first message."""
        self._waiting.add(self._call)
        self._call.receive(self._came)

    def _came(self, data: bytes | None) -> None:
        if data is None:
            self._waiting.came(self._call)
            if not self._call.is_active():
                return
            if self._parts:
                self._end(self._parts)
            else:
                self._failed(Invalid("the call has no message"))
            return
        try:
            self._add(data)
        except LakestoreError as error:
            self._waiting.came(self._call)
            self._failed(error)
        else:
            self._call.receive(self._came)

    def _add(self, data: bytes) -> None:
        self._bytes += len(data)
        part = parsed(pb.FlightData, data)
        if not self._parts:
            Verbs.check_put(part.flight_descriptor)
        if self._bytes > PARAMETER_BYTES_MAX:
            raise Invalid(f"parameters of a query have {PARAMETER_BYTES_MAX:,} bytes at most")
        if len(self._parts) == UPLOAD_MESSAGES_MAX:
            raise Invalid(f"parameters of a query come in {UPLOAD_MESSAGES_MAX} messages at most")
        self._parts.append(part)


def _same(data: bytes) -> bytes:
    return data


def _session(call: Rpc) -> bytes:
    """The value of the session's cookie; empty without one."""
    for key, said in call.metadata:
        if key == "cookie":
            text = said.decode("latin-1") if isinstance(said, bytes) else said
            for pair in text.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == COOKIE:
                    return value.strip('"').encode()
    return b""
