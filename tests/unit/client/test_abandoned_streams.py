"""Streams that nobody listens to any more are let go, whenever the garbage collector finds them."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.changes import ChangeStream
from lakestore.union.cut import opened
from lakestore_server.read.leases import Leases
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.clock import HandClock

SCHEMA = pa.schema([("id", pa.int64())])


def _abandon(table: ls.Table) -> None:
    """A stream in a cycle with its user, as exceptions and objects make them."""

    class User:
        stream: ChangeStream
        me: User

    user = User()
    user.stream, user.me = table.changes("earliest"), user
    next(user.stream)


def test_a_stream_is_not_ended_by_the_garbage_collector_in_the_middle_of_something_else(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table, wakeups = served.lake.create_table("t.a", SCHEMA), served.engine.wakeups
        table.append([{"id": 1}])
        gc.disable()
        try:
            _abandon(table)
            with wakeups._lock:
                gc.collect()
            assert wakeups.listeners
        finally:
            gc.enable()
        list(table.changes("earliest", until="now"))
        assert not wakeups.listeners


def test_a_closed_stream_is_ended_at_once(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table, wakeups = served.lake.create_table("t.a", SCHEMA), served.engine.wakeups
        table.append([{"id": 1}])
        stream = table.changes("earliest")
        next(stream)
        assert wakeups.listeners
        stream.close()
        assert not wakeups.listeners


def _abandon_read(lake: ls.Lake) -> None:
    """A read that holds a cut, in a cycle: a change stream that reads a snapshot from the lake is one by itself."""

    def rows() -> Iterator[None]:
        with opened(lake.transport, ["t.a"], None):
            yield

    class User:
        rows: Iterator[None]
        me: User

    user = User()
    user.rows, user.me = rows(), user
    next(user.rows)


def test_a_read_that_nobody_finishes_lets_its_lease_go_under_any_lock(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        lake.create_table("t.a", SCHEMA)
        leases = served.server.sources.leases
        gc.disable()
        try:
            _abandon_read(lake)
            assert leases.count == 1
            with leases._lock:
                gc.collect()
        finally:
            gc.enable()
        assert leases.count == 0


def test_a_read_that_nobody_finishes_sends_nothing_under_grpcs_locks(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served, ls.connect(served.server.about["grpc"]) as lake:
        lake.create_table("t.a", SCHEMA)
        leases = served.server.sources.leases
        calls: Any = lake.transport
        gc.disable()
        try:
            _abandon_read(lake)
            assert leases.count == 1
            with calls.wire._channel._call_state.lock:
                gc.collect()
        finally:
            gc.enable()
        until(lambda: leases.count == 0, "the release")


READS = """
import _thread, atexit, sys
import lakestore as ls

def refused(*_, **__):
    raise RuntimeError("no thread can be started: the interpreter ends")

lake = ls.connect(sys.argv[1])
ls.client.grpc.LAST_SECONDS = 60.0
_thread.start_new_thread = refused
print(lake.table("t.a").scan().to_arrow().num_rows)
if sys.argv[2] == "nor can gRPC":
    import grpc
    atexit.register(setattr, grpc._channel._UnaryUnaryMultiCallable, "future", refused)
"""


@pytest.mark.parametrize("threads", ["our thread does not run", "nor can gRPC"])
def test_a_program_that_ends_without_closing_lets_the_lease_of_its_last_read_go(tmp_path: Path, threads: str) -> None:
    with Served(tmp_path, ports=True) as served:
        served.lake.create_table("t.a", SCHEMA).append([{"id": 1}])
        leases = served.server.sources.leases
        granted = Mock(wraps=leases.grant)
        leases.grant = granted  # type: ignore[method-assign]
        command = [sys.executable, "-c", READS, served.server.about["grpc"], threads]
        end = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (end.stdout, end.stderr, end.returncode) == ("1\n", "", 0)
        assert granted.called
        until(lambda: leases.count == 0, "the release")


def test_a_lease_that_a_stream_needs_is_nobody_elses_to_release() -> None:
    leases = Leases(HandClock(), 0.0)
    leases.hold("rows 1 t", {}, {"t": (0,)})
    leases.release("rows 1 t")
    assert leases.count == 1
    leases.leave("rows 1 t", 0)
    assert leases.count == 0
