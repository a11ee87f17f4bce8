"""Several servers that share a journal, as one wire.

- This module alone decides which server gets a call: the leader what only a leader answers, a server of the read
  preference the reads, and the server that gave a lease whatever names the lease.
- A call is tried once, at one server. `Calls` decides what is sent again. An error of a server that is gone or does not
  lead makes the next call ask all servers, side by side, who leads.
- A read at a follower waits for the writes of its own connection.
- A connection belongs to one lake. Its first search refuses servers of two lakes, and later ones pass over the servers
  of another lake, so no write goes there while the leader is gone.
"""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, get_args

from lakestore.client.calls import CALL_SECONDS, transport_of
from lakestore.client.credentials import NOTHING, Credentials, addresses_of, is_this_machine
from lakestore.client.grpc import GrpcWire
from lakestore.client.profiles import Reads
from lakestore.client.retry import is_passing
from lakestore.client.scope import SCOPE, Cancelled, Scope, SingleFlight, pause
from lakestore.client.transport import PROCESS, Transport, Wire
from lakestore.errors import (
    Internal,
    Invalid,
    LakestoreError,
    NotLeader,
    OtherTimeline,
    PlanExpired,
    Stopped,
    Unavailable,
)
from lakestore.model.token import Token, position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.v1.lakestore_pb2 import Rule
from lakestore.wire import errors, rpc

ASK_SECONDS = 3.0
"""The longest hello of one server."""
FIND_SECONDS = 10.0
"""The longest search while servers answer and none leads. The retries of the call follow."""
SETTLE_SECONDS = 0.25
"""Seconds after the first answer in which the other servers may answer before one of several is chosen."""
ROUND_SECONDS = 0.1
"""The shortest pause before a server is asked again."""
NAMED_MAX = 8
"""Leaders outside the given addresses whose connections are kept."""
_HEAD = rpc.METHODS["Head"]


class Server(Wire, Protocol):
    """The wire to one server."""

    @property
    def address(self) -> str: ...

    def hello(self, seconds: float, /) -> pb.HelloAnswer:
        """Greet the server, also if it was greeted before."""


Answers = Mapping[Server, pb.HelloAnswer]
"""The servers that have answered, the fastest first."""
Choose = Callable[[Answers, bool], Server | None]
"""Chooses one of the servers that have answered; None to ask on. The flag says that nobody else is waited for."""
Head = Callable[[Server, pb.HeadRequest, float], pb.HeadAnswer]
"""Asks one server for its newest commit, within so many seconds."""


class _Search:
    """Asks all servers side by side until one is chosen. For one thread."""

    def __init__(self, servers: Callable[[], list[Server]], names: str, strangers: Callable[[], str]) -> None:
        """`strangers` says which servers the choice passes over; empty if none."""
        self._servers, self._names, self._strangers = servers, names, strangers
        self._heard: SimpleQueue[tuple[Server, pb.HelloAnswer | LakestoreError]] = SimpleQueue()
        self._asked: set[Server] = set()
        self._answers: dict[Server, pb.HelloAnswer] = {}
        self._failures: dict[Server, LakestoreError] = {}
        self._first = 0.0
        """When the first answer came."""

    def run(self, choose: Choose, seconds: float) -> Server:
        """The chosen server. Raises an error that names all servers."""
        scope, outer = Scope(), SCOPE.get()
        with outer.holding(scope) if outer else nullcontext():
            try:
                return self._chosen(choose, time.monotonic() + min(seconds, FIND_SECONDS), scope)
            finally:
                scope.cancel()  # no thread is left inside gRPC

    def _chosen(self, choose: Choose, end: float, scope: Scope) -> Server:
        while True:
            began = time.monotonic()
            for server in self._servers():
                if server not in self._asked:
                    self._ask(server, scope)
            while self._asked and self._hear(began, end):
                if (chosen := choose(self._answers, False)) is not None:
                    return chosen
            if (chosen := choose(self._answers, True)) is not None:
                return chosen
            if scope.is_cancelled:
                raise Cancelled("the call was cancelled")
            if not self._answers and not self._asked:
                raise self._silent()
            if time.monotonic() >= end:
                what = "leads now" if self._answers else "answered in time"
                raise Unavailable(f"none of the servers {self._names} {what}{self._strangers()}: try again")
            pause(max(began + ROUND_SECONDS * (0.5 + random.SystemRandom().random()) - time.monotonic(), 0.0))

    def _ask(self, server: Server, scope: Scope) -> None:
        self._asked.add(server)

        def ask() -> None:
            SCOPE.set(scope)
            outcome: pb.HelloAnswer | LakestoreError = Internal("a defect of the client ended a hello")
            try:
                outcome = server.hello(ASK_SECONDS)
            except LakestoreError as error:
                outcome = error
            finally:
                self._heard.put((server, outcome))

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(ask,), name="lakestore-hello", daemon=True).start()

    def _hear(self, began: float, end: float) -> bool:
        """Note the next outcome. False if no more is waited for in this round."""
        until = max(self._first + SETTLE_SECONDS, began + ROUND_SECONDS) if self._answers else end
        try:
            server, outcome = self._heard.get(timeout=max(min(until, end) - time.monotonic(), 0.0))
        except Empty:
            return False
        self._asked.discard(server)
        self._answers.pop(server, None)
        self._failures.pop(server, None)
        if isinstance(outcome, LakestoreError):
            self._failures[server] = outcome
        else:
            self._first = self._first or time.monotonic()
            self._answers[server] = outcome
        return True

    def _silent(self) -> LakestoreError:
        """The error if no server answers. If waiting helps at none of them, it is the error of one."""
        lasting = [error for error in self._failures.values() if not is_passing(error)]
        if len(lasting) == len(self._failures):
            return lasting[0]
        why = f" ({lasting[0].message})" if lasting else ""
        return Unavailable(
            f"none of the servers {self._names} answers{why}: start one of them (lakestore serve), or name the"
            " addresses where they run"
        )


class _Choice:
    """A server chosen by a rule. One thread searches while the others wait. Thread-safe."""

    def __init__(self, search: Callable[[], _Search], choose: Choose) -> None:
        self._search, self._choose = search, choose
        self._flight = SingleFlight()
        self.server: Server | None = None
        """None until a search has chosen one, and again after it has failed."""

    def get(self, seconds: float) -> Server:
        server = self.server
        if server is not None:
            return server
        PROCESS.check()
        end = time.monotonic() + seconds
        while (server := self.server) is None:
            self._flight.run(self._find, end - time.monotonic())
        return server

    def _find(self, seconds: float) -> None:
        if self.server is None:
            self.server = self._search().run(self._choose, seconds)

    def drop(self, server: Server) -> None:
        """Search again, unless another server was chosen since."""
        if self.server is server:
            self.server = None


class _OwnWrites:
    """The writes of a connection, which a follower awaits before it answers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._unplaced = 0
        """Number of the last write whose position is not known."""
        self._newest: Token | None = None
        self._newest_text = ""
        self._applied: dict[Server, int] = {}
        """Server to the number of writes that it has applied for certain."""

    def add(self, token: str) -> None:
        """Note a write and its token; an empty one if the position is not known."""
        position = position_of(token) if token else None
        with self._lock:
            self._count += 1
            newest = self._newest
            if position is None:
                self._unplaced = self._count
            elif newest is None or position.timeline != newest.timeline or position.lsn > newest.lsn:
                self._newest, self._newest_text = position, token

    def forget(self, server: Server) -> None:
        """The server may be another process, which has applied less."""
        with self._lock:
            self._applied.pop(server, None)

    def await_at(
        self, server: Server, leader: Callable[[float], Server], head: Head, seconds: float, *, carried: str
    ) -> None:
        """Let the server apply these writes. `carried`: the token that its request names, for which the server waits
        itself; empty if it names none."""
        end = time.monotonic() + seconds
        with self._lock:
            count, applied, token = self._count, self._applied.get(server, 0), self._newest_text
            is_placed = self._unplaced <= applied
        if count == applied or (is_placed and carried == token):
            return
        if not is_placed:
            chosen = leader(seconds)
            if chosen is server:
                return
            token = head(chosen, pb.HeadRequest(), end - time.monotonic()).token
        try:
            head(server, pb.HeadRequest(at_least=token), end - time.monotonic())
        except OtherTimeline:
            pass  # a restore has ended the history of these writes
        with self._lock:
            self._applied[server] = max(count, self._applied.get(server, 0))


class ServersWire:
    """Calls to servers that share a journal. It finds the leader at the first call and after each failure."""

    def __init__(self, addresses: tuple[str, ...], reads: Reads, open_server: Callable[[str], Server]) -> None:
        self._given, self._open = addresses, open_server
        self._lock = threading.Lock()
        self._servers = {address: open_server(address) for address in addresses}
        """Address to server: the given ones, and leaders that a server has named."""
        self.credentials = self._servers[addresses[0]].credentials
        self._last = self._servers[addresses[0]]
        """The server that answered last of those that were chosen."""
        self._by_name: Server | None = None
        """The server that leads because another one has named it."""
        self._timeline = ""
        """The lake's timeline; empty before a server was chosen that shares a journal."""
        self._strangers = ""
        """The servers of another lake that the last search has passed over."""
        self._closed = False
        self._leader = _Choice(self._search, self._leading)
        self._reader = self._leader if reads == "leader" else _Choice(self._search, self._reading)
        self._prefers_followers = reads == "follower"
        self._own = None if reads == "leader" else _OwnWrites()

    @property
    def server(self) -> pb.HelloAnswer:
        return self._last.server

    @property
    def address(self) -> str:
        """Address of the server that answered last."""
        return self._last.address

    def greet(self, seconds: float) -> None:
        self._reader.get(seconds)

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        end = time.monotonic() + seconds
        server, request = self._server_of(method, request, seconds)
        try:
            answer = self._tried(server, method, request, end - time.monotonic())
        except NotLeader:
            if not self._asks_leader_next(method):
                raise
            server = self._leader.get(end - time.monotonic())
            answer = self._tried(server, method, request, end - time.monotonic())
        if server is not self._last and server is self._leader.server:
            self._last = server
        self._wrote(method, answer.token if method.name == "Commit" else "")
        if method.name in ("Plan", "Head") and answer.lease:
            answer.lease = f"{answer.lease}@{server.address}"
        return answer

    def _tried(self, server: Server, method: rpc.Method, request: Any, seconds: float) -> Any:
        """The answer of one server. An error that tells of the servers is noted."""
        try:
            return server.call(method, request, max(seconds, 0.0))
        except LakestoreError as error:
            self._failed(server, error)
            if error.applied == "unknown":
                self._wrote(method, "")
            raise

    def _asks_leader_next(self, method: rpc.Method) -> bool:
        """Whether the leader is asked after a server that follows has refused a read: it lacks commits until a time."""
        return method.reads and method.rule.server == Rule.BY_READS and self._reader is not self._leader

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        find_seconds = FIND_SECONDS if seconds is None else seconds
        server, request = self._server_of(method, request, find_seconds)
        has_begun = False
        try:
            with closing(self._streamed(server, method, request, seconds)) as answers:
                for answer in answers:
                    has_begun = True
                    yield answer
            return
        except NotLeader:
            if has_begun or not self._asks_leader_next(method):
                raise
        yield from self._streamed(self._leader.get(find_seconds), method, request, seconds)

    def _streamed(
        self, server: Server, method: rpc.Method, request: Any, seconds: float | None
    ) -> Generator[Any, None, None]:
        try:
            answers: Any = server.stream(method, request, seconds)
            with closing(answers):
                for answer in answers:
                    if method.streams_in:
                        if answer.HasField("error"):
                            self._failed(server, errors.error_of_message(answer.error))
                        self._wrote(method, answer.token)
                    yield answer
        except LakestoreError as error:
            self._failed(server, error)
            if error.applied == "unknown":
                self._wrote(method, "")
            raise

    def send(self, method: rpc.Method, request: Any) -> None:
        """Send it to the server that gave the request's lease, if this connection knows that server."""
        address, request = _named(request)
        server = self._servers.get(address)  # without the lock of `_at`, which the thread may hold
        if server is not None:
            server.send(method, request)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            servers = list(self._servers.values())
        with ExitStack() as ends:
            for server in servers:
                ends.callback(server.close)

    def _server_of(self, method: rpc.Method, request: Any, seconds: float) -> tuple[Server, Any]:
        """The server for a request, and the request as that server understands it."""
        end = time.monotonic() + seconds
        if self._closed:
            raise Stopped("the connection is closed: connect again")
        if method.rule.server == Rule.LESSOR and request.lease:
            address, request = _named(request)
            lessor = self._at(address) if address else None
            if lessor is not None:
                _check_there(lessor, seconds)
                return lessor, request
        if method.needs_leader(request):
            return self._leader.get(seconds), request
        server = self._reader.get(seconds)
        if self._own is not None and server is not self._leader.server:
            carried = request.at_least if method.name == "Lookup" else ""
            self._own.await_at(server, self._leader.get, self._head, end - time.monotonic(), carried=carried)
        return server, request

    def _head(self, server: Server, request: pb.HeadRequest, seconds: float) -> pb.HeadAnswer:
        answer: pb.HeadAnswer = self._tried(server, _HEAD, request, seconds)
        return answer

    def _wrote(self, method: rpc.Method, token: str) -> None:
        if self._own is not None and not method.reads and method.rule.server != Rule.LESSOR:
            self._own.add(token)

    def _failed(self, server: Server, error: LakestoreError) -> None:
        """Note what an error tells of the servers."""
        if isinstance(error, NotLeader):
            named = self._servers.get(error.leader)
            self._leader.drop(server)
            if named not in (None, server) and self._by_name is not server and self._leader.server is None:
                self._leader.server = self._by_name = named
        elif isinstance(error, Unavailable) and not isinstance(error, Stopped):
            self._leader.drop(server)
            self._reader.drop(server)
            if self._own is not None:
                self._own.forget(server)

    def _search(self) -> _Search:
        return _Search(lambda: list(self._servers.values()), ", ".join(self._given), lambda: self._strangers)

    def _leading(self, answers: Answers, is_settled: bool) -> Server | None:
        """The leader of the highest epoch that anybody knows; a server alone if there is none."""
        answers = self._of_one_lake(answers, is_settled)
        epoch = max((hello.epoch for hello in answers.values()), default=0)
        for server, hello in answers.items():
            if hello.role == "leader" and hello.epoch == epoch:
                return self._found(server, hello)
        if not is_settled:
            return None
        for server, hello in answers.items():
            if not hello.role:
                return self._found(server, hello)
        self._add_named(answers, epoch)
        return None

    def _reading(self, answers: Answers, is_settled: bool) -> Server | None:
        """The nearest server that may read."""
        answers = self._of_one_lake(answers, is_settled)
        if not is_settled or not answers:
            return None
        sharing = [server for server, hello in answers.items() if hello.role]
        followers = [server for server in sharing if answers[server].role == "follower"]
        chosen = next(iter((self._prefers_followers and followers) or sharing or answers))
        return self._found(chosen, answers[chosen])

    def _found(self, server: Server, hello: pb.HelloAnswer) -> Server:
        self._last, self._by_name = server, None
        if hello.role:
            self._timeline = hello.timeline
        return server

    def _of_one_lake(self, answers: Answers, is_settled: bool) -> Answers:
        """The answers of this connection's lake; none before it is known which one that is. Raises `Invalid` for the
        servers of two lakes, because either could get a write."""
        lakes = {hello.timeline: server.address for server, hello in answers.items()}
        # All given servers with one other timeline were restored. One of them alone may be a wrong server of the list.
        is_restored = len(lakes) == 1 and all(self._servers[address] in answers for address in self._given)
        if self._timeline and not is_restored:
            others = sorted(address for timeline, address in lakes.items() if timeline != self._timeline)
            self._strangers = f" ({', '.join(others)}: of another lake, take it out of the list)" if others else ""
            return {server: hello for server, hello in answers.items() if hello.timeline == self._timeline}
        if not is_settled:
            return {}
        if len(lakes) > 1:
            first, second = sorted(lakes.values())[:2]
            raise Invalid(f"{first} and {second} are servers of two lakes, which share no journal: name one of them")
        return answers

    def _add_named(self, answers: Answers, epoch: int) -> None:
        """Ask the leader that a follower names, too. Its name may be another one of a given server."""
        for hello in answers.values():
            if hello.leader and hello.epoch == epoch:
                self._at(hello.leader)

    def _at(self, address: str) -> Server | None:
        """The server at an address; None if this connection must not or cannot go there."""
        with self._lock:
            known = self._servers.get(address)
            if known is not None or self._closed or not self._may_tell(address):
                return known
            try:
                made = self._open(address)
            except Invalid:  # a name that is no address
                return None
            named = [other for other in self._servers if other not in self._given]
            if len(named) >= NAMED_MAX:
                self._servers.pop(named[0])  # the oldest name; its running calls keep its connection open
            self._servers[address] = made
            return made

    def _may_tell(self, address: str) -> bool:
        """Whether the token may go to an address that nobody gave: in the clear it leaves this machine only if it did
        already."""
        shown = self.credentials
        if shown.pem is not None or not shown.token or is_this_machine(address):
            return True
        return not all(is_this_machine(given) for given in self._given)


def _named(request: Any) -> tuple[str, Any]:
    """The address of the server that gave a request's lease, and the request as that server understands it. The address
    is empty if the lease names no server."""
    lease, mark, address = request.lease.rpartition("@")
    if not mark:
        return "", request
    bare = type(request)()
    bare.CopyFrom(request)
    bare.lease = lease
    return address, bare


def _check_there(lessor: Server, seconds: float) -> None:
    """Raise `PlanExpired` if the server that gave a lease is gone: the read is then planned at another one."""
    try:
        lessor.greet(min(seconds, ASK_SECONDS))
    except Stopped:
        raise
    except Unavailable as error:
        raise PlanExpired(f"the server at {lessor.address} that held this read is gone: plan it again") from error


@dataclass(frozen=True, slots=True)
class ServerRole:
    """One server's answer about the journal."""

    address: str
    role: str | None
    """`leader`, `follower`, or `alone` if it shares no journal; None without an answer."""
    leader: str | None = None
    """The address of the leader that it knows; it may be gone."""
    epoch: int | None = None
    lsn: int | None = None
    problem: str | None = None
    """Why it did not answer, or that the servers are of several lakes."""


def roles(address: str, credentials: Credentials = NOTHING) -> list[ServerRole]:
    """The answer of each server of a list, separated by commas, about the journal. They are asked side by side, for at
    most `ASK_SECONDS`."""
    addresses = addresses_of(address)
    with ThreadPoolExecutor(len(addresses), "lakestore-hello") as pool:
        outcomes = dict(zip(addresses, pool.map(lambda each: _hello(each, credentials), addresses), strict=True))
    lakes = {hello.timeline for hello in outcomes.values() if isinstance(hello, pb.HelloAnswer)}
    return [_role(address, outcome, is_one_lake=len(lakes) < 2) for address, outcome in outcomes.items()]


def _hello(address: str, credentials: Credentials) -> pb.HelloAnswer | LakestoreError:
    with closing(GrpcWire(address, credentials, reads="nearest")) as wire:
        try:
            return wire.hello(ASK_SECONDS)
        except LakestoreError as error:
            return error


def _role(address: str, outcome: pb.HelloAnswer | LakestoreError, *, is_one_lake: bool) -> ServerRole:
    if isinstance(outcome, LakestoreError):
        return ServerRole(address, None, problem=outcome.message)
    problem = None if is_one_lake else f"it has timeline {outcome.timeline}, and another server has another one"
    return ServerRole(address, outcome.role or "alone", outcome.leader or None, outcome.epoch, outcome.lsn, problem)


def connect(
    address: str, credentials: Credentials = NOTHING, *, call_seconds: float = CALL_SECONDS, reads: Reads = "leader"
) -> Transport:
    """A transport to one server's host and port, or to several, separated by commas, that share a journal."""
    if reads not in get_args(Reads):
        raise Invalid(f"reads= is one of {', '.join(get_args(Reads))}, not {reads!r}")
    addresses = addresses_of(address)
    if len(addresses) == 1:
        return transport_of(GrpcWire(addresses[0], credentials), call_seconds=call_seconds, knows_one=True)
    wire = ServersWire(addresses, reads, lambda each: GrpcWire(each, credentials, reads=reads))
    return transport_of(wire, call_seconds=call_seconds)
