"""One presenting at a time of each table, and who may wait for its result: never a stale one.

A flight sees the view as of when its turn comes. A load may wait for a flight that has not looked yet, or that looked
at a view which has everything that the load's own view has; else it waits until the flight is over, and then one of
those that wait flies for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from lakestore_server.state.view import View

T = TypeVar("T")


class Flight(Generic[T]):
    """One presenting under way."""

    def __init__(self) -> None:
        self.lsn: int | None = None
        """The view that it looked at; None as long as it has not."""
        self.result: Future[T] = Future()

    def covers(self, lsn: int) -> bool:
        """Whether the result shows all that a view at `lsn` has."""
        return self.lsn is None or self.lsn >= lsn


class SingleFlight(Generic[T]):
    """The flights of one server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Flight[T]] = {}

    def joined(self, what: Hashable, lsn: int, fly: Callable[[Flight[T]], T]) -> T | None:
        """The result of a flight that covers `lsn`, begun with `fly` if none is under way.

        None once a flight is over that does not cover it: look again, what it left may do. `fly` sets the flight's
        `lsn` by `look`.
        """
        with self._lock:
            flight = self._flights.get(what)
            is_mine = flight is None
            if flight is None:
                flight = self._flights[what] = Flight()
            is_covering = flight.covers(lsn)
        if is_mine:
            return self._flown(what, flight, fly)
        if is_covering:
            return flight.result.result()
        flight.result.exception()  # the end of it, whatever that is
        return None

    def look(self, flight: Flight[T], view_of: Callable[[], View]) -> View:
        """The view that a flight looks at, noted: from now on loads that know of more do not join."""
        with self._lock:
            view = view_of()
            flight.lsn = view.lsn
            return view

    def _flown(self, what: Hashable, flight: Flight[T], fly: Callable[[Flight[T]], T]) -> T:
        try:
            result = fly(flight)
        except BaseException as error:
            self._over(what)
            flight.result.set_exception(error)
            raise
        self._over(what)
        flight.result.set_result(result)
        return result

    def _over(self, what: Hashable) -> None:
        with self._lock:
            del self._flights[what]
