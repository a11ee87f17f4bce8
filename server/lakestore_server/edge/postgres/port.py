"""The port of the Postgres protocol: sockets, TLS, limits of time and number. Its asyncio loop has a thread.

- The loop moves bytes, and answers what needs no wait: a look-up of one key takes less time than to wake a thread.
  A thread goes on where a session says that the next step may wait, up to the end of what came.
- The loop answers each connection for one turn, so that a pipeline of many messages stops nobody.
- A client that does not read stops its session: at most `AHEAD_BYTES` wait for it. It is cut off after the time of a
  query.
- Connections are bounded in number, and connections of unknown clients also in time and bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import count
from typing import Any

from lakestore.errors import Invalid, LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore_server.access.callers import Access, Caller
from lakestore_server.edge.addresses import is_in_use
from lakestore_server.edge.postgres import sqlstates
from lakestore_server.edge.postgres.executor import Questions
from lakestore_server.edge.postgres.login import Peer
from lakestore_server.edge.postgres.session import MAY_WAIT, Session
from lakestore_server.edge.postgres.sqlstates import FatalError
from lakestore_server.edge.tls import TlsKeys, is_loopback, names_of
from lakestore_server.host.quota import share_of
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.metric_sources import PostgresConnections

log = logging.getLogger("lakestore.postgres")
START_SECONDS = 20.0
RECHECK_SECONDS = 1.0
"""Seconds between two checks of the rights of sessions that wait for their client."""
UNKNOWN_PERCENT = 25
"""Percent of the connections that may belong to clients who have not proved who they are."""
AHEAD_BYTES = 1 << 20
"""Bytes that wait for a client before its session stops."""
BURST_BYTES = 64 << 10
"""Bytes that are sent together, and received bytes from which on the client waits for its session."""
PORT = "postgres"
"""The port's name in the list of clients."""
PROTOCOL = "postgresql"
"""The name in TLS of the protocol (ALPN)."""
TLS_HANDSHAKE = 0x16
"""The first byte of a client that begins with TLS."""
GOING_DOWN = "terminating connection due to administrator command"


TURN_ANSWERS = 32
"""Answers that the loop gives to one connection before the others have their turn: about six queries."""


class Step(Enum):
    """Where the work on a connection pauses."""

    TURN = "another connection has its turn"
    WAIT = "the next step may wait, so the loop must not take it"


class ClientGone(Exception):
    """The client has closed its connection."""


class Connection(asyncio.BufferedProtocol):
    """One socket and its session. `_work` runs in the loop's thread until it may wait, then in another one."""

    def __init__(self, port: PostgresPort) -> None:
        self._port = port
        self._transport: Any = None
        self._lock = threading.Lock()
        """Guards everything that both threads use: what came, what waits, and the states."""
        self._changed = threading.Condition(self._lock)
        """Notified when a client has taken bytes or is gone. Its own `with` is a method in Python."""
        self._came = bytearray()
        self._waits_bytes = 0
        self._is_paused = self._is_lost = self.is_working = self._is_reading_paused = False
        self._ending: FatalError | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._start: asyncio.TimerHandle | None = None
        self._steps: Iterator[Step] = iter(())
        self._is_first = True
        """Whether no byte has come yet."""
        self.since = 0.0
        self.session: Session

    # --- the loop's thread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, loop = transport, self._port.loop
        transport.set_write_buffer_limits(high=AHEAD_BYTES)  # type: ignore[attr-defined]
        _keep_alive(transport.get_extra_info("socket"))
        address = transport.get_extra_info("peername")
        shown = ":".join(map(str, address[:2])) if address else "a local socket"
        is_local = not address or is_loopback(str(address[0]).removeprefix("::ffff:"))
        self.session = Session(self._port, Peer(is_local, may_encrypt=self._port.has_tls, address=shown))
        self.since = loop.time()
        self._start = loop.call_later(self._port.limits.sql_start_ms / 1_000, partial(self._port.late, self))
        self._port.opened(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._port.received

    def buffer_updated(self, size: int) -> None:
        data = self._port.received[:size]
        if self._is_first and data[0] == TLS_HANDSHAKE and self._port.has_tls:
            self._begin_direct_tls(bytes(data))
            return
        self._is_first = False
        with self._lock:
            self._came += data
            self.session.expect()
            if len(self._came) > BURST_BYTES and not self._is_reading_paused:
                self._is_reading_paused = True
                self._transport.pause_reading()
        self._begin_work()

    def pause_writing(self) -> None:
        with self._lock:
            self._is_paused = True
        self._stall = self._port.loop.call_later(self._port.limits.query_seconds, self.abort)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        with self._lock:
            self._is_paused = False
            self._changed.notify_all()

    def connection_lost(self, error: Exception | None) -> None:
        for timer in (self._start, self._stall):
            if timer is not None:
                timer.cancel()
        with self._lock:
            self._is_lost = True
            self._changed.notify_all()
        self._port.closed(self)
        self.session.close()
        self._begin_work()

    def end(self, error: FatalError) -> None:
        """Tell the client why its session ends, once the statement under way is done."""
        with self._lock:
            self._ending = self._ending or error
        self._begin_work()

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()

    def _begin_work(self) -> None:
        with self._lock:
            if self.is_working:
                return
            self.is_working = True
        self._steps = self._work()
        self._take_turn()

    def _take_turn(self) -> None:
        step = next(self._steps, None)
        if step is Step.TURN:
            self._port.loop.call_soon(self._take_turn)
        elif step is Step.WAIT:
            self._port.run(self._go_on)

    def _write_waiting(self, data: bytes | memoryview) -> None:
        with self._lock:
            self._waits_bytes -= len(data)
            self._changed.notify_all()
        self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _resume_reading(self) -> None:
        with self._lock:
            if self._is_reading_paused and len(self._came) <= BURST_BYTES and not self._is_lost:
                self._is_reading_paused = False
                self._transport.resume_reading()

    def _begin_tls(self) -> None:
        self._transport.pause_reading()
        if self._came:  # somebody has put bytes between the request and the begin of TLS
            self.abort()
            return
        self._transport.write(b"S")
        self._port.keep(self._port.loop.create_task(self._encrypt()))

    def _begin_direct_tls(self, hello: bytes) -> None:
        """TLS without a request for it. No other first message has the first byte of TLS."""
        self._is_first = False
        with self._lock:
            self.is_working = True
        self._transport.pause_reading()
        self._port.keep(self._port.loop.create_task(self._encrypt(hello)))

    async def _encrypt(self, hello: bytes = b"") -> None:
        """Begin TLS. `hello` are the bytes of a client that begins with TLS at once."""
        port, seconds = self._port, self._port.limits.sql_start_ms / 1_000
        try:
            context, bound = port.tls_context()
            handshake = port.loop.create_task(
                port.loop.start_tls(self._transport, self, context, server_side=True, ssl_handshake_timeout=seconds)
            )
            if hello:
                await asyncio.sleep(0)  # TLS takes the connection over
                await asyncio.sleep(0)  # and begins
                _feed(self._transport.get_protocol(), hello)
            transport = await handshake
        except (OSError, LakestoreError) as error:  # ssl.SSLError is an OSError
            log.info("TLS with a client failed: %s", error)
            self.abort()
        else:
            if transport is not None:
                self._encrypted(transport, bound, is_direct=bool(hello))
        with self._lock:
            self.is_working = False
        self._begin_work()

    def _encrypted(self, transport: asyncio.Transport, bound: bytes, *, is_direct: bool) -> None:
        self._transport = transport
        spoken = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if is_direct and spoken != PROTOCOL:  # a client of another protocol, perhaps with bytes of somebody else
            log.info("a client began TLS without the protocol %s", PROTOCOL)
            self.abort()
        transport.set_write_buffer_limits(high=AHEAD_BYTES)
        names = tuple(names_of(transport.get_extra_info("peercert")))
        self.session.peer = replace(self.session.peer, is_encrypted=True, certificate=names, server_hash=bound)
        self.session.wants_tls = False

    # --- the session's thread

    def _go_on(self) -> None:
        for _ in self._steps:
            pass

    # --- one of both threads

    def _work(self) -> Iterator[Step]:
        """Answer what came, until nothing is left."""
        try:
            while self._has_work():
                if not (yield from self._answer()):
                    return  # TLS begins, and its end begins the work again
        except ClientGone:
            yield Step.WAIT
            self.session.release()
        except Exception:  # the edge: a defect ends the connection
            log.exception("a defect in a connection of %s", self.session.user)
            with self._lock:
                self.is_working = False
            self._port.call(self.abort)

    def _has_work(self) -> bool:
        """Whether something came; otherwise the work is over, and more bytes begin it again."""
        with self._lock:
            data, self._came = bytes(self._came), bytearray()
            if self._is_lost:
                raise ClientGone
            if self.session.is_over or not (data or self._ending):
                self.is_working = False
                self.session.rest()
                return False
        self.session.receive(data)
        if self._is_reading_paused:
            self._port.call(self._resume_reading)
        return True

    def _answer(self) -> Generator[Step, None, bool]:
        """Send the answers to what came; false if TLS begins."""
        parts: list[bytes | memoryview] = []
        size = count = 0
        with closing(self.session.answers()) as answers:
            for data in answers:
                if data is MAY_WAIT:
                    yield Step.WAIT
                    continue
                parts.append(data)
                size, count = size + len(data), count + 1
                if size >= BURST_BYTES or count % TURN_ANSWERS == 0:
                    yield from self._send(parts)
                    parts, size = [], 0
                    yield Step.TURN
        if self.session.wants_tls:
            self._port.call(self._begin_tls)
            return False
        ending = self._ending or self._port.excess(self)
        if ending is not None and not self.session.is_over:
            parts.append(self.session.end(ending))
        yield from self._send(parts)
        if self.session.is_over:
            self._port.call(self._transport.close)
        return True

    def _send(self, parts: list[bytes | memoryview]) -> Iterator[Step]:
        """Send, once the client has taken enough of what was sent before. Raises `ClientGone`."""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self._may_send():
            yield Step.WAIT
        with self._lock:
            if not self._may_send():
                self._changed.wait_for(self._may_send)
            if self._is_lost:
                raise ClientGone
            is_next = not self._waits_bytes and self._port.is_loop()
            if not is_next:
                self._waits_bytes += len(data)
        if is_next:
            self._write(data)
        elif data:
            self._port.call(partial(self._write_waiting, data))

    def _may_send(self) -> bool:
        return self._is_lost or not (self._is_paused or self._waits_bytes > AHEAD_BYTES)


class PostgresPort:
    """The listening socket, the loop, and what all sessions share: the session's `Door`."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        access: Access,
        questions: Callable[[Caller], Questions],
        limits: Limits,
        figures: PostgresConnections,
        clients: Clients,
        keys: TlsKeys | None = None,
        on_end: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """`on_end` is called if the port ends without `stop`."""
        self.access, self.limits, self._ask, self._figures = access, limits, questions, figures
        self._clients = clients
        self._host, self._wanted, self._keys, self._on_end = host, port, keys, on_end
        self._context: tuple[tuple[int, ...], ssl.SSLContext, bytes] | None = None
        """(stamp of the files, context, hash of the certificate)."""
        self.received = memoryview(bytearray(BURST_BYTES))
        """The bytes that a connection receives now. Without it, asyncio makes a buffer of 256 KB for each read."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="postgres", daemon=True)
        self._threads = ThreadPoolExecutor(limits.sql_connections, "postgres-session")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        """Guards the sessions by number, their owners and the bytes of unfinished messages."""
        self._numbers = count(1)
        self._sessions: dict[int, tuple[Session, bytes]] = {}
        self._owners: Counter[str] = Counter()
        self._bytes: dict[Connection, int] = {}
        self._is_draining = self._is_stopping = False
        self.port = 0

    @property
    def has_tls(self) -> bool:
        """Whether a client may ask for TLS."""
        return self._keys is not None

    # --- begin and end, in other threads

    def start(self) -> None:
        """Begin to serve; the port is known afterwards."""
        refusal = Unavailable(
            f"the Postgres port {self._wanted} cannot be opened: is it in use? postgres.port: 0 picks a free one"
        )
        if is_in_use(self._host, self._wanted):
            raise refusal
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(self._open(), self.loop)
        try:
            self.port = opening.result(START_SECONDS)
        except (OSError, TimeoutError) as error:
            raise refusal from error

    def turn_away(self) -> None:
        """Take no further connection, and end every session once its statement is done."""
        self.call(self._turn_away)

    def drain(self, seconds: float) -> bool:
        """Wait for the sessions to end; true if all have."""
        deadline = time.monotonic() + seconds
        while self._connections and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._connections

    def stop(self) -> None:
        """Cancel what runs, close every connection and end the loop."""
        if self._is_stopping or self._thread.ident is None:
            return
        self.turn_away()
        for session, _ in list(self._sessions.values()):
            session.cancel(GOING_DOWN)
        self.drain(STOP_SECONDS)
        self._is_stopping = True
        self.call(self.loop.stop)
        self._thread.join(10)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
            if not self._is_stopping:
                log.critical("the Postgres port has ended by itself")
                self._on_end(Unavailable("the Postgres port has ended by itself"))

    async def _open(self) -> int:
        host = self._host.strip("[]")
        self._server = server = await self.loop.create_server(lambda: Connection(self), host, self._wanted)
        self.loop.call_later(RECHECK_SECONDS, self._recheck)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def _turn_away(self) -> None:
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.end(FatalError(sqlstates.GOING_DOWN, GOING_DOWN))

    def _recheck(self) -> None:
        """End sessions that wait for their client, and whose token is no longer valid."""
        for connection in list(self._connections):
            session = connection.session
            if session.caller is not None and not connection.is_working:
                try:
                    self.access.renewed(session.caller)
                except LakestoreError as error:
                    connection.end(FatalError(sqlstates.sqlstate_of(error), error.message))
        self.loop.call_later(RECHECK_SECONDS, self._recheck)

    def opened(self, connection: Connection) -> None:
        """Count a connection, or refuse it."""
        self._connections.add(connection)
        most = self.limits.sql_connections
        if self._is_draining:
            connection.end(FatalError("57P03", "the database system is shutting down"))
        elif len(self._connections) > most:
            self._figures.refused += 1
            sentence = f"sorry, too many clients already: the limit is {most}"
            connection.end(FatalError(sqlstates.TOO_MANY_CONNECTIONS, sentence))
        else:
            unknown = [each for each in self._connections if each.session.caller is None]
            if len(unknown) > max(1, most * UNKNOWN_PERCENT // 100):
                self._figures.refused += 1
                min(unknown, key=lambda each: each.since).abort()
        self._count()

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._count()
        session = connection.session
        with self._lock:
            self._bytes.pop(connection, None)
            for number in [number for number, (each, _) in self._sessions.items() if each is session]:
                del self._sessions[number]
                if session.caller is not None:
                    self._owners[session.caller.counted_as] -= 1
                    self._clients.ends(PORT, session.caller.counted_as, session.peer.address)

    def late(self, connection: Connection) -> None:
        """Close a connection whose client has not proved who it is in time."""
        if connection.session.caller is None:
            self._figures.refused += 1
            connection.abort()

    def _count_refusal(self) -> None:
        self._figures.refused += 1

    def _count(self) -> None:
        unknown = sum(each.session.caller is None for each in self._connections)
        self._figures.unknown, self._figures.known = unknown, len(self._connections) - unknown

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task alive until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tls_context(self) -> tuple[ssl.SSLContext, bytes]:
        """The present certificate and its hash; the last good one if the files cannot be used."""
        if self._keys is None:
            raise Invalid("this server has no certificate")
        stamp = self._keys.stamp()
        if self._context is None or self._context[0] != stamp:
            try:
                context = self._keys.context()
                bound = self._keys.binding() if self._keys.stamp() == stamp else b""
            except Invalid as error:
                if self._context is None:
                    raise
                log.error("the certificate stays as it was: %s", error.message)
                context, bound = self._context[1:]
            context.set_alpn_protocols([PROTOCOL])
            self._context = stamp, context, bound
        return self._context[1:]

    # --- any thread

    def call(self, act: Callable[[], object]) -> None:
        """Act in the loop's thread, unless the loop has ended."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(act)

    def is_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Callable[[], None]) -> None:
        """Work in a thread of sessions."""
        with suppress(RuntimeError):  # the port has stopped
            self._threads.submit(work)

    def questions(self, caller: Caller) -> Questions:
        return self._ask(caller)

    def nonce(self, size: int) -> str:
        return secrets.token_urlsafe(size)

    def register(self, session: Session, minor: int) -> tuple[int, bytes]:
        owner = session.caller.counted_as if session.caller else ""
        share = share_of(self.limits.sql_connections, self.limits)
        with self._lock:
            if owner and self._owners[owner] >= share:
                self.call(self._count_refusal)
                sentence = f"{owner} has {share} connections, its share: close some"
                raise FatalError(sqlstates.TOO_MANY_CONNECTIONS, sentence)
            self._owners[owner] += 1
            number, secret = next(self._numbers), secrets.token_bytes(SECRET_BYTES if minor >= 2 else 4)
            self._sessions[number] = session, secret
        self._clients.calls(PORT, owner, session.peer.address, "connect")
        self._clients.opens(PORT, owner, session.peer.address)
        self.call(self._count)
        return number, secret

    def cancel(self, number: int, secret: bytes) -> None:
        session, known = self._sessions.get(number, (None, b""))
        if session is not None and hmac.compare_digest(secret, known):
            session.cancel()

    def after(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        timers: list[asyncio.TimerHandle] = []
        self.call(lambda: timers.append(self.loop.call_later(seconds, act)))

        def call_off() -> None:
            for timer in timers:
                timer.cancel()

        return lambda: self.call(call_off)

    def excess(self, connection: Connection) -> FatalError | None:
        """The refusal of a long message for which all connections together have no room."""
        size = len(connection.session.inbox)
        with self._lock:
            if size <= BURST_BYTES:
                self._bytes.pop(connection, None)
                return None
            self._bytes[connection] = size
            total = sum(self._bytes.values())
        if total <= self.limits.sql_receiving_bytes:
            return None
        self.call(self._count_refusal)
        return FatalError(sqlstates.OUT_OF_MEMORY, "the server is at its limit of bytes of unfinished messages")


STOP_SECONDS = 2.0
SECRET_BYTES = 32
"""Bytes of a secret for cancelling from version 3.2 of the protocol on; before, it has 4."""


def _feed(protocol: Any, data: bytes) -> None:
    """Give bytes to a protocol as if they came from the socket now."""
    while data:
        room = protocol.get_buffer(len(data))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


def _keep_alive(there: Any) -> None:
    if there is not None:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
