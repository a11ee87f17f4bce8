"""A follower's holds: the leader keeps what reads at the follower need of the lake.

- A lease on lake snapshots is granted once the leader holds them. One hold serves all leases with the same need, and
  needs that wait at the same time go to the leader in one call.
- A hold is asked for again when less than half of its time is left. `duties/hold_renewal.py` does so for running reads.
- Without a leader a hold that lasts serves on: the next leader expires nothing for as long as a hold can last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from lakestore.errors import LakestoreError, Unavailable
from lakestore_server.host.clock import Clock
from lakestore_server.read.leases import LakeHold, LeaseConflict

HOLD_SECONDS = 120.0
"""The longest hold. A follower that ends delays an expiry by no more than this."""
LEAST_SECONDS = 1.0
BUSY_SECONDS = 1.0
"""For so long no call goes to a leader that did not answer."""
BEHIND_SECONDS = 5.0
"""A read waits for so long until this server knows that a snapshot expired."""
ASK_AGAIN_SECONDS = 1.0
"""A need that the leader did not hold is not asked for again before. An expiry at that moment may have been refused."""
FORGET_SECONDS = 60.0
CALL_HOLDS_MAX = 5_000
"""Needs of one call."""


def hold_seconds(grace_seconds: float) -> float:
    """The length of a hold. It is no longer than the grace, in which a new leader expires nothing."""
    return max(min(HOLD_SECONDS, grace_seconds), LEAST_SECONDS)


@dataclass(frozen=True, slots=True)
class HoldOutcome:
    """The leader's answer."""

    lost: Collection[LakeHold]
    """Needs that are not in the lake any more."""
    seconds: float
    """For which the others are held, from the call on."""


AskLeader = Callable[[Sequence[LakeHold], float], HoldOutcome]
"""Asks the leader to hold needs for some seconds; a `LakestoreError` if it cannot be asked."""


class LeaderHolds:
    """The holds of a server at its leader. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Clock,
        seconds: float,
        ask: AskLeader,
        is_leading: Callable[[], bool],
        has_lake: Callable[[], bool],
    ) -> None:
        """`has_lake` says whether some table has a snapshot: without one a cut needs no lake."""
        self._clock, self.seconds, self._ask = clock, seconds, ask
        self._is_leading, self._has_lake = is_leading, has_lake
        self._changed = threading.Condition()
        self._held: dict[LakeHold, float] = {}
        """Need to the monotonic time at which its hold ends."""
        self._snapshots: dict[tuple[str, int], float] = {}
        """The same of a snapshot, whatever is held of the log beside it."""
        self._lost: dict[LakeHold, tuple[float, float]] = {}
        """Need to the times at which the leader first and last said that it is gone."""
        self._waiting: dict[LakeHold, None] = {}
        self._is_asking = False
        self._failure: LakestoreError | None = None
        self._failed_at = float("-inf")

    def secure(self, holds: Iterable[LakeHold]) -> None:
        """Return once the leader holds these needs, at once if it does. `LeaseConflict` if some are gone: choose from a
        newer view. `Unavailable` if the leader cannot be asked and no hold lasts."""
        wanted = [hold for hold in holds if hold.cut is None or self._has_lake()]
        while wanted and not self._is_leading():
            with self._changed:
                now = self._clock.monotonic()
                self._raise_lost(wanted, now)
                missing = [hold for hold in wanted if self._until(hold) - now < self.seconds / 2]
                if not missing or self._is_refused(missing, now):
                    return
                self._waiting.update(dict.fromkeys(missing))
                if self._is_asking:
                    self._changed.wait()
                    continue
                batch = list(self._waiting)[:CALL_HOLDS_MAX]
                self._is_asking = True
            self._ask_once(batch)

    def _until(self, hold: LakeHold) -> float:
        if hold.table and not hold.starts:
            return self._snapshots.get((hold.table, hold.snapshot), float("-inf"))
        return self._held.get(hold, float("-inf"))

    def _raise_lost(self, wanted: Sequence[LakeHold], now: float) -> None:
        lost = [self._lost[hold] for hold in wanted if hold in self._lost]
        since = min((first for first, last in lost if now - last < ASK_AGAIN_SECONDS), default=None)
        if since is None:
            return
        if now - since < BEHIND_SECONDS:
            raise LeaseConflict("the leader has expired what this read needs: plan again")
        raise Unavailable(
            f"this server follows and has not applied for {now - since:.0f} s that the lake's snapshot expired: read at"
            " another server",
            retry_after=BUSY_SECONDS,
        )

    def _is_refused(self, missing: Sequence[LakeHold], now: float) -> bool:
        """After a failed call, for a moment: whether the holds that last are enough; `Unavailable` if they are not."""
        if self._failure is None or now - self._failed_at >= BUSY_SECONDS:
            return False
        if all(self._until(hold) > now for hold in missing):
            return True
        raise Unavailable(
            "the leader cannot be asked to keep the lake's snapshot for this read: read at another server, or again"
            f" ({self._failure.message})",
            retry_after=BUSY_SECONDS,
        )

    def _ask_once(self, batch: Sequence[LakeHold]) -> None:
        try:
            self._exchange(batch)
        finally:
            with self._changed:
                for hold in batch:
                    self._waiting.pop(hold, None)
                self._is_asking = False
                self._changed.notify_all()

    def _exchange(self, batch: Sequence[LakeHold]) -> None:
        """Ask the leader and note its answer. A failure is noted too."""
        sent = self._clock.monotonic()
        try:
            outcome = self._ask(batch, self.seconds)
        except LakestoreError as error:
            with self._changed:
                self._failure, self._failed_at = error, self._clock.monotonic()
            return
        with self._changed:
            self._failure = None
            self._forget(sent)
            lost = frozenset(outcome.lost)
            for hold in batch:
                if hold in lost:
                    self._lost[hold] = self._lost.get(hold, (sent, sent))[0], sent
                    self._held.pop(hold, None)
                    continue
                self._lost.pop(hold, None)
                until = self._held[hold] = sent + outcome.seconds
                if hold.table:
                    self._snapshots[hold.table, hold.snapshot] = until

    def _forget(self, now: float) -> None:
        self._held = {hold: until for hold, until in self._held.items() if until > now}
        self._snapshots = {place: until for place, until in self._snapshots.items() if until > now}
        self._lost = {hold: times for hold, times in self._lost.items() if now - times[1] < FORGET_SECONDS}

    def renew(self, needs: Iterable[LakeHold]) -> list[LakeHold]:
        """Ask for the needs of running reads once more; returns the ones that are gone. Raises the `LakestoreError` of
        a leader that cannot be asked."""
        wanted = [hold for hold in needs if hold.cut is None or self._has_lake()]
        for start in range(0, len(wanted), CALL_HOLDS_MAX):
            if self._is_leading():
                return []
            self._exchange(wanted[start : start + CALL_HOLDS_MAX])
            with self._changed:
                if self._failure is not None:
                    raise self._failure
        with self._changed:
            return [hold for hold in wanted if hold in self._lost]
