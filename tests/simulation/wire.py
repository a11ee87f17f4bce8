"""The network between clients and the server: messages take their time, connections break, and nothing is repeated.

A call is a message to the server, a task of the server's process that answers it, and a message back. A connection
that breaks tells the client at once, while what was sent may still arrive: late, or never. A call that falls into a
hole ends with its deadline, or when the keepalive has missed its answer. Errors are those that a client of gRPC sees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakestore.client.credentials import NOTHING
from lakestore.client.scope import SCOPE, Scope
from lakestore.errors import Invalid, LakestoreError, Stopped
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.commit_message import CommitMessage, encoded, taken_apart
from lakestore.wire.row_messages import reader_of
from lakestore_server.commit.engine import FOR_LEADER
from lakestore_server.service import Service, encoder_of
from tests.simulation.marks import Watcher
from tests.simulation.world import Killed, Process, Task, World

KEEPALIVE_SECONDS = 25.0
HELLO_SECONDS = 10.0
WINDOW = 4
"""Messages of a stream that are sent before the client has taken one, unless the network is narrower."""
HELLO = rpc.METHODS["Hello"]


@dataclass
class Weather:
    """The chances of the network, of each message; `delay` is the mean, in seconds."""

    delay: float = 200e-6
    lost: float = 0.0
    """The connection breaks before the request arrives."""
    late: float = 0.0
    """The connection breaks, and the request arrives all the same, within some seconds."""
    unanswered: float = 0.0
    """The connection breaks behind the request's arrival, before the answer comes."""
    hole: float = 0.0
    """Nothing arrives, and nobody is told."""
    slow: float = 0.0
    """The message takes a second, about."""
    mute: float = 0.0
    """The answer of a call that writes falls into a hole: the client waits for as long as it cares to."""

    def calm(self) -> None:
        """No faults from here on."""
        self.lost = self.late = self.unanswered = self.hole = self.slow = self.mute = 0.0


@dataclass(eq=False)
class Life:
    """One process of the server, from its start to its end."""

    number: int
    process: Process
    service: Service | None
    """None until it serves."""
    boxes: dict[int, Box] = field(default_factory=dict)
    """Calls on their way, by their numbers."""


class Box:
    """The client's end of one call: what has come of it so far. Ended from the client's side by `cancel`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.number = network.numbered()
        self.items: deque[bytes] = deque()
        self.failure: LakestoreError | None = None
        self.is_over = self.is_cancelled = False
        self.room = network.window
        self.waiting: Task | None = None
        self.sender: Task | None = None
        self.server: Process | None = None
        """The process that answers, once the call has arrived."""
        self.is_gone = False
        """Whether the server has heard that the client waits no more."""
        self._callbacks: list[Callable[[], None]] = []
        self._asks: deque[bytes] = deque()
        self._is_asked = False
        """Whether the last of the client's messages has arrived."""
        self.taker: Task | None = None

    def came(self, data: bytes) -> None:
        """A message has arrived."""
        if not self.is_over:
            self.items.append(data)
            self._wake()

    def ended(self, failure: LakestoreError | None) -> None:
        """The end has arrived, or the connection broke."""
        if not self.is_over:
            self.is_over, self.failure = True, failure
            self._wake()
            self._network.world.later(self._network.delay(), self._left)

    def _left(self) -> None:
        """The server hears that the client waits no more."""
        world, self.is_gone = self._network.world, True
        for task in (self.sender, self.taker):
            if task is not None:
                world.wake(task)
        if self._callbacks and self.server is not None and not self.server.is_dead:
            world.spawn("rpc-gone", self.server, self._call_back)

    def _call_back(self) -> None:
        for callback in self._callbacks:
            callback()

    def cancel(self) -> None:
        """Wait no longer for it."""
        self.is_cancelled = True
        self.ended(None)

    def _wake(self) -> None:
        if self.waiting is not None:
            self._network.world.wake(self.waiting)

    def wait(self, until: float | None) -> bool:
        """Wait for a message or the end; False when the time is over."""
        world = self._network.world
        while not self.items and not self.is_over:
            self.waiting = world.current
            woken = world.block(until, self)
            self.waiting = None
            if not woken and not self.items and not self.is_over:
                return False
        return True

    def took(self) -> None:
        """The client has taken a message: there is room for another one."""
        self.room += 1
        if self.sender is not None:
            self._network.world.wake(self.sender)

    # The messages of a client's own stream, as the server takes them.

    def asked(self, data: bytes | None) -> None:
        """A message of the client has arrived; None behind the last one."""
        if data is None:
            self._is_asked = True
        else:
            self._asks.append(data)
        if self.taker is not None:
            self._network.world.wake(self.taker)

    def taken(self, method: rpc.Method) -> Iterator[Any]:
        """The client's messages, until it has said its last word or is gone."""
        world = self._network.world
        while True:
            while not (self._asks or self._is_asked or self.is_gone):
                self.taker = world.current
                world.block(None, self)
                self.taker = None
            if self.is_gone or not self._asks:
                return
            left, rows = taken_apart(self._asks.popleft())
            yield CommitMessage(method.request.FromString(left), rows)

    # The listener of a change stream, as the server sees the client.

    def is_active(self) -> bool:
        """Whether the client still listens, as far as the server has heard."""
        return not self.is_gone

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call back when it listens no more."""
        self._callbacks.append(callback)
        return not self.is_gone


class Network:
    """All connections to one machine."""

    def __init__(self, world: World, watcher: Watcher | None = None, address: str = "sim") -> None:
        self.world, self.weather, self.address = world, Weather(), address
        self.watcher = watcher or Watcher(world)
        self.life: Life | None = None
        """The server that listens."""
        self.window = WINDOW
        self._numbers = 0

    def numbered(self) -> int:
        """The next number of a call."""
        self._numbers += 1
        return self._numbers

    def delay(self) -> float:
        """The time of one message."""
        chance, weather = self.world.chance, self.weather
        seconds = chance.expovariate(1.0 / weather.delay)
        if weather.slow and chance.random() < weather.slow:
            seconds += chance.expovariate(1.0)
        return seconds

    def happens(self, chance: float) -> bool:
        """Whether something of that chance happens."""
        return chance > 0.0 and self.world.chance.random() < chance

    def refusal(self, method: rpc.Method, error: LakestoreError) -> LakestoreError:
        """The error as it comes to the client."""
        self.watcher.refused(method, error)
        return errors.error_of_fields(errors.error_fields(error))

    def ended(self, life: Life) -> None:
        """The server's process has ended: its connections break."""
        if self.life is life:
            self.life = None
        boxes, life.boxes = life.boxes, {}
        for box in boxes.values():
            reset = _broken("recvmsg: Connection reset by peer", reads=False)
            self.world.later(self.delay(), partial(box.ended, reset))


def _verb(life: Life, method: rpc.Method) -> Callable[..., Any]:
    assert life.service is not None
    return life.service.verb(method.name)


def _broken(details: str, *, reads: bool) -> LakestoreError:
    return errors.unpack_error({}, "UNAVAILABLE", details, reads=reads, address="sim")


class SimWire:
    """A `Wire` of one client process."""

    def __init__(self, network: Network, process: Process, *, asks_leader: bool = False) -> None:
        self._network, self._world, self.process = network, network.world, process
        self._asks_leader = asks_leader
        self.credentials, self.address = NOTHING, network.address
        self.server = pb.HelloAnswer()
        self._is_greeted = self._is_closed = False
        self._open: dict[int, Box] = {}

    def greet(self, seconds: float) -> None:
        """Say hello, unless the server was greeted on this connection."""
        if self._is_closed:
            raise _closed()
        if not self._is_greeted:
            hello = pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL)
            self.server = self._call(HELLO, hello, min(seconds, HELLO_SECONDS))
            self._is_greeted = True

    def hello(self, seconds: float) -> pb.HelloAnswer:
        """Greet the server again; its answer."""
        self._is_greeted = False
        self.greet(seconds)
        return self.server

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        """The answer, within so many seconds."""
        end = self._world.now + seconds
        self.greet(seconds)
        return self._call(method, request, end - self._world.now)

    def _call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        box = Box(self._network)
        scope = SCOPE.get()
        self._open[box.number] = box
        try:
            if scope is not None:
                scope.add(box)
            self._send(box, method, request.SerializeToString())
            if not box.wait(self._world.now + seconds):
                self._lost()
                raise errors.unpack_error({}, "DEADLINE_EXCEEDED", "", reads=method.reads)
        finally:
            self._open.pop(box.number, None)
            if scope is not None:
                scope.discard(box)
            box.ended(None)
        if box.items:
            return method.answer.FromString(box.items.popleft())
        raise self._failed(box, method)

    def _failed(self, box: Box, method: rpc.Method) -> LakestoreError:
        """The error of a call that has ended without an answer."""
        if box.is_cancelled or self._is_closed:
            error: LakestoreError = _closed() if self._is_closed else Invalid("the call was cancelled")
            error.applied = "no" if method.reads else "unknown"
            return error
        failure = box.failure
        if failure is None:
            return _broken("the stream ended", reads=method.reads)
        if failure.kind == "Unavailable" and "does not answer" in failure.message:
            self._lost()
            failure.applied = "no" if method.reads else "unknown"
        return failure

    def _lost(self) -> None:
        self._is_greeted = False

    def _send(self, box: Box, method: rpc.Method, data: bytes) -> None:
        """Put a request on its way, as the weather allows."""
        network, world, weather, life = self._network, self._world, self._network.weather, self._network.life
        if life is None:
            world.later(network.delay(), partial(box.ended, _broken("connection refused", reads=True)))
            return
        if network.happens(weather.hole):
            world.later(KEEPALIVE_SECONDS, partial(box.ended, _broken("keepalive watchdog timeout", reads=False)))
            return
        delay = network.delay()
        broken = partial(box.ended, _broken("Socket closed", reads=False))
        if network.happens(weather.lost):
            world.later(delay, broken)
            return
        if network.happens(weather.late):
            world.later(delay, broken)
            delay += world.chance.expovariate(1.0)
        answers = not network.happens(weather.unanswered)
        life.boxes[box.number] = box
        world.later(delay, partial(self._arrive, life, box, method, data, answers))

    def _arrive(self, life: Life, box: Box, method: rpc.Method, data: bytes, answers: bool) -> None:
        if not life.process.is_dead:
            box.server = life.process
            serve = self._serve_stream if method.streams_out else self._serve
            self._world.spawn(f"rpc-{method.name}", life.process, partial(serve, life, box, method, data, answers))

    def _serve(self, life: Life, box: Box, method: rpc.Method, data: bytes, answers: bool) -> None:
        """The server's part of a call, in a task of its process."""
        failure, answer = None, b""
        FOR_LEADER.set(self._asks_leader)
        try:
            request = method.request.FromString(data)
            answer = _verb(life, method)(request).SerializeToString()
            self._network.watcher.answered(method, request, answer)
        except Killed:
            raise
        except LakestoreError as error:
            failure = self._network.refusal(method, error)
        except Exception as error:  # the edge: whatever fails, the client is told
            self._world.note(f"a defect of {method.name}: {type(error).__name__}: {error}")
            failure = errors.defect(error)
        life.boxes.pop(box.number, None)
        delay = self._network.delay()
        if not answers:
            self._world.later(delay, partial(box.ended, _broken("Socket closed", reads=False)))
        elif not method.reads and self._network.happens(self._network.weather.mute):
            self._world.later(KEEPALIVE_SECONDS, partial(box.ended, _broken("keepalive watchdog timeout", reads=False)))
        elif failure is not None:
            self._world.later(delay, partial(box.ended, failure))
        else:
            self._world.later(delay, partial(box.came, answer))

    # Streams

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The messages of a stream, which is cancelled when its reader goes."""
        self.greet(HELLO_SECONDS if seconds is None else seconds)
        box = Box(self._network)
        until = None if seconds is None else self._world.now + seconds
        scope = SCOPE.get() or Scope()
        self._open[box.number] = box
        try:
            with scope.holding(box):
                self._send(box, method, b"" if method.streams_in else request.SerializeToString())
                if method.streams_in:
                    self._world.spawn(f"asks-{method.name}", self.process, partial(self._ask, box, request))
                while box.wait(until):
                    if not box.items:
                        break
                    data = box.items.popleft()
                    self._world.later(self._network.delay(), box.took)
                    yield reader_of(method)(data)
        finally:
            self._open.pop(box.number, None)
            is_whole = box.is_over and not box.is_cancelled and box.failure is None
            if not box.is_over:
                self._world.later(self._network.delay(), box.cancel)
        if not box.is_over:
            raise errors.unpack_error({}, "DEADLINE_EXCEEDED", "", reads=method.reads)
        if not is_whole:
            raise self._failed(box, method)

    def _ask(self, box: Box, requests: Iterator[Any]) -> None:
        """Send a client's messages in their order, until the connection breaks."""
        world, network, at = self._world, self._network, 0.0
        for request in requests:
            at = max(at, world.now + network.delay())
            if network.happens(network.weather.lost):
                box.ended(_broken("Socket closed", reads=False))
            if box.is_over:
                return
            world.later(at - world.now, partial(box.asked, encoded(request)))
        world.later(max(at - world.now, network.delay()), partial(box.asked, None))

    def _serve_stream(self, life: Life, box: Box, method: rpc.Method, data: bytes, answers: bool) -> None:
        """The server's part of a stream."""
        world, network = self._world, self._network
        request: Any = box.taken(method) if method.streams_in else method.request.FromString(data)
        failure, at = None, 0.0
        left = None if answers else int(world.chance.random() * 5)
        try:
            verb = _verb(life, method)
            items = verb(request, box) if method.name == "Changes" else verb(request)
            for item in items:
                while not box.room and not box.is_gone:
                    box.sender = world.current
                    world.block(None, box)
                    box.sender = None
                if box.is_gone:
                    items.close()
                    break
                box.room -= 1
                at = max(at, world.now + network.delay())
                if left == 0 or network.happens(network.weather.unanswered / 4):
                    items.close()
                    failure = _broken("Socket closed", reads=False)
                    break
                left = None if left is None else left - 1
                world.later(at - world.now, partial(box.came, encoder_of(method)(item)))
        except Killed:
            raise
        except LakestoreError as error:
            failure = self._network.refusal(method, error)
        except Exception as error:  # the edge, as for a call
            world.note(f"a defect of {method.name}: {type(error).__name__}: {error}")
            failure = errors.defect(error)
        life.boxes.pop(box.number, None)
        world.later(max(at - world.now, network.delay()), partial(box.ended, failure))

    def send(self, method: rpc.Method, request: Any) -> None:
        """Send a request whose answer nobody waits for, in a task of its own if the server must be greeted first."""
        if self._is_greeted:
            self._part(method, request)
        else:
            self._world.spawn("parting", self.process, partial(self._part, method, request))

    def _part(self, method: rpc.Method, request: Any) -> None:
        with suppress(LakestoreError):
            self.greet(HELLO_SECONDS)
            self._send(Box(self._network), method, request.SerializeToString())

    def close(self) -> None:
        """End every call; later ones are `Stopped`."""
        self._is_closed = True
        for box in list(self._open.values()):
            box.cancel()


def _closed() -> LakestoreError:
    return Stopped("the connection is closed: connect again")
