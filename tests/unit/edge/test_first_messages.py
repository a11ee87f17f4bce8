"""Calls without a message, defects in a loop, threads of a pool: each has an end, and the right one goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid, Unavailable
from lakestore.v1 import flight_pb2
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import Sent, beside
from lakestore_server.commit.commit_verbs import WriteStream
from lakestore_server.commit.durable import Bell, Pause, Wakeups
from lakestore_server.edge.first_messages import FirstMessages
from lakestore_server.edge.flight.port import Upload
from lakestore_server.edge.rpc_streams import Intake
from lakestore_server.host.quota import BufferPool
from lakestore_server.host.rate_limited_log import CAUSES_MAX, RateLimitedLog
from lakestore_server.host.workers import Workers
from tests.support.flight_client import put
from tests.support.seeds import seeded
from tests.support.waiting import until


@dataclass(eq=False)
class Call:
    """A call that says nothing."""

    peer: str


def ledger(most: int, seconds: float = 100.0) -> tuple[Any, list[Call]]:
    gone: list[Call] = []
    refuse: Any = lambda call, _: gone.append(call)  # noqa: E731
    return FirstMessages(most, seconds, refuse), gone


def test_for_one_call_more_the_worst_connection_loses_its_oldest() -> None:
    calls, gone = ledger(5)
    quiet = Call("quiet")
    crowd = [Call("crowd") for _ in range(6)]
    for call in (quiet, *crowd):
        calls.add(call)
    assert gone == crowd[:2]
    assert len(calls) == 5
    assert calls.came(quiet)
    assert not calls.came(quiet), "it waits no more"
    assert not calls.came(crowd[0])


def test_the_ledger_holds_what_waits_and_nothing_else() -> None:
    """Whatever comes, goes and times out: as many as were added less those that came or went."""
    chance = seeded(5)
    calls, gone = ledger(20)
    waiting: set[Call] = set()
    for _ in range(2_000):
        if chance.random() < 0.6 or not waiting:
            call = Call(str(chance.randrange(4)))
            calls.add(call)
            waiting.add(call)
        else:
            call = chance.choice(sorted(waiting, key=id))
            assert calls.came(call)
            waiting.discard(call)
        waiting -= set(gone)
        assert len(calls) == len(waiting) <= 20
    calls.tick(time.monotonic() + 99.0)
    assert len(calls) == len(waiting)
    calls.tick(time.monotonic() + 101.0)
    assert not len(calls)
    assert waiting <= set(gone)


class Uploading(Call):
    """A call whose messages come when the test says so."""

    asked: list[Callable[[bytes | None], None]]

    def receive(self, then: Callable[[bytes | None], None]) -> None:
        self.asked = [then]

    def is_active(self) -> bool:
        return True


def test_the_messages_of_an_upload_have_the_time_of_one() -> None:
    calls, _ = ledger(5)
    call, ended, failed = Uploading("slow"), list[Any](), list[Any]()
    rpc: Any = call
    Upload(rpc, calls, ended.append, failed.append).receive()
    began = dict(calls._since)
    for data in put(flight_pb2.CommandPreparedStatementQuery(), pa.table({"p": [1]})):
        call.asked.pop()(data)
        assert calls._since == began
    call.asked.pop()(None)
    assert not len(calls)
    assert len(ended) == 1
    assert not failed


class Steps:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_us(self) -> int:
        return int(self.now * 1e6)


def test_a_cause_in_a_loop_is_told_now_and_then_with_its_number() -> None:
    clock = Steps()
    seldom = RateLimitedLog(clock, 60.0, times=2)
    assert [seldom.due("a") for _ in range(5)] == [1, 1, 0, 0, 0]
    assert seldom.due("b") == 1
    clock.now = 60.0
    assert seldom.due("a") == 4
    for i in range(CAUSES_MAX + 5):
        seldom.due(i)
    assert len(seldom._causes) == CAUSES_MAX


def test_a_pool_begins_threads_as_it_needs_them_and_drops_work_once_closed() -> None:
    workers, goes_on, done = Workers(3, "pool"), threading.Event(), []

    def work(i: int) -> Callable[[], None]:
        return lambda: (goes_on.wait(10), done.append(i))  # type: ignore[func-returns-value,return-value]

    for i in range(7):
        workers.run(work(i))
    assert workers.threads == 3
    assert workers.is_full
    goes_on.set()
    until(lambda: len(done) == 7, "all the work")
    until(lambda: not workers.is_full, "free threads")
    workers.close()
    workers.run(work(8))
    until(lambda: not any(t.name.startswith("pool-") for t in threading.enumerate()), "the end of the threads")
    assert len(done) == 7


def test_a_bell_rings_its_listener_and_every_ring_rings_who_hears_all() -> None:
    wakeups, rung = Wakeups(), []
    with wakeups.heard(["a"]) as one, wakeups.heard(["*"]) as every:
        one.listener = lambda: rung.append("one")
        every.listener = lambda: rung.append("every")
        wakeups.ring(["b"])
        wakeups.ring(["a"])
    assert sorted(rung) == ["every", "every", "one"]
    began = time.monotonic()
    Pause(Bell(), 0.01).wait()
    assert time.monotonic() - began >= 0.01


class Written:
    """Commits that are answered when the test says so."""

    def __init__(self) -> None:
        self.futures: dict[int, Future[Any]] = {}
        self.drains = False

    def submit(self, sent: Sent) -> Future[Any]:
        request = beside(sent).request
        if request.progress:
            raise Invalid(request.progress)
        return self.futures.setdefault(request.sequence, Future())

    def submitted(self, several: Sequence[Sent]) -> Iterator[Future[Any]]:
        return map(self.submit, several)

    def answered(self, answer: Future[Any], sequence: int) -> pb.CommitAnswer:
        return pb.CommitAnswer(sequence=sequence, token=answer.result(0))

    def refuse(self) -> None:
        if self.drains:
            raise Unavailable("the server goes")


def stream_of(written: Written, most: int = 4) -> WriteStream:
    return WriteStream(written.submitted, written.answered, written.refuse, most)


def test_answers_come_in_the_order_of_the_requests_and_a_refusal_is_the_last() -> None:
    written = Written()
    stream = stream_of(written)
    answers = stream.answers()
    assert isinstance(next(answers), Pause)
    for sequence in (1, 2, 3):
        stream.take([pb.CommitRequest(sequence=sequence)])
    stream.take([pb.CommitRequest(sequence=4, progress="no")])
    stream.take([pb.CommitRequest(sequence=5)])
    assert 5 not in written.futures, "nothing is taken behind a refusal"
    assert stream.is_full
    written.futures[2].set_result("b")
    paused = next(answers)
    assert isinstance(paused, Pause)
    paused.bell.listener = (rung := threading.Event()).set
    written.futures[1].set_result("a")
    assert rung.is_set()
    told = [next(answers), next(answers)]
    assert [(each.sequence, each.token) for each in told if isinstance(each, pb.CommitAnswer)] == [(1, "a"), (2, "b")]
    assert isinstance(next(answers), Pause)
    written.futures[3].set_exception(Unavailable("later"))
    errors = [each.error.kind for each in answers if isinstance(each, pb.CommitAnswer)]
    assert errors == ["Unavailable", "Invalid"]
    assert not stream.takes


def test_an_idle_stream_of_commits_is_told_when_the_server_goes() -> None:
    written = Written()
    stream = stream_of(written)
    answers = stream.answers()
    assert isinstance(next(answers), Pause)
    written.drains = True
    stream.bell.set()
    told = list(answers)
    assert [each.error.kind for each in told if isinstance(each, pb.CommitAnswer)] == ["Unavailable"]


def test_who_takes_waits_for_room_and_is_let_go_when_nobody_waits_for_answers() -> None:
    written = Written()
    stream = stream_of(written, most=1)
    answers = stream.answers()
    stream.take([pb.CommitRequest(sequence=1)])
    goes_on: list[bool] = []
    taker = threading.Thread(target=lambda: goes_on.append(stream.await_room()))
    taker.start()
    written.futures[1].set_result("a")
    assert isinstance(next(answers), pb.CommitAnswer)
    taker.join(10)
    assert goes_on == [True]
    stream.take([pb.CommitRequest(sequence=2)])
    taker = threading.Thread(target=lambda: goes_on.append(stream.await_room()))
    taker.start()
    answers.close()
    taker.join(10)
    assert goes_on == [True, False]


def test_an_error_of_nobodys_is_told_as_a_defect() -> None:
    def broken(_: Sequence[Sent]) -> Iterator[Future[Any]]:
        raise KeyError("absent")

    written = Written()
    stream = WriteStream(broken, written.answered, written.refuse, 4)
    stream.take([pb.CommitRequest(sequence=1)])
    told = list(stream.answers())
    assert [each.error.kind for each in told if isinstance(each, pb.CommitAnswer)] == ["Internal"]


class Gated:
    """Messages that are taken when the test says so, and the receives that were begun."""

    def __init__(self, ahead: int, most: int = 4) -> None:
        self.asked: list[Callable[[bytes | None], None]] = []
        self.taken: list[int] = []
        self.goes_on = threading.Semaphore(0)
        self.workers = Workers(4, "gated")
        self.written = Written()
        self.stream = stream_of(self.written, most)
        self.ahead = threading.Semaphore(ahead)
        rpc: Any = self
        self.intake = Intake(
            rpc=rpc,
            stream=self.stream,
            request=self._request,
            workers=self.workers,
            ahead=self.ahead,
            slabs=BufferPool(1 << 20),
        )
        self.intake.ask()

    def receive(self, then: Callable[[bytes | None], None]) -> None:
        self.asked.append(then)

    def _request(self, data: bytes | pa.Buffer) -> pb.CommitRequest:
        assert self.goes_on.acquire(timeout=60)
        self.taken.append(data[0])
        return pb.CommitRequest(sequence=data[0])

    def comes(self, data: bytes | None) -> None:
        self.asked.pop()(data)


def test_the_next_message_comes_while_one_is_taken_and_they_are_taken_in_their_order() -> None:
    gated = Gated(ahead=1)
    gated.comes(b"\1")
    until(lambda: len(gated.asked) == 1, "the next receive")
    gated.comes(b"\2")
    gated.intake.ask()
    assert not gated.asked, "one message waits, and no more come"
    gated.goes_on.release()
    until(lambda: len(gated.asked) == 1, "the one behind")
    gated.comes(None)
    assert gated.taken == [1]
    assert gated.stream.takes, "the end comes behind what came before it"
    gated.goes_on.release()
    until(lambda: not gated.stream.takes, "the end")
    assert gated.taken == [1, 2]
    assert gated.ahead.acquire(blocking=False), "the room is given back"
    gated.workers.close()


def test_without_room_ahead_and_where_answers_have_none_a_message_comes_behind_the_one_before() -> None:
    for gated in (Gated(ahead=0), Gated(ahead=1, most=1)):
        gated.comes(b"\1")
        time.sleep(0.05)
        assert not gated.asked
        gated.goes_on.release()
        if not gated.ahead.acquire(blocking=False):
            until(lambda: bool(gated.asked), "the next receive")  # noqa: B023
        else:
            until(lambda: gated.stream.is_full, "the taking")  # noqa: B023
            assert not gated.asked
            gated.written.futures[1].set_result("a")
            assert isinstance(next(gated.stream.answers()), pb.CommitAnswer)
            until(lambda: bool(gated.asked), "the next receive")  # noqa: B023
        gated.comes(None)
        until(lambda: not gated.stream.takes, "the end")  # noqa: B023
        gated.workers.close()
