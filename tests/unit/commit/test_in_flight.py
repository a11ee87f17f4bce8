"""Commits in flight beside a journal that is faster than the commit loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from lakestore_server.commit.durable import Totals
from lakestore_server.commit.in_flight import InFlight, PendingCommit
from lakestore_server.host.clock import RealClock
from lakestore_server.state.commit_record import CommitRecord, Unknown


class FastJournal:
    """A shared journal that has settled a record before `append` of it returns. It says each record once."""

    is_shared, settles_in_place = True, False

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stored = self.told = 0
        self.tells_first = False

    def append(self, lsn: int, record: object) -> None:
        with self.changed:
            self.stored = lsn
            self.changed.notify_all()
            if self.tells_first:
                self.changed.wait_for(lambda: self.told >= lsn)

    def settle(self, beyond: int) -> int:
        with self.changed:
            if not self.changed.wait_for(lambda: self.stored > beyond, 60.0):
                raise Unknown("the journal did not store a record in time")
            self.told = self.stored
            self.changed.notify_all()
            return self.told


@pytest.fixture
def journal() -> FastJournal:
    return FastJournal()


@pytest.fixture
def published() -> list[int]:
    return []


@pytest.fixture
def in_flight(journal: FastJournal, published: list[int]) -> Iterator[InFlight]:
    made = InFlight(
        journal=cast("Any", journal),
        durable=0,
        bytes_max=1 << 20,
        clock=RealClock(),
        totals=Totals(),
        publish=lambda commit: published.append(commit.record.lsn),
        made_room=lambda: None,
        wake=lambda: None,
    )
    yield made
    made.stop()


def commit(lsn: int) -> PendingCommit:
    return PendingCommit(CommitRecord(lsn, 0), cast("Any", None), [], answers=[(Future(), lsn)])


def settle_early(in_flight: InFlight, journal: FastJournal) -> PendingCommit:
    """Add two commits. The second is settled together with the first, before it is in flight."""
    journal.tells_first = False
    in_flight.add(commit(1), [b"1"])
    journal.tells_first = True
    asked = threading.Thread(target=in_flight.go_on, kwargs={"in_place": False})
    with journal.changed:
        journal.stored = 0  # the first is not stored before the second
        asked.start()
    asked.join()
    second = commit(2)
    in_flight.add(second, [b"2"])
    return second


def test_a_commit_that_was_settled_before_it_was_in_flight_is_answered(
    in_flight: InFlight, journal: FastJournal, published: list[int]
) -> None:
    second = settle_early(in_flight, journal)
    in_flight.go_on(in_place=False)
    assert second.answers[0][0].result(timeout=30) == 2
    assert published == [1, 2]


def test_a_leader_that_steps_down_publishes_what_was_settled(
    in_flight: InFlight, journal: FastJournal, published: list[int]
) -> None:
    """The journal says it to nobody again, so the next record would not follow."""
    second = settle_early(in_flight, journal)
    assert in_flight.undo() == []
    assert second.answers[0][0].result(timeout=30) == 2
    assert published == [1, 2]
