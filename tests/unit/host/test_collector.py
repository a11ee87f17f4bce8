"""The collector looks at objects that stay once, and again when they have doubled."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lakestore_server import main
from lakestore_server.main import Collector
from tests.support.house import ROOT

MANY = 50_000


class Node:
    """An object of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def kept() -> Iterator[list[list[int]]]:
    """Objects that stay; the collector is left as it was."""
    found: list[list[int]] = [[number] for number in range(MANY)]
    yield found
    found.clear()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as before: a full collection would walk a million objects in all later tests


def _old() -> int:
    """Objects that a full collection looks at."""
    return len(gc.get_objects(generation=2))


def test_what_is_there_at_the_begin_is_not_looked_at_again(kept: list[list[int]]) -> None:
    of = Collector()
    of.begin()
    try:
        assert _old() < 1_000
        assert gc.get_freeze_count() >= MANY
    finally:
        of.end()
    gc.collect()
    assert _old() >= MANY


def test_what_survives_a_long_collection_is_not_looked_at_again(kept: list[list[int]]) -> None:
    of = Collector(pause_seconds=0.0)
    of.begin()
    try:
        later = [[number] for number in range(MANY)]
        gc.collect()
        assert _old() < 1_000
        assert len(later) == MANY
    finally:
        of.end()


def test_short_collections_freeze_nothing(kept: list[list[int]]) -> None:
    of = Collector(pause_seconds=3600.0)
    of.begin()
    try:
        before, later = gc.get_freeze_count(), [[number] for number in range(MANY)]
        gc.collect()
        assert gc.get_freeze_count() <= before  # a frozen object whose last reference goes is freed
        assert _old() >= MANY
        assert len(later) == MANY
    finally:
        of.end()


def test_cycles_that_died_frozen_go_when_the_objects_have_doubled() -> None:
    """In a process of its own: this one has millions of objects, which the test would have to triple."""
    program = f"from {__name__} import die_frozen; die_frozen()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def die_frozen() -> None:
    """Cycles that are frozen and die, then more objects than there were."""
    of = Collector(pause_seconds=0.0, frozen_min=1)
    of.begin()
    try:
        cycles = [Node() for _ in range(10)]
        gc.collect()
        del cycles
        gc.collect()
        assert sum(type(each) is Node for each in gc.get_objects()) == 0  # frozen ones are not listed
        grown = [[number] for number in range(3 * gc.get_freeze_count())]
        gc.collect()
        gc.collect()
        assert grown
        gc.unfreeze()
        assert sum(type(each) is Node for each in gc.get_objects()) == 0
    finally:
        of.end()


def test_what_dies_frozen_is_bounded_by_what_lives() -> None:
    """In a process of its own, as above."""
    program = f"from {__name__} import die_frozen_again_and_again; die_frozen_again_and_again()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def die_frozen_again_and_again() -> None:
    """Cycles that are frozen and die, many times as many as the objects that live."""
    of = Collector(pause_seconds=0.0, frozen_min=1)
    of.begin()
    lives = gc.get_freeze_count()
    try:
        for _ in range(60):
            cycles = [Node() for _ in range(lives // 2)]
            gc.collect()
            del cycles
            assert gc.get_freeze_count() <= 8 * lives
    finally:
        of.end()


def test_no_collection_while_paused_and_as_before_afterwards() -> None:
    assert gc.isenabled()
    with main.paused():
        assert not gc.isenabled()
        with main.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
