"""The commit queue: small work goes first, each producer's work in order, groups and room are bounded."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Exhausted
from lakestore.limits import DEFAULT
from lakestore.model.table import define
from lakestore_server.commit import queue as commit_queue
from lakestore_server.commit.priority import CommitPriority, JournalSize, Pace
from lakestore_server.commit.queue import BESIDE_PART, SMALL_BYTES_MAX, TURNS_PASSED_MAX, CommitQueue
from lakestore_server.commit.request import Operation, Request, TableChange
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import NO_KEYS, encoded
from lakestore_server.state.registers import RegisterUpdate, RegisterUpdates

TABLE = define("a.b", pa.schema([("v", pa.binary())]))
KEYED = define("a.k", pa.schema([("id", pa.int64())]), primary_key=["id"])


LARGE = 2 * SMALL_BYTES_MAX


def queue_of(priority: CommitPriority | None = None, **limits: int) -> CommitQueue:
    own = replace(DEFAULT, **limits)
    return CommitQueue(own, Pace(JournalSize(0), own, time.monotonic), lambda: None, priority or CommitPriority())


def request(producer: str, sequence: int, nbytes: int = 1) -> Request:
    batch = pa.record_batch([pa.array([b"x" * nbytes])], names=["v"])
    return Request(
        (TableChange(TABLE, batch, np.zeros(1, dtype=np.int32), NO_KEYS, False, frozenset()),), producer, 1, sequence
    )


def names(work: object) -> list[tuple[str, int]]:
    assert isinstance(work, list)
    return [(each.producer, each.sequence) for each in work]


def next_requests(queue: CommitQueue) -> list[Request]:
    """The requests of the next turn."""
    return [each for each in queue.take() if isinstance(each, Request)]


def test_small_work_goes_before_a_bulk_load_of_others() -> None:
    queue = queue_of(group_bytes=SMALL_BYTES_MAX)
    for sequence in (1, 2, 3):
        queue.put(request("bulk", sequence, SMALL_BYTES_MAX))
    queue.put(request("small", 1))
    assert [names(queue.take()) for _ in range(3)] == [[("small", 1)], [("bulk", 1)], [("bulk", 2)]]


def test_small_requests_without_end_go_apart_and_beside_a_large_one_by_turns() -> None:
    queue = queue_of(group_bytes=2 * LARGE)
    for sequence in (1, 2, 3):
        queue.put(request("bulk", sequence, LARGE))
    taken = []
    for sequence in range(1, 7):
        queue.put(request("small", sequence))
        taken.append([producer for producer, _ in names(queue.take())])
    assert taken == [["small"], ["small", "bulk"]] * 3


def test_a_small_request_that_comes_next_waits_for_few_large_ones() -> None:
    queue = queue_of(group_bytes=BESIDE_PART * LARGE)
    for sequence in range(4 * BESIDE_PART):
        queue.put(request("bulk", sequence, LARGE))
    alone = names(queue.take())
    queue.put(request("small", 1))
    beside = [names(queue.take()) for _ in range(3)]
    assert len(alone) > BESIDE_PART // 2, "nobody else is there"
    assert beside[0][0] == ("small", 1)
    assert [len(group) for group in beside[1:]] == [1, 1], "the next small one waits for one of them"


def test_an_operation_has_its_own_turn_before_a_bulk_load() -> None:
    queue = queue_of()
    operation = Operation(lambda _state, _frame: None)
    queue.put(request("bulk", 1, SMALL_BYTES_MAX))
    queue.put(operation)
    assert queue.take() == [operation]
    assert names(queue.take()) == [("bulk", 1)]


def test_operations_without_end_let_a_bulk_load_have_its_turn() -> None:
    queue = queue_of()
    queue.put(request("bulk", 1))
    queue.put(request("bulk", 2, 2 * SMALL_BYTES_MAX))
    served: list[object] = []
    for _ in range(2 * TURNS_PASSED_MAX):
        queue.put(Operation(lambda _state, _frame: None))
        queue.put(Operation(lambda _state, _frame: None))
        served += queue.take()
    assert [names([each]) for each in served if isinstance(each, Request)] == [[("bulk", 1)], [("bulk", 2)]]


def test_a_bulk_load_whose_turn_has_come_stays_behind_earlier_work_of_its_producer() -> None:
    queue = queue_of()
    operations = [Operation(lambda _state, _frame: None) for _ in range(2 * TURNS_PASSED_MAX)]
    for operation in operations:
        queue.put(operation)
    queue.put(request("p", 1))
    queue.put(request("p", 2, 2 * SMALL_BYTES_MAX))
    assert [queue.take() for _ in operations] == [[operation] for operation in operations]
    assert names(queue.take()) == [("p", 1), ("p", 2)]


def test_a_repeated_request_is_not_in_the_group_of_the_first() -> None:
    queue = queue_of()
    queue.put(request("p", 1))
    queue.put(request("p", 1))
    assert [names(queue.take()), names(queue.take())] == [[("p", 1)], [("p", 1)]]


def keyed(producer: str, ids: list[int], kind: str) -> Request:
    """Rows of a keyed table; `insert_if_absent` is an insert whose answer shows rows."""
    batch = pa.record_batch([pa.array(ids)], names=["id"])
    insert, prefix = kind.startswith("insert"), table_prefix(KEYED.number)
    where, known = np.zeros(len(ids), np.int32), frozenset({1})
    index_keys = encoded(batch.columns, prefix)
    shown = kind == "insert_if_absent"
    return Request(
        (TableChange(KEYED, batch, where, index_keys, kind == "delete", known, insert, is_shown=shown),), producer, 1, 1
    )


@pytest.mark.parametrize("following", ["upsert", "delete"])
def test_rows_that_an_answer_shows_are_not_changed_in_its_group(following: str) -> None:
    queue = queue_of()
    for each in (keyed("a", [1, 2], "insert_if_absent"), keyed("b", [3], following), keyed("c", [2, 3], following)):
        queue.put(each)
    assert [names(queue.take()), names(queue.take())] == [[("a", 1), ("b", 1)], [("c", 1)]]


@pytest.mark.parametrize("following", ["upsert", "delete", "insert", "insert_if_absent"])
def test_an_insert_whose_answer_shows_no_rows_shares_its_group(following: str) -> None:
    queue = queue_of()
    for each in (keyed("a", [1, 2], "insert"), keyed("b", [2], following)):
        queue.put(each)
    assert names(queue.take()) == [("a", 1), ("b", 1)]


def moving(*registers: str, nbytes: int = 1) -> Request:
    moves = tuple(RegisterUpdate(name, 1, "", "x", 0) for name in registers)
    return replace(request("", 0, nbytes), moves=RegisterUpdates(moves))


def moved(work: object) -> list[list[str]]:
    assert isinstance(work, list)
    return [[move.register for move in each.moves.each] for each in work]


def test_no_group_has_two_requests_that_move_the_same_register() -> None:
    queue = queue_of()
    for names_ in ("a", "bc", "d", "ec", "f"):
        queue.put(moving(*names_))
    assert moved(queue.take()) == [["a"], ["b", "c"], ["d"]]
    assert moved(queue.take()) == [["e", "c"], ["f"]]


def test_a_small_request_stays_behind_a_large_one_that_moves_its_register() -> None:
    queue = queue_of(group_bytes=1)
    large = 2 * SMALL_BYTES_MAX
    for each in (moving("a", "b", nbytes=large), moving("b"), moving("c"), moving("a", nbytes=large), moving("b")):
        queue.put(each)
    taken = [moved(queue.take()) for _ in range(5)]
    assert taken == [[["c"]], [["a", "b"]], [["b"]], [["a"]], [["b"]]]


def test_a_full_queue_is_exhausted_and_room_is_told() -> None:
    queue = queue_of(queue_commits=1)
    queue.put(request("p", 1))
    with pytest.raises(Exhausted) as told:
        queue.await_room(0.01, lambda: 0.5)
    assert told.value.retry_after == 0.5
    taker = threading.Thread(target=queue.take)
    taker.start()
    queue.await_room(10.0, lambda: 0.5)
    taker.join()


def test_a_closed_queue_gives_out_what_waits_and_then_nothing() -> None:
    queue = queue_of()
    queue.put(request("p", 1))
    queue.close()
    assert names(queue.take()) == [("p", 1)]
    assert queue.take() == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40), st.integers(1, 4 * SMALL_BYTES_MAX))
def test_each_producer_is_served_in_order_and_nobody_is_forgotten(sent: list[tuple[str, bool]], group: int) -> None:
    queue = queue_of(group_bytes=group)
    sequences = dict.fromkeys("abc", 0)
    for producer, large in sent:
        sequences[producer] += 1
        queue.put(request(producer, sequences[producer], SMALL_BYTES_MAX if large else 1))
    queue.close()
    served: dict[str, list[int]] = {producer: [] for producer in "abc"}
    while work := queue.take():
        for producer, sequence in names(work):
            served[producer].append(sequence)
    assert served == {producer: list(range(1, count + 1)) for producer, count in sequences.items()}
    assert queue.nbytes == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40), st.integers(1, 4 * LARGE))
def test_requests_that_are_given_back_are_served_in_order_the_next_time(
    sent: list[tuple[str, bool]], group: int
) -> None:
    queue, sequences, coming = queue_of(group_bytes=group), dict.fromkeys("abc", 0), list[Request]()
    for producer, large in sent:
        sequences[producer] += 1
        coming.append(request(producer, sequences[producer], LARGE if large else 1))
    served: dict[str, list[int]] = {producer: [] for producer in "abc"}
    back, passed = set[tuple[str, int]](), list[tuple[str, int]]()
    while coming or len(queue):
        if coming:
            queue.put(coming.pop(0))
        work = next_requests(queue)
        assert passed == [] or names(work)[0] not in passed, "somebody passes"
        passed = []
        for _ in range(2):
            if coming:
                queue.put(coming.pop(0))
        if queue.give_back(work):
            assert back.isdisjoint(names(work)), "nothing is begun more than twice"
            passed = names(work)
            back.update(passed)
            continue
        for producer, sequence in names(work):
            served[producer].append(sequence)
    assert served == {producer: list(range(1, count + 1)) for producer, count in sequences.items()}
    assert queue.nbytes == 0


def test_large_requests_go_back_for_a_small_one_of_others_and_only_once() -> None:
    queue = queue_of(group_bytes=1)
    for sequence in (1, 2):
        queue.put(request("bulk", sequence, LARGE))
    waiting = queue.nbytes
    large = next_requests(queue)
    assert not queue.give_back(large), "nobody came"
    queue.put(request("small", 1))
    assert queue.give_back(large)
    assert queue.nbytes == waiting + request("small", 1).nbytes
    assert [names(queue.take()) for _ in range(2)] == [[("small", 1)], [("bulk", 1)]]
    queue.put(request("small", 2))
    assert not queue.give_back(large), "they have waited"
    assert [names(queue.take()) for _ in range(2)] == [[("small", 2)], [("bulk", 2)]]


def test_several_large_requests_go_back_in_their_order() -> None:
    queue = queue_of(group_bytes=4 * LARGE)
    for sequence in (1, 2, 3):
        queue.put(request("bulk", sequence, LARGE))
    large = next_requests(queue)
    assert names(large) == [("bulk", 1), ("bulk", 2), ("bulk", 3)]
    queue.put(request("small", 1))
    assert queue.give_back(large)
    assert [names(queue.take()) for _ in range(4)] == [[("small", 1)], *([("bulk", number)] for number in (1, 2, 3))]


def test_large_requests_that_have_waited_again_go_on_for_good() -> None:
    queue = queue_of(group_bytes=4 * LARGE)
    for sequence in (1, 2, 3, 4):
        queue.put(request("bulk", sequence, LARGE))
    large = next_requests(queue)
    queue.put(request("small", 1), request("bulk", 5, LARGE))
    assert queue.give_back(large)
    assert [names(queue.take()) for _ in range(2)] == [[("small", 1)], [("bulk", 1)]]
    again = next_requests(queue)
    assert names(again) == [("bulk", 2)]
    queue.put(request("small", 2))
    assert not queue.give_back(again)
    assert [names(queue.take()) for _ in range(3)] == [[("small", 2)], [("bulk", 3)], [("bulk", 4)]]
    fresh = next_requests(queue)
    assert names(fresh) == [("bulk", 5)]
    queue.put(request("small", 3))
    assert queue.give_back(fresh), "it had not waited before"


def test_turns_of_large_requests_that_met_nobody_change_nothing() -> None:
    queue = queue_of(group_bytes=1)
    for sequence in (1, 2, 3):
        queue.put(request("bulk", sequence, LARGE))
    for _ in range(2):
        queue.take()
    third = next_requests(queue)
    queue.put(request("bulk", 4))
    assert not queue.give_back(third), "nobody else came"
    queue.put(request("small", 1))
    assert queue.give_back(third), "now somebody did"


def test_small_requests_behind_large_ones_of_their_producer_go_back_with_them() -> None:
    queue = queue_of(group_bytes=1)
    for sequence in (1, 2):
        queue.put(request("bulk", sequence, LARGE))
    large = next_requests(queue)
    assert names(large) == [("bulk", 1)]
    queue.put(request("bulk", 3))  # behind the second one
    assert not queue.give_back(large), "nobody else came"
    queue = queue_of(group_bytes=1)
    queue.put(request("bulk", 1, LARGE))
    large = next_requests(queue)
    queue.put(request("bulk", 2))
    queue.put(request("small", 1), request("bulk", 3, LARGE), request("bulk", 4))
    waiting = queue.nbytes
    assert queue.give_back(large)
    assert queue.nbytes == waiting + large[0].nbytes
    told = [names(queue.take()) for _ in range(5)]
    assert told == [[("small", 1)], *([("bulk", sequence)] for sequence in (1, 2, 3, 4))]
    assert queue.nbytes == 0


def test_what_goes_back_with_large_requests_holds_back_what_moves_its_registers() -> None:
    queue = queue_of(group_bytes=1)
    queue.put(moving("a", nbytes=LARGE))
    large = next_requests(queue)
    queue.put(moving("a", "b"), moving("b", "c"), moving("d"))
    assert queue.give_back(large)
    queue.put(moving("c"), moving("e"))
    assert [moved(queue.take()) for _ in range(2)] == [[["d"]], [["e"]]]
    assert [moved(queue.take()) for _ in range(4)] == [[["a"]], [["a", "b"]], [["b", "c"]], [["c"]]]


def test_large_requests_do_not_go_back_for_an_operation() -> None:
    queue = queue_of()
    queue.put(request("bulk", 1, LARGE))
    large = next_requests(queue)
    queue.put(Operation(lambda _state, _frame: None), request("small", 1))
    assert not queue.give_back(large)


def test_large_requests_whose_turn_is_due_or_that_go_beside_small_ones_do_not_go_back() -> None:
    queue = queue_of()
    queue.put(request("bulk", 1, LARGE))
    for _ in range(TURNS_PASSED_MAX):
        queue.put(Operation(lambda _state, _frame: None))
        queue.take()
    queue.put(request("small", 1))
    due = next_requests(queue)
    assert names(due) == [("bulk", 1)]
    assert not queue.give_back(due)
    queue.put(request("bulk", 2, LARGE))
    assert names(queue.take()) == [("small", 1)]
    queue.put(request("small", 2))
    mixed = next_requests(queue)
    assert names(mixed) == [("small", 2), ("bulk", 2)]
    queue.put(request("other", 1))
    assert not queue.give_back(mixed)


def test_a_bulk_load_leaves_room_for_small_requests() -> None:
    queue = queue_of(queue_bytes=4 * SMALL_BYTES_MAX)
    for sequence in range(1, 5):
        queue.put(request("bulk", sequence, SMALL_BYTES_MAX))
    with pytest.raises(Exhausted):
        queue.await_room(0.0, lambda: 0.5, 10 * SMALL_BYTES_MAX)
    queue.await_room(0.0, lambda: 0.5, 100)
    queue.put(request("bulk", 5, SMALL_BYTES_MAX))
    with pytest.raises(Exhausted):
        queue.await_room(0.0, lambda: 0.5, 100)


def test_a_large_request_lets_a_small_one_come_that_is_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "COMING_SECONDS_MAX", 60.0)
    priority, taken = CommitPriority(), list[list[tuple[str, int]]]()
    queue = queue_of(priority)
    queue.put(request("bulk", 1, LARGE))
    taking = threading.Thread(target=lambda: taken.append(names(queue.take())), daemon=True)
    with priority.coming():
        taking.start()
        taking.join(0.1)
        assert not taken, "it waits"
        queue.put(request("small", 1))
        taking.join(20.0)
    assert [*taken, names(queue.take())] == [[("small", 1)], [("bulk", 1)]]


def test_a_large_request_waits_but_a_moment_for_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "COMING_SECONDS_MAX", 0.1)
    priority = CommitPriority()
    queue = queue_of(priority)
    queue.put(request("bulk", 1, LARGE))
    with priority.coming():
        assert names(queue.take()) == [("bulk", 1)]
