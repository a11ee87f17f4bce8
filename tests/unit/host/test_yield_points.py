"""Stages of long work tell whoever does it, and nobody else."""

from __future__ import annotations

import threading

import pytest

from lakestore_server.host.yield_points import at_yield_points, yield_point


def test_a_yield_point_calls_the_innermost_listener_of_its_own_thread() -> None:
    told = list[str]()
    yield_point()
    with at_yield_points(lambda: told.append("outer")):
        yield_point()
        with at_yield_points(lambda: told.append("inner")):
            yield_point()
        other = threading.Thread(target=yield_point)
        other.start()
        other.join()
        yield_point()
    yield_point()
    assert told == ["outer", "inner", "outer"]


def test_what_a_yield_point_raises_ends_the_work_and_the_listening() -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), at_yield_points(stop):
        yield_point()
    yield_point()
