"""Real servers of this process that share one journal, on a log in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from lakestore.limits import Limits
from lakestore_server.host.clock import Clock, RealClock
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_server.state.commit_record import Unknown
from lakestore_server.state.judge import ForeignLog
from tests.support.waiting import first_of, until

LEASE_SECONDS = 2.0
LONG_LEASE_SECONDS = 10.0
"""For tests that lose no leader: the one that there is goes on to lead on a busy machine."""


class MemoryLog:
    """The messages. Nothing is lost and nothing is late."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: list[bytes] = []
        self.first = 0
        """The position of the first message that was not removed."""


class MemoryEnd:
    """One server's end of a log: `Log` of the server."""

    kind, part_bytes = "memory", 1 << 20

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._untold: deque[tuple[Callable[[int], None], int]] = deque()
        self._has_lost = False
        """Whether a message was sent since the end was cut."""
        self.is_cut = False
        """Whether nothing comes and goes any more, as for a machine that is gone."""

    def open(self, known: str) -> str:
        """It is the only log."""
        return known or "memory"

    def confirm(self) -> None:
        """It is there."""

    def bounds(self) -> tuple[int, int]:
        return self._log.first, len(self._log.messages)

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        """What is there from a position on; waits for the first message."""
        if start < self._log.first:
            raise ForeignLog(f"position {start} is not in the log any more")
        with self._log.changed:
            self._log.changed.wait_for(lambda: len(self._log.messages) > start and not self.is_cut, seconds)
            found = [] if self.is_cut else self._log.messages[start:]
        yield from enumerate(found, start)

    def stop_reading(self) -> None:
        """Nothing is fetched ahead."""

    def prepare(self) -> None:
        """It is ready."""

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        """Store it, unless the end is cut."""
        with self._log.changed:
            self._has_lost = self._has_lost or self.is_cut
            if not self.is_cut:
                self._untold.append((stored, len(self._log.messages)))
                self._log.messages.append(bytes(message))
                self._log.changed.notify_all()
        return True

    def poll(self, seconds: float) -> None:
        """Tell what was stored, and whether something was lost."""
        with self._log.changed:
            if not self._untold:
                self._log.changed.wait(seconds)
            told, self._untold = self._untold, deque()
        for stored, position in told:
            stored(position)
        if self._has_lost:
            raise Unknown("the end of the log is cut")

    def stop_sending(self) -> None:
        """Tell nothing of earlier messages."""
        with self._log.changed:
            self._untold.clear()
            self._has_lost = False

    def remove_before(self, position: int) -> None:
        """A server that needs an earlier message is refused."""
        self._log.first = max(self._log.first, position)

    def close(self) -> None:
        """Nothing is held."""


class Replicas:
    """Servers on one log. A context manager. Any of them may lead."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        clocks: Sequence[Clock] = (),
        *,
        lease_seconds: float = LEASE_SECONDS,
        **said: Any,
    ) -> None:
        """`clocks` are the clocks of the first servers. With `clocks` a server confirms its clock after the usual time,
        otherwise at once. `said` are further settings of all servers."""
        self._lease_seconds = lease_seconds
        limits = Limits() if clocks else Limits(clock_confirm_seconds=0)
        self._clocks, self._said = clocks, {"warehouse": str(root / "warehouse"), "limits": limits, **said}
        self.log, self._root, self._all = MemoryLog(), root, ExitStack()
        self.servers: list[Server] = []
        self.fatal: list[tuple[int, BaseException]] = []
        """(number of a server, the error for which its process would end)."""
        self.ends: list[MemoryEnd] = []
        for number in range(count):
            self.start(number)
            until(lambda: self.leader() is not None, "the first leader")

    def start(self, number: int) -> None:
        """Start the next server, in its folder `number`."""
        self.start_on(self._root / str(number), number)

    def start_on(self, folder: Path, number: int = 1 << 30, warehouse: Path | None = None) -> None:
        """Start the next server on a folder; `number` is that of its clock."""
        end = MemoryEnd(self.log)
        clock = self._clocks[number] if number < len(self._clocks) else RealClock()
        said = self._said if warehouse is None else {**self._said, "warehouse": str(warehouse)}
        made = Server(
            Settings(folder, port=0, http_port=0, **said),
            clock=clock,
            journal_of=lambda *_: SharedJournal(end, clock, self._lease_seconds),
            on_fatal=partial(self._fatal, len(self.servers)),
        )
        self._all.callback(self.stop, made, end)
        made.start()
        self.servers.append(made)
        self.ends.append(end)

    def _fatal(self, number: int, error: BaseException) -> None:
        self.fatal.append((number, error))

    @property
    def first(self) -> int:
        """The position of the first message of the log."""
        return self.log.first

    def leader(self) -> int | None:
        """The number of the server that leads; None while nobody does, or somebody who was cut."""
        return next(iter(self._leading()), None)

    def _leading(self) -> list[int]:
        return [i for i, server in enumerate(self.servers) if server.engine.is_leading and not self.ends[i].is_cut]

    def depose(self) -> None:
        """Another server leads, and the leader so far lives on as a follower."""
        number = first_of(self._leading, "a leader")
        self.ends[number].is_cut = True
        until(lambda: self.leader() is not None, "the next leader")
        self.ends[number].is_cut = False
        until(lambda: not self.servers[number].engine.is_leading, "the end of the leader")

    def lose(self) -> None:
        """Lose the machine of the leader."""
        self.cut(first_of(self._leading, "a leader"))

    def cut(self, number: int) -> None:
        """The machine of this server is gone: nobody reaches it, and it reaches nobody."""
        self.ends[number].is_cut = True
        port = self.servers[number]._grpc
        assert port is not None
        port.stop(0.0)

    def address(self, number: int) -> str:
        """Host and gRPC port."""
        return self.servers[number].about["grpc"]

    def http(self, number: int) -> str:
        """Host and HTTP port."""
        return self.servers[number].about["http"]

    @staticmethod
    def stop(server: Server, end: MemoryEnd) -> None:
        """Stop a server; it may be stopped already."""
        end.is_cut = False  # a server that is cut would wait for the log before it ends
        server.close(checkpoint=False)

    @property
    def addresses(self) -> str:
        """The list that a client is given."""
        return ",".join(self.address(number) for number in range(len(self.servers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()
