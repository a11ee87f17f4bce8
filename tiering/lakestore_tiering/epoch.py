"""The tierer's epoch: acquired, renewed by a daemon thread, and released.

Each renewal tells the server which tables cannot be tiered. Only the server's word ends an epoch: an epoch that was not
renewed in time may still be ours when the server is back, and the server judges its commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from lakestore.client.transport import Transport
from lakestore.errors import Conflict, Fenced, LakestoreError, Unavailable
from lakestore.v1.lakestore_pb2 import RunningRound, TableUpkeep, TiererRequest, TierProblem

POLL_SECONDS = 0.25
RENEWALS_PER_EPOCH = 4
ALL_UPKEEP_EVERY = 8
_PROBLEMS_SINCE = 5
"""Protocol of the first server that accepts `problems`, `upkeep` and `running`."""


class HeldEpoch:
    """The epoch of one holder. Thread-safe."""

    def __init__(self, transport: Transport, holder: str, seconds: int, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._holder = holder
        self.seconds = seconds
        """Time to live of the epoch without a renewal."""
        self._clock = clock
        self._epoch = 0
        self._until = 0.0
        self._problems: tuple[TierProblem, ...] = ()
        self._running: tuple[RunningRound, ...] = ()
        self._upkeep: dict[str, TableUpkeep] = {}
        """The upkeep of each table that the server does not know yet."""
        self._told: dict[str, TableUpkeep] = {}
        self._asked = 0
        self._defect: Exception | None = None
        """The unexpected error that ended the renewals."""
        self._ended = threading.Event()
        self._wake = threading.Event()

    def epoch(self) -> int:
        """The epoch. Raises `Fenced` if it is lost, `Unavailable` if it cannot be renewed now."""
        self._check_renewed()
        if not self._epoch or self._ended.is_set():
            raise Fenced("this tierer's epoch has ended: start a new one")
        if self._clock() >= self._until:
            self._ask()
        return self._epoch

    def confirm(self) -> None:
        """Ask the server. Raises `Fenced` if another process has the epoch or the renewals ended."""
        self._check_renewed()
        self._ask()

    def report(self, problems: Sequence[TierProblem]) -> None:
        """Tell the server which tables cannot be tiered, now and with each renewal."""
        if tuple(problems) != self._problems:
            self._problems = tuple(problems)
            self._wake.set()

    def report_running(self, running: Sequence[RunningRound]) -> None:
        """Tell the server which rounds run, now and with each renewal."""
        self._running = tuple(running)
        self._wake.set()

    def report_upkeep(self, upkeep: Sequence[TableUpkeep]) -> None:
        """Tell the server the state of upkeep with the next renewal. All tables are told again every few renewals, for
        a server that was started meanwhile.
        """
        self._upkeep = {part.table_uuid: part for part in upkeep}

    def acquire(self, wait_seconds: float, stop: threading.Event | None = None) -> int:
        """Acquire the epoch. Raises the server's error if another holder still has it after `wait_seconds`."""
        if self._epoch:
            return self.epoch()
        limit = self._clock() + wait_seconds
        while True:
            try:
                self._ask()
                break
            except (Unavailable, Conflict):
                if self._clock() >= limit or (stop is not None and stop.is_set()):
                    raise
                time.sleep(min(POLL_SECONDS, self.seconds / RENEWALS_PER_EPOCH))
        threading.Thread(target=self._renew, name="lakestore-epoch", daemon=True).start()
        return self._epoch

    def release(self) -> None:
        """Release the epoch. Idempotent."""
        if self._epoch and not self._ended.is_set():
            if self._unsaid():
                with suppress(LakestoreError):
                    self._ask()
            self._ended.set()
            self._wake.set()
            with suppress(LakestoreError):
                self._transport.release_tierer(TiererRequest(holder=self._holder, epoch=self._epoch))

    def _check_renewed(self) -> None:
        if self._defect is not None:
            why = f"{type(self._defect).__name__}: {self._defect}"
            raise Fenced(f"this tierer cannot renew its epoch any more ({why}): start a new one") from self._defect

    def _request(self) -> TiererRequest:
        request = TiererRequest(holder=self._holder, seconds=self.seconds, epoch=self._epoch)
        if self._transport.server.protocol >= _PROBLEMS_SINCE:
            request.problems.extend(self._problems)
            request.running.extend(self._running)
            request.upkeep.extend(self._unsaid())
        return request

    def _unsaid(self) -> list[TableUpkeep]:
        return [part for uuid, part in self._upkeep.items() if self._told.get(uuid) != part]

    def _ask(self) -> None:
        asked = self._clock()
        self._asked += 1
        if self._asked % ALL_UPKEEP_EVERY == 0:
            self._told = {}
        request = self._request()
        try:
            answer = self._transport.acquire_tierer(request)
        except Fenced:
            self._ended.set()
            raise
        self._epoch, self._until = answer.epoch, asked + answer.seconds
        self._told = {**self._told, **{part.table_uuid: part for part in request.upkeep}}

    def _renew(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self.seconds / RENEWALS_PER_EPOCH)
            self._wake.clear()
            if self._ended.is_set():
                return
            try:
                self._ask()
            except LakestoreError:
                continue  # only Fenced ends the epoch; after other failures it lasts until its time is over
            except Exception as error:  # boundary of the thread: the error ends rounds and service
                self._defect = error
                return
