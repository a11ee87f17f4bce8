"""Single writes of many threads travel together: each is done once, and answered for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.group_commit import Combiner, Write
from lakestore.client.producer import ProducerPool
from lakestore.errors import Invalid, LakestoreError, Stopped, Unavailable
from lakestore.model.table import define
from lakestore.v1 import lakestore_pb2 as pb

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLES = {name: define(name, SCHEMA) for name in ("a.b", "a.k", "a.lost", "no.where")}


class Pool(ProducerPool):
    """Commits wait until the test lets them go on; `refuses` says what becomes of them."""

    def __init__(self, refuses: Callable[[Sequence[pb.Change]], BaseException | None] = lambda _: None) -> None:
        self.open = threading.Event()
        self.sent: list[list[pb.Change]] = []
        self._refuses = refuses

    def commit(self, changes: Sequence[pb.Change]) -> pb.CommitAnswer:
        self.sent.append(list(changes))
        assert self.open.wait(20)
        error = self._refuses(changes)
        if error is not None:
            raise error
        results = [pb.ChangeResult(table=c.table, inserted=rows_of(c), updated=1) for c in changes]
        return pb.CommitAnswer(token=f"t{len(self.sent)}", results=results)


def rows_of(change: pb.Change) -> int:
    with pa.ipc.open_stream(change.rows) as reader:
        return int(reader.read_all().num_rows)


def write(table: str, *ids: int, kind: pb.ChangeKind.ValueType = pb.APPEND) -> Write:
    return Write(TABLES[table], kind, pa.record_batch([list(ids)], names=["id"]))


def together(pool: Pool, writes: Sequence[Write]) -> list[object]:
    """What each write gets when the first is on its way and the others come meanwhile."""
    combiner = Combiner(pool, on_the_way_max=1)

    def one(each: Write) -> object:
        try:
            return combiner.commit(each)
        except LakestoreError as error:
            return error

    with ThreadPoolExecutor(len(writes)) as threads:
        answers = []
        for number, each in enumerate(writes):
            answers.append(threads.submit(one, each))
            while not pool.sent or len(combiner._waiting) < number:
                threading.Event().wait(0.001)
        pool.open.set()
        return [answer.result(20) for answer in answers]


def test_those_that_wait_go_as_one_commit_and_appends_as_one_change() -> None:
    pool = Pool()
    upsert = write("a.k", 9, kind=pb.UPSERT)
    answers = together(pool, [write("a.b", 1), write("a.b", 3, 4), upsert, write("a.b", 5)])
    assert [[(c.table, rows_of(c)) for c in changes] for changes in pool.sent] == [
        [("a.b", 1)],
        [("a.b", 3), ("a.k", 1)],
    ]
    assert [each.result.inserted for each in answers] == [1, 2, 1, 1]  # type: ignore[attr-defined]
    assert len({each.token for each in answers[1:]}) == 1  # type: ignore[attr-defined]


def test_a_refusal_is_only_for_whose_rows_it_is() -> None:
    def refuses(changes: Sequence[pb.Change]) -> BaseException | None:
        return Invalid("no such table") if any(c.table == "no.where" for c in changes) else None

    answers = together(Pool(refuses), [write("a.b", i) for i in range(3)] + [write("no.where", 1), write("a.b", 9)])
    assert [isinstance(answer, Invalid) for answer in answers] == [False, False, False, True, False]


def test_an_unknown_end_is_unknown_for_all_and_never_tried_again() -> None:
    pool = Pool(lambda changes: Unavailable("gone", applied="unknown") if changes[0].table == "a.lost" else None)
    answers = together(pool, [write("a.b", 1), write("a.lost", 3), write("a.lost", 4)])
    assert [getattr(answer, "applied", None) for answer in answers] == [None, "unknown", "unknown"]
    assert len(pool.sent) == 2


def test_each_raises_an_error_of_its_own_of_the_class_that_was_raised() -> None:
    pool = Pool(lambda changes: Stopped("the server is shutting down") if changes[0].table == "a.lost" else None)
    first, second = together(pool, [write("a.b", 1), write("a.lost", 3), write("a.lost", 4)])[1:]
    assert [type(first), type(second)] == [Stopped, Stopped]
    assert first is not second


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    pool = Pool(lambda changes: KeyboardInterrupt() if changes[0].table == "a.lost" else None)
    with pytest.raises(KeyboardInterrupt):
        together(pool, [write("a.b", 1), write("a.lost", 3), write("a.lost", 4)])


def test_every_row_of_many_threads_is_there_once(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data") as lake:
        log = lake.create_table("a.log", SCHEMA)
        keyed = lake.create_table("a.keyed", SCHEMA, primary_key=["id"])

        def work(thread: int) -> None:
            for i in range(30):
                row = [{"id": thread * 100 + i, "name": f"{thread}"}]
                lake.table("a.log").append(row)
                mine = lake.table("a.keyed")
                mine.upsert(row)
                assert mine.last_result is not None
                assert (mine.last_result.inserted, mine.last_result.updated) == (1, 0)
                if i % 10 == 0:
                    with pytest.raises(Invalid, match="nothing"):
                        lake.table("a.log").append([{"id": 1, "nothing": 2}])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        wanted = sorted(thread * 100 + i for thread in range(8) for i in range(30))
        assert sorted(log.scan().to_arrow()["id"].to_pylist()) == wanted
        assert sorted(keyed.scan().to_arrow()["id"].to_pylist()) == wanted
