"""Streams that nobody listens to any more are let go, whenever the garbage collector finds them."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.changes import ChangeStream

SCHEMA = pa.schema([("id", pa.int64())])


def _abandon(table: ls.Table) -> None:
    """A stream in a cycle with its user, as exceptions and objects make them."""

    class User:
        stream: ChangeStream
        me: User

    user = User()
    user.stream, user.me = table.changes("earliest"), user
    next(user.stream)


@pytest.mark.timeout(30)
def test_a_stream_is_not_ended_by_the_garbage_collector_in_the_middle_of_something_else(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = lake.create_table("t.a", SCHEMA)
        table.append([{"id": 1}])
        server = lake.transport._follow.__self__  # type: ignore[attr-defined]
        bells = server._engine.bells
        gc.disable()
        try:
            _abandon(table)
            with bells._lock:
                gc.collect()
            assert bells._waiting
        finally:
            gc.enable()
        list(table.changes("earliest", until="now"))
        assert not bells._waiting


def test_a_closed_stream_is_ended_at_once(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = lake.create_table("t.a", SCHEMA)
        table.append([{"id": 1}])
        bells = lake.transport._follow.__self__._engine.bells  # type: ignore[attr-defined]
        stream = table.changes("earliest")
        next(stream)
        assert bells._waiting
        stream.close()
        assert not bells._waiting
