"""A server over gRPC. gRPC's threads do not survive a fork, so a forked child refuses every call."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

from lakestore.client.credentials import NOTHING, Credentials, Pem
from lakestore.client.partings import Partings
from lakestore.client.retry import is_passing
from lakestore.client.scope import SCOPE, Cancelled, Scope, SingleFlight
from lakestore.client.transport import PROCESS
from lakestore.errors import Exhausted, Invalid, LakestoreError, NotAuthenticated, Stopped, Unavailable, UnknownCall
from lakestore.limits import WIDEST
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc, tracing
from lakestore.wire.commit_message import beside, encoded
from lakestore.wire.errors import Metadata
from lakestore.wire.row_messages import reader_of
from lakestore.wire.rpc import grpc

IDLE_SECONDS = 10.0
"""Seconds without a call after which a stream ends."""
PING_SECONDS, LOST_SECONDS = 5.0, 10.0
"""Seconds that a call waits before the stream is asked for a sign of life, and seconds in which the sign must come."""
_PING = pb.Ask()
"""A call of no method. Every server refuses it at once."""


class NoReply(Exception):
    """The stream ended before the reply."""

    def __init__(self, failure: grpc.RpcError | None) -> None:
        """None: without an error."""
        super().__init__()
        self.failure = failure


class CallCancelled(Exception):
    """The caller's scope ended before the reply."""


class _Waiting:
    """The mailbox of one running call."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: SimpleQueue[pb.Reply | NoReply | CallCancelled | Unavailable] = SimpleQueue()

    def cancel(self) -> None:
        self.outcome.put(CallCancelled())


class _Stream:
    """One open stream. `waiting` and `is_over` change under the lock."""

    def __init__(self, lock: threading.Lock, metadata: Metadata) -> None:
        self._lock, self.shown = lock, metadata
        self._pinged = 0.0
        """The time of a ping since which nothing came; 0 if something did."""
        self.asks: SimpleQueue[pb.Ask | None] = SimpleQueue()
        self.waiting: dict[int, _Waiting] = {}
        self.is_over = False
        """True once the stream accepts no more calls."""

    def open(self, stub: Any) -> None:
        """Start the stream. Raises `ValueError` on a closed channel."""
        try:
            replies = stub(self._requests(), metadata=self.shown)
        except ValueError:
            self.end(NoReply(None))
            raise
        threading.Thread(target=self._read, args=(replies,), name="small-calls", daemon=True).start()

    def retire(self) -> None:
        """Accept no more calls; running ones are answered. Call under the lock."""
        self.is_over = True
        self.asks.put(None)

    def is_lost(self) -> bool:
        """Whether nothing has come for long after a ping. Sends one if none is under way."""
        now = time.monotonic()
        with self._lock:
            if not self._pinged and not self.is_over:
                self._pinged = now
                self.asks.put(_PING)
            return bool(self._pinged) and now - self._pinged >= LOST_SECONDS

    def _requests(self) -> Iterator[pb.Ask]:
        """The calls, consumed by gRPC's sending thread. The iterator ends after a while without calls."""
        while True:
            try:
                ask = self.asks.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    self.is_over = not self.waiting
                if self.is_over:
                    return
                continue
            if ask is None:
                return
            yield ask

    def _read(self, replies: Any) -> None:
        failure: grpc.RpcError | None = None
        try:
            for reply in replies:
                with self._lock:
                    self._pinged = 0.0
                    waiting = self.waiting.pop(reply.id, None)
                if waiting is not None:
                    waiting.outcome.put(reply)
        except grpc.RpcError as error:
            failure = error
        self.end(NoReply(failure))

    def end(self, outcome: NoReply | Unavailable) -> None:
        """Accept no more calls, and give the running ones this outcome."""
        with self._lock:
            self.retire()
            left, self.waiting = list(self.waiting.values()), {}
        for waiting in left:
            waiting.outcome.put(outcome)


class SmallCalls:
    """The small calls of one connection. Thread-safe.

    gRPC's core forgets a stream now and then (once in 500 losses, measured) that begins while its server goes: it
    never ends, though its connection is gone. So a stream that gives no sign of life is ended here.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub: Any = channel.stream_stream(rpc.TALK_PATH, pb.Ask.SerializeToString, pb.Reply.FromString)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stream: _Stream | None = None

    def call(self, method: str, request: bytes, seconds: float, metadata: Metadata) -> pb.Reply:
        """The reply. Raises `NoReply`, `CallCancelled`, `Unavailable` on timeout, `ValueError` on a closed channel."""
        number, waiting = next(self._numbers), _Waiting()
        ask = pb.Ask(id=number, method=method, request=request, within_ms=max(int(seconds * 1_000), 1))
        stream = self._asked(ask, waiting, metadata)
        scope = SCOPE.get()
        if scope is not None:
            scope.add(waiting)
        try:
            outcome = self._outcome(stream, waiting, time.monotonic() + seconds)
        finally:
            with self._lock:
                stream.waiting.pop(number, None)
            if scope is not None:
                scope.discard(waiting)
        if isinstance(outcome, pb.Reply):
            return outcome
        raise outcome

    def _outcome(self, stream: _Stream, waiting: _Waiting, end: float) -> pb.Reply | Exception:
        """The outcome of a call. Raises `Unavailable` on timeout."""
        while (left := end - time.monotonic()) > 0:
            try:
                return waiting.outcome.get(timeout=min(left, PING_SECONDS))
            except Empty:
                if stream.is_lost():
                    stream.end(Unavailable("the connection to the server was lost: try again"))
        raise Unavailable("the server did not answer in time: try again")

    def _asked(self, ask: pb.Ask, waiting: _Waiting, metadata: Metadata) -> _Stream:
        with self._lock:
            stream = self._stream
            if stream is not None and not stream.is_over and stream.shown != metadata:
                stream.retire()
            opens = stream is None or stream.is_over
            if stream is None or opens:
                stream = self._stream = _Stream(self._lock, metadata)
            stream.waiting[ask.id] = waiting
            stream.asks.put(ask)
        if opens:
            stream.open(self._stub)
        return stream

    def close(self) -> None:
        with self._lock:
            if self._stream is not None and not self._stream.is_over:
                self._stream.retire()


PROBE_SECONDS = 2.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = b"\x04"
"""Type of the first frame of an HTTP/2 server, after three length bytes."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", None}
"""`ssl` error reasons for bytes that are not TLS."""


def diagnosis(address: str, credentials: Credentials, seconds: float) -> LakestoreError | None:
    """The error that a connection to an address will give; None if a probe finds no problem."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or host.startswith(("unix:", "ipv4:", "ipv6:", "dns:")):
        return None
    place, limit = (host, int(port)), min(PROBE_SECONDS, max(seconds, 0.05))
    try:
        if credentials.pem is None:
            return _in_the_clear(address, place, limit)
        return _by_tls(address, place, limit, credentials.pem)
    except ConnectionRefusedError:
        return Unavailable(
            f"nothing listens at {address}: start the server there (lakestore serve), or name the address where it runs"
        )
    except TimeoutError:
        return Unavailable(f"the server at {address} does not answer in time: is it running there?")
    except socket.gaierror as error:
        return Unavailable(f"{host!r} is an unknown host ({error.strerror}): name the server's address")
    except OSError as error:
        return Unavailable(
            f"the server at {address} cannot be reached ({error.strerror or error}): is it running there?"
        )


def _in_the_clear(address: str, place: tuple[str, int], seconds: float) -> LakestoreError | None:
    said = _clear_words(place, seconds)
    if said[3:4] == _SETTINGS:
        return None
    if said.startswith(b"HTTP/"):
        return _http(address)
    if _speaks_tls(place, seconds):
        return Invalid(
            f"the server at {address} wants TLS: connect with tls=ls.TLS(ca=…), or --tls-ca FILE on the command line"
        )
    return None


def _by_tls(address: str, place: tuple[str, int], seconds: float, pem: Pem) -> LakestoreError | None:
    try:
        context = ssl.create_default_context(cadata=pem.ca.decode() if pem.ca else None)
        context.set_alpn_protocols(["h2"])
        for _ in range(2):  # a server that is shutting down refuses the second connection
            with _connected(place, seconds) as raw, context.wrap_socket(raw, server_hostname=place[0]) as port:
                port.sendall(_PREFACE)
                if port.recv(1):
                    return None
    except ssl.SSLCertVerificationError as error:
        return Invalid(
            f"the certificate of the server at {address} is not trusted ({error.verify_message}): name its authority by"
            " tls=ls.TLS(ca=…), or --tls-ca FILE on the command line"
        )
    except ssl.SSLError as error:
        if error.reason not in _NOT_TLS:
            return _not_let_in(address, pem)
    except ConnectionResetError:
        pass
    else:
        return _not_let_in(address, pem)
    said_in_clear = _clear_words(place, seconds)
    if said_in_clear.startswith(b"HTTP/"):
        return _http(address)
    if said_in_clear[3:4] == _SETTINGS:
        return Invalid(
            f"the server at {address} speaks without TLS: connect without tls=, or set tls.cert and tls.key there"
        )
    return None


def _not_let_in(address: str, pem: Pem) -> NotAuthenticated:
    said = "takes no client without a certificate" if pem.cert is None else "did not take this client's certificate"
    return NotAuthenticated(
        f"the server at {address} {said}: give tls=ls.TLS(cert=…, key=…) of an authority that it trusts"
    )


def _http(address: str) -> Invalid:
    return Invalid(f"the server at {address} speaks HTTP: name the gRPC port, by default 7340")


def _connected(place: tuple[str, int], seconds: float) -> socket.socket:
    return socket.create_connection(place, timeout=seconds)


def _clear_words(place: tuple[str, int], seconds: float) -> bytes:
    said = b""
    with _connected(place, seconds) as port, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        port.sendall(_PREFACE)
        while len(said) < 9 and (more := port.recv(9 - len(said))):
            said += more
    return said


def _speaks_tls(place: tuple[str, int], seconds: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(place, seconds) as raw, context.wrap_socket(raw, server_hostname=place[0]):
            return True
    except ssl.SSLError as error:
        return error.reason not in _NOT_TLS
    except ConnectionResetError:
        return False


HELLO_SECONDS = 10.0
SEND_SECONDS = 5.0
LAST_SECONDS = 1.0
"""Seconds for which a connection that closes waits for the server to take what was sent."""
METADATA_BYTES = 1 << 20
"""Metadata size for errors: `Fenced` may list every bucket of a table."""
_ADDRESS = re.compile(r"\D.*:\d+$|^unix:")
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
]
"""Finds a restarted server within a second, whatever other channels of this process have seen."""


def _error_of(error: grpc.RpcError, method: rpc.Method, release: str, address: str) -> LakestoreError:
    call: Any = error  # every error of a channel is a call too, which the stubs do not declare
    code = call.code().name
    if code == "UNIMPLEMENTED":
        return UnknownCall(
            f"the server ({release or 'an older release'}) has no {method.name}, which came with protocol"
            f" {method.since}: run the server with release {RELEASE} or newer"
        )
    metadata = dict(call.trailing_metadata() or ())
    return errors.unpack_error(metadata, code, call.details() or "", reads=method.reads, address=address)


def _too_old(release: str, protocol: int) -> Invalid:
    """The error of a server whose protocol this client does not speak; release 0.1 did not say its name."""
    return Invalid(
        f"the server ({release or 'release 0.1, or no Lakestore'}) speaks protocol {protocol}, this client ({RELEASE})"
        f" {rpc.PROTOCOL_MIN} to {rpc.PROTOCOL}: run the server with release 0.2 or newer"
    )


class GrpcWire:
    """Calls over gRPC. Says hello before the first call and after a lost connection."""

    def __init__(self, address: str, credentials: Credentials = NOTHING, *, reads: str = "") -> None:
        """`reads` says where reads go, of one of several servers; empty for a server alone."""
        PROCESS.check()
        PROCESS.has_connected = True
        if not _ADDRESS.search(address) or "://" in address:
            raise Invalid(f"{address!r} is not host:port of a server, such as localhost:7340")
        self.address = address
        self.credentials = credentials
        self._channel = _channel(address, credentials, rpc.client_keepalive(is_one_of_several=bool(reads)))
        self._preference = (rpc.READS_AT_LEADER,) if reads == "leader" else ()
        self._small_calls = SmallCalls(self._channel)
        self._talks = False
        """True if the server accepts small calls on an open stream."""
        self._greeted = False
        self._closed = False
        self._greeting = SingleFlight()
        self._partings = Partings(self._send)
        self._sent: set[Any] = set()
        """Requests whose answers nobody waits for. gRPC cancels a call to which nothing refers."""
        _OPEN.add(self)
        self.server = pb.HelloAnswer()
        self._calls: dict[str, Any] = {name: self._callable(method) for name, method in rpc.METHODS.items()}
        self._hello = rpc.METHODS["Hello"]

    def _callable(self, method: rpc.Method) -> Any:
        coder = encoded if method.name == "Write" else method.request.SerializeToString
        coders = (coder, reader_of(method))
        kinds = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }
        return kinds[method.streams_in, method.streams_out](method.path, *coders)

    def greet(self, seconds: float) -> None:
        self._ready(None, seconds)

    def hello(self, seconds: float) -> pb.HelloAnswer:
        """Greet the server again. Returns its answer."""
        self._greeted = False
        self.greet(seconds)
        return self.server

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        if PROCESS.is_orphan or self._closed or not self._greeted:
            seconds = self._ready(method, seconds)
        self._check_known(method, request)
        scope, unary, shown = SCOPE.get(), self._calls[method.name], self._shown()
        try:
            if self._talks and not tracing.is_on() and (data := _small(method, request)) is not None:
                answer = self._talked(method, data, seconds, shown)
                if answer is not None:
                    return answer
            if scope is None:
                return unary(request, timeout=seconds, metadata=shown)
            running = unary.future(request, timeout=seconds, metadata=shown)
            with scope.holding(running):
                return running.result()
        except grpc.RpcError as error:
            raise self._failed(error, method) from error
        except (grpc.FutureCancelledError, ValueError) as error:  # grpc raises ValueError for a closed channel
            raise self._ended(method) from error

    def _talked(self, method: rpc.Method, request: bytes, seconds: float, metadata: errors.Metadata) -> Any:
        try:
            reply = self._small_calls.call(method.name, request, seconds, metadata)
        except Unavailable as error:
            error.applied = "no" if method.reads else "unknown"
            raise
        except CallCancelled as error:
            raise self._ended(method) from error
        except NoReply as error:
            call: Any = error.failure
            if call is None:
                raise self._ended(method) from error
            if call.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._talks = False
                return None
            told = self._failed(call, method)
            if isinstance(told, Exhausted):  # no room for another stream; the call was not started
                return None
            raise told from call
        if reply.error:
            raise errors.error_of_fields(reply.error)
        return method.answer.FromString(reply.answer)

    def send(self, method: rpc.Method, request: Any) -> None:
        if not (PROCESS.is_orphan or self._closed):
            self._partings.put(method, request)

    def _send(self, method: rpc.Method, request: Any) -> None:
        if not self._greeted:
            self._ready(method, HELLO_SECONDS)
        call, shown = self._calls[method.name], self._metadata()
        try:
            sent = call.future(request, timeout=SEND_SECONDS, metadata=shown)
        except ValueError as error:
            raise _closed() from error
        except RuntimeError:  # the interpreter ends, and gRPC can start no thread
            with suppress(grpc.RpcError):
                call(request, timeout=LAST_SECONDS, metadata=shown)
            return
        self._sent.add(sent)
        sent.add_done_callback(self._sent.discard)

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The answers of a streaming RPC. The stream is cancelled when its reader is closed."""
        if PROCESS.is_orphan or self._closed or not self._greeted:
            left = self._ready(method, HELLO_SECONDS if seconds is None else seconds)
            seconds = None if seconds is None else left
        refusals: list[Invalid] = []
        if method.streams_in:
            request = self._known(method, request, refusals)
        else:
            self._check_known(method, request)
        try:
            answers = self._calls[method.name](request, timeout=seconds, metadata=self._metadata())
        except ValueError as error:
            raise _closed() from error
        scope = SCOPE.get() or Scope()
        try:
            with scope.holding(answers):
                yield from answers
        except grpc.RpcError as error:
            raise self._failed(error, method) from error
        finally:
            answers.cancel()
        if refusals:
            raise refusals[0]

    def _metadata(self) -> errors.Metadata:
        shown = self.credentials.metadata()
        return (*shown, *self._preference) if self._preference else shown

    def _shown(self) -> errors.Metadata:
        """The metadata of a call, with the trace that it belongs to."""
        shown = self._metadata()
        return (*shown, *tracing.headers()) if tracing.is_on() else shown

    def _check_known(self, method: rpc.Method, request: Any) -> None:
        if self.server.protocol < rpc.PROTOCOL:
            rpc.check_known(method, request, self.server.protocol, self.server.release)

    def _known(self, method: rpc.Method, requests: Iterator[Any], refusals: list[Invalid]) -> Iterator[Any]:
        """The requests up to one that is refused. gRPC would report an error raised here as `UNKNOWN`."""
        for request in requests:
            try:
                self._check_known(method, beside(request).request)
            except Invalid as refusal:
                refusals.append(refusal)
                return
            yield request

    def _failed(self, error: grpc.RpcError, method: rpc.Method) -> LakestoreError:
        scope = SCOPE.get()
        if self._closed or (scope is not None and scope.is_cancelled):
            return self._ended(method)
        told = _error_of(error, method, self.server.release, self.address)
        call: Any = error
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            self._greeted = False  # the next server may be of another release
        return told

    def _ended(self, method: rpc.Method) -> LakestoreError:
        """The error of a call that this side ended. The request may have reached the server."""
        error = _closed() if self._closed else Cancelled("the call was cancelled")
        error.applied = "no" if method.reads else "unknown"
        return error

    def _ready(self, method: rpc.Method | None, seconds: float) -> float:
        """Greet the server. Returns the remaining seconds."""
        PROCESS.check()
        if self._closed:
            raise _closed()
        if method is self._hello:
            return seconds
        end = time.monotonic() + seconds
        while not self._greeted:
            self._greeting.run(self._greet, end - time.monotonic())
        return end - time.monotonic()

    def _greet(self, seconds: float) -> None:
        seconds = min(seconds, HELLO_SECONDS)
        end = time.monotonic() + seconds
        try:
            hello = pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL)
            try:
                self.server = self.call(self._hello, hello, seconds)
            except UnknownCall as error:
                raise _too_old("", 1) from error
            if self.server.protocol < rpc.PROTOCOL_MIN:
                raise _too_old(self.server.release, self.server.protocol)
            if self.server.protocol_min > rpc.PROTOCOL:
                raise Invalid(
                    f"the server ({self.server.release}) speaks protocols {self.server.protocol_min} to"
                    f" {self.server.protocol}, this client ({RELEASE}) speaks {rpc.PROTOCOL}: install a newer lakestore"
                )
            self._talks = self.server.protocol >= rpc.TALK_SINCE
            self._greeted = True
        except LakestoreError as failure:
            left = end - time.monotonic()
            if not is_passing(failure) or left <= 0.0:
                raise
            raise diagnosis(self.address, self.credentials, left) or failure from failure

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _OPEN.discard(self)
        if not PROCESS.is_orphan:
            self._small_calls.close()
            try:
                self.send_last()
            finally:
                self._channel.close()

    def send_last(self) -> None:
        """Send what waits, and wait for a moment until the server has taken it. Send nothing later."""
        if not self._greeted:
            return
        end = time.monotonic() + LAST_SECONDS
        self._partings.close(LAST_SECONDS)
        for sent in list(self._sent):
            with suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                sent.result(timeout=max(end - time.monotonic(), 0.0))


_OPEN: WeakSet[GrpcWire] = WeakSet()


@atexit.register
def _leave() -> None:
    """A program that ends without closing its connections still lets its leases go."""
    if not PROCESS.is_orphan:
        for wire in list(_OPEN):
            wire.send_last()


def _small(method: rpc.Method, request: Any) -> bytes | None:
    if method.name == "Lookup":
        data: bytes = request.SerializeToString() if request.key else b""
    elif method.name == "Commit":
        few = sum(len(change.rows) for change in request.changes) <= rpc.TALK_BYTES_MAX
        is_small = few and not any(change.part for change in request.changes)
        data = request.SerializeToString() if is_small else b""
    else:
        return None
    return data if 0 < len(data) <= rpc.TALK_BYTES_MAX else None


def _channel(address: str, credentials: Credentials, keepalive: list[tuple[str, int]]) -> grpc.Channel:
    options = [*rpc.options(WIDEST.message_bytes), *_CHANNEL, *keepalive]
    pem = credentials.pem
    if pem is None:
        return grpc.insecure_channel(address, options=options)
    keys = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.secure_channel(address, keys, options=options)


def _closed() -> LakestoreError:
    return Stopped("the connection is closed: connect again")
