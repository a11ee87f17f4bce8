"""Whatever fails while a commit is made is the error of one caller: others of its group, and the loop, go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Internal
from lakestore_server.arrays.hash_table import HashTable
from lakestore_server.commit import build, engine
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import encoded
from tests.support.served import SCHEMA, Served

POISON = 13


def _holds_poison(record: Any) -> bool:
    return any(POISON in part.batch.column("v").to_pylist() for part in record.rows)


def _fails_in_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = getattr(build, "encode")  # noqa: B009 (imported there for itself)

    def encode(record: Any) -> Any:
        if _holds_poison(record):
            raise TypeError("Integer exceeds 64-bit range")
        return real(record)

    monkeypatch.setattr(build, "encode", encode)


def _fails_in_build(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = getattr(build, "build")  # noqa: B009 (imported there for itself)

    def poisoned(*args: Any) -> Any:
        made = real(*args)
        if _holds_poison(made.record):
            raise MemoryError
        return made

    monkeypatch.setattr(build, "build", poisoned)


def _fails_in_check(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = getattr(engine, "renewed")  # noqa: B009 (imported there for itself)

    def renewed(request: Any, view: Any, *rest: Any) -> Any:
        if POISON in request.changes[0].batch.column("v").to_pylist():
            raise KeyError("v")
        return real(request, view, *rest)

    monkeypatch.setattr(engine, "renewed", renewed)


@pytest.mark.parametrize("fails", [_fails_in_encode, _fails_in_build, _fails_in_check])
def test_a_request_that_cannot_be_made_fails_alone(
    fails: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path) as served, ThreadPoolExecutor(16) as pool:
        served.lake.create_table("t.log", SCHEMA, buckets=1)
        fails(monkeypatch)
        held = threading.Event()
        waits = pool.submit(served.engine.loop.run, held.wait)
        values = [*range(POISON - 5, POISON + 5)]
        sent = {value: pool.submit(served.lake.table("t.log").append, [{"v": value}]) for value in values}
        held.set()
        waits.result(10)
        with pytest.raises(Internal, match="a defect of the server") as refused:
            sent.pop(POISON).result(10)
        assert refused.value.applied == "no"
        for future in sent.values():
            future.result(10)
        served.kill()
        served.start()
        stored = served.lake.table("t.log").scan().to_arrow().column("v").to_pylist()
        assert sorted(stored) == sorted(sent)


def test_an_operation_that_cannot_be_made_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = getattr(engine, "encode")  # noqa: B009 (imported there for itself)

    def encode(record: Any) -> Any:
        if any(table.name == "t.bad" for table in record.create):
            raise TypeError("str is not valid UTF-8: surrogates not allowed")
        return real(record)

    with Served(tmp_path) as served:
        monkeypatch.setattr(engine, "encode", encode)
        before = served.engine.view.lsn
        with pytest.raises(Internal):
            served.lake.create_table("t.bad", SCHEMA)
        assert (served.engine.view.lsn, _names(served)) == (before, [])
        served.lake.create_table("t.good", SCHEMA)
        served.append("t.good", 1)
        served.restart()
        assert _names(served) == ["t.good"]


def _names(served: Served) -> list[str]:
    return sorted(served.engine.view.names)


def test_a_failure_while_expected_keys_are_arranged_hides_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three commits of the same keys, the first under way: the second fails, and the third must see the first."""
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.k", {"id": "int64", "v": "int64"}, primary_key=["id"], buckets=1)
        table.upsert([{"id": -1, "v": 0}])
        index, (prefix,) = served.engine.index, {table_prefix(served.state("a.k").table.number)}
        keys = encoded([pa.array(range(300), pa.int64())], prefix)
        index.expect([(keys, np.arange(1, 301, dtype=np.int64))])
        with monkeypatch.context() as patched:
            patched.setattr(HashTable, "put", _out_of_memory)
            with pytest.raises(MemoryError):
                index.find(keys)
        assert index.find(keys).tolist() == list(range(1, 301))
        index.forget_expected()


def _out_of_memory(*_: object) -> None:
    raise MemoryError
