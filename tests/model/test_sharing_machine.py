"""Consumers that share a subscription come, go, stall and come back, time goes by and the server loses power.

Whatever happens, each bucket's acknowledged rows have no gap, a row is acknowledged by one consumer only, nobody is
sent again what was acknowledged, who reads a bucket may acknowledge what it was sent of it since somebody else read it,
nobody passes over what it was refused, and has undone, without being sent it again, and an acknowledgement that counted
counts when it is sent again, as long as nobody else has acknowledged more of the bucket.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestore.client.changes import ChangeBatch
from lakestore.errors import Fenced, LakestoreError, Unavailable
from lakestore.model.token import Part, position_of
from lakestore.model.token import parts_of as token_parts
from lakestore_server.state.subscription import Mark
from tests.support.served import SCHEMA, Served
from tests.support.sharing import Consumer
from tests.support.world.disk import SimDisk

NAME, BUCKETS, REBALANCE = "t.log", 3, 10.0
SEEDS = st.none() | st.integers(0, 1 << 16)
WORKERS, MAYBE = st.sampled_from("abc"), st.booleans()


@dataclass
class Got:
    """A batch as a process keeps it."""

    batch: ChangeBatch
    turns: dict[int, int]
    """Of each bucket that it read when it was sent this: how often the reader had changed."""


@dataclass
class Worker:
    """A process as the model has it."""

    consumer: Consumer
    inbox: list[Got] = field(default_factory=list)
    got: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """Bucket and turn to the offsets that it was sent."""
    undone: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """Bucket and turn to the offsets that it was refused."""
    turns: dict[int, int] = field(default_factory=dict)
    """The turn of a bucket in which it was last sent something of it."""
    sent: dict[int, tuple[float, int]] = field(default_factory=dict)
    """When it was last sent rows of a bucket, on the connection that it has, and the last offset."""

    def surely_reads(self, bucket: int, now: float, mark: Mark) -> bool:
        """Whether a bucket cannot have been taken away: not all of it is acknowledged, and there was no time."""
        at, last = self.sent.get(bucket, (float("-inf"), -1))
        return self.consumer.is_connected and now < at + REBALANCE and last >= mark.offset


class SharingMachine(RuleBasedStateMachine):
    """One log table, one subscription, up to three consumers and the ghosts of earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-sharing-"))
        self.lives, self.sessions = 0, 0
        self.disk = SimDisk(self.folder / "0")
        self.served = Served(self.disk.root, disk=self.disk)
        self.served.lake.create_table(NAME, SCHEMA, buckets=BUCKETS, bucket_key=["v"])
        self.workers: dict[str, Worker] = {}
        self.ghosts: list[Worker] = []
        self.acked_by: dict[tuple[int, int], int] = {}
        """Row to session."""
        self.readers: dict[int, tuple[int, int]] = {}
        """Bucket to the session that read it last, and its turn: how often that was another one than before."""
        self.known: tuple[Mark, ...] = ()
        self.written = 0

    @initialize(snapshot=st.booleans(), rows=st.integers(0, 20))
    def begin(self, snapshot: bool, rows: int) -> None:
        self.write(rows)
        self.start("a", snapshot=snapshot)

    def teardown(self) -> None:
        try:
            self.finish()
            self.served.kill()
        finally:
            self.disk.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(rows=st.integers(1, 12))
    def write(self, rows: int) -> None:
        if rows:
            self.served.append(NAME, *range(self.written, self.written + rows))
        self.written += rows

    @rule(name=WORKERS)
    def start(self, name: str, *, snapshot: bool = False) -> None:
        """A new process; one of the same name is left behind without knowing."""
        self.sessions += 1
        self.stop(name)
        worker = self.workers[name] = Worker(Consumer(self.served, name, self.sessions, [NAME]))
        worker.consumer.connect(snapshot=snapshot)

    def stop(self, name: str) -> None:
        old = self.workers.pop(name, None)
        if old is not None:
            self.ghosts.append(old)

    @rule(name=WORKERS)
    def die(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].consumer.disconnect()
            self.stop(name)

    @rule(name=WORKERS)
    def lose_connection(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].consumer.disconnect()
            self.workers[name].sent.clear()

    @rule(name=WORKERS)
    def come_back(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].consumer.connect()
            self.workers[name].sent.clear()

    @rule(name=WORKERS, rounds=st.integers(1, 4))
    def poll(self, name: str, rounds: int) -> None:
        worker = self.workers.get(name)
        if worker is None or not worker.consumer.is_connected:
            return
        before = self.marks()
        batches = worker.consumer.poll(rounds)
        for bucket in self.reads(name):
            last, turn = self.readers.get(bucket, (worker.consumer.session, 0))
            self.readers[bucket] = worker.consumer.session, turn + (last != worker.consumer.session)
        turns = {bucket: turn for bucket, (_, turn) in self.readers.items()}
        for batch in batches:
            for part in parts_of(batch):
                worker.turns[part.bucket] = turns[part.bucket]
            for bucket, offset in rows_of(batch):
                assert offset >= before[bucket].offset, "what was acknowledged is sent again"
                worker.got.setdefault((bucket, turns[bucket]), set()).add(offset)
                worker.sent[bucket] = self.served.clock.monotonic(), offset
            worker.inbox.append(Got(batch, turns))

    @rule(name=WORKERS, at=st.integers(-2, 2))
    def ack(self, name: str, at: int) -> None:
        if name in self.workers:
            self.acked(self.workers[name], at, live=True)

    @rule(which=st.integers(0, 50), at=st.integers(-2, 2))
    @precondition(lambda self: self.ghosts)
    def ghost_acks(self, which: int, at: int) -> None:
        self.acked(self.ghosts[which % len(self.ghosts)], at, live=False)

    @rule(
        slow=WORKERS, quick=WORKERS, seconds=st.sampled_from([0.3, 1.0, 10.0]), cut_off=MAYBE, first=MAYBE, goes=MAYBE
    )
    def overtake(self, slow: str, quick: str, seconds: float, cut_off: bool, first: bool, goes: bool) -> None:
        """One reads and stalls or is cut off; another one reads what it is given, and may go; both acknowledge."""
        if slow not in self.workers or slow == quick:
            return
        self.write(6)
        self.poll(slow, 8)
        if cut_off:
            self.lose_connection(slow)
        if quick not in self.workers:
            self.start(quick)
        self.served.clock.advance(seconds)
        self.poll(quick, 8)
        if first:
            self.ack(quick, -1)
        if goes:
            self.die(quick)
            self.served.clock.advance(1)
        if cut_off:
            self.come_back(slow)
        if goes or cut_off:
            self.poll(slow, 8)
        for name, at in ((slow, -2), (slow, -1), (quick, -1)):
            self.ack(name, at)

    @rule(slow=WORKERS, quick=WORKERS, heard=MAYBE, acks=MAYBE, back=MAYBE, seed=SEEDS)
    def lose_an_answer(self, slow: str, quick: str, heard: bool, acks: bool, back: bool, seed: int | None) -> None:
        """One acknowledges, but the server dies before it says so, or before it hears of it; another one reads on, and
        the first asks again.
        """
        if slow not in self.workers or slow == quick:
            return
        self.write(6)
        self.come_back(slow)
        self.poll(slow, 8)
        if heard:
            self.ack(slow, -1)
        self.crash(seed)
        if quick in self.workers:
            self.come_back(quick)
        else:
            self.start(quick)
        self.poll(quick, 8)
        if acks:
            self.ack(quick, -1)
        if back:
            self.come_back(slow)
        self.ack(slow, -1)

    @rule(name=WORKERS, at=st.integers(-2, 2), steps=st.integers(0, 4), seed=SEEDS)
    def lose_power_in_an_ack(self, name: str, at: int, steps: int, seed: int | None) -> None:
        """What was told to count does; of what was not told, all or nothing does, and the consumer may ask again."""
        worker = self.workers.get(name)
        if worker is None or not worker.inbox:
            return
        got, before = worker.inbox[at % len(worker.inbox)], self.marks()
        refused: set[int] | None = None
        self.disk.lose_power_after(steps)
        with suppress(Unavailable):
            refused = refused_of(worker, got.batch)
        self.crash(seed)
        self.known = self.marks()
        for part in parts_of(got.batch):
            told = refused is not None and part.bucket not in refused
            if told or self.known[part.bucket] != before[part.bucket]:
                self.check_moved(worker, part, before[part.bucket], self.known[part.bucket], got)

    def acked(self, worker: Worker, at: int, *, live: bool) -> None:
        if not worker.inbox:
            return
        got = worker.inbox[at % len(worker.inbox)]
        before, reads = self.marks(), self.reads(worker.consumer.member)
        refused = refused_of(worker, got.batch)
        self.known = self.marks()
        for part in parts_of(got.batch):
            if part.bucket not in refused:
                self.check_moved(worker, part, before[part.bucket], self.known[part.bucket], got)
            else:
                assert self.known[part.bucket] == before[part.bucket], "a refused part has moved"
                assert not self.has_counted(worker, part, before[part.bucket]), "what counted is refused"
                undo(worker, part, got, before[part.bucket])
                now, turn = self.served.clock.monotonic(), got.turns[part.bucket]
                own = part.bucket in reads and self.readers[part.bucket][1] == turn
                own |= worker.surely_reads(part.bucket, now, before[part.bucket]) and worker.turns[part.bucket] == turn
                own &= live and self.is_alone(worker, part, before[part.bucket])
                assert not own, "who reads a bucket may acknowledge what it was sent of it"

    def has_counted(self, worker: Worker, part: Part, mark: Mark) -> bool:
        """Whether a part is acknowledged, and nobody but its consumer has done so since that began to read."""
        reached = part.begin < part.end and mark.order() >= Mark(part.end, part.cut).order()
        return reached and self.is_alone(worker, part, mark)

    def is_alone(self, worker: Worker, part: Part, mark: Mark) -> bool:
        """Whether nobody else has acknowledged anything since the reading began that a part is of."""
        by = {self.acked_by.get((part.bucket, offset)) for offset in range(part.begin, mark.offset)}
        return by <= {worker.consumer.session}

    def check_moved(self, worker: Worker, part: Part, before: Mark, after: Mark, got: Got) -> None:
        session, moved = worker.consumer.session, range(before.offset, after.offset)
        assert after.offset >= part.end
        now, others = self.served.clock.monotonic(), [w for w in self.workers.values() if w is not worker]
        if moved:
            assert not any(w.surely_reads(part.bucket, now, before) for w in others), "somebody else reads the bucket"
        turn = part.bucket, got.turns[part.bucket]
        assert worker.got[turn].issuperset(moved), "a gap: rows acknowledged that it was never sent"
        assert worker.undone.get(turn, set()).isdisjoint(moved), "rows acknowledged that it was refused and has undone"
        done = {offset for bucket, offset in rows_of(got.batch) if bucket == part.bucket}
        for offset in done | set(moved):
            assert self.acked_by.setdefault((part.bucket, offset), session) == session, "acknowledged by two"

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.served.clock.advance(seconds)

    @rule()
    def checkpoint(self) -> None:
        self.served.checkpoint()

    @rule(seed=SEEDS)
    def crash(self, seed: int | None) -> None:
        for worker in (*self.workers.values(), *self.ghosts):
            worker.consumer.disconnect()
            worker.sent.clear()
        self.disk.lose_power_after(0)
        self.served.kill()
        self.disk.close()
        self.lives += 1
        self.disk = self.disk.crash(self.folder / str(self.lives), seed)
        self.served.open(self.disk.root, self.disk)

    def marks(self) -> tuple[Mark, ...]:
        return self.served.engine.view.subscriptions["billing"].marks[0]

    def reads(self, member: str) -> set[int]:
        (held,) = self.served.lake.subscriptions()
        return {bucket for found in held.members if found.name == member for _, bucket in found.buckets}

    @invariant()
    def marks_stay(self) -> None:
        """Also over a loss of power; a stream may move them over what held no rows."""
        if not self.workers and not self.ghosts:
            return
        for bucket, (mark, log) in enumerate(zip(self.marks(), self.served.state(NAME).logs, strict=True)):
            if self.known:
                assert mark.order() >= self.known[bucket].order()
            assert log.at_end(mark.offset) is not None or mark.offset == 0 or mark.cut >= 0
            ours = {offset for (number, offset) in self.acked_by if number == bucket}
            assert ours == set(range(mark.offset)), "what is acknowledged is not what the consumers have acknowledged"

    def finish(self) -> None:
        """Somebody new, once all others are gone, gets exactly the rest."""
        if not self.workers and not self.ghosts:
            return
        for name in list(self.workers):
            self.die(name)
        for ghost in self.ghosts:
            ghost.consumer.disconnect()
        self.served.clock.advance(30)
        self.start("last")
        self.poll("last", 1 << 20)
        for at in range(len(self.workers["last"].inbox)):
            self.acked(self.workers["last"], at, live=True)
        assert len(self.acked_by) == self.written, "every row is acknowledged, and once"
        with suppress(LakestoreError):
            self.die("last")


def refused_of(worker: Worker, batch: ChangeBatch) -> set[int]:
    """Acknowledge a batch; the buckets of which that does not count."""
    try:
        worker.consumer.ack(batch)
    except Fenced as error:
        refused = {number for _, number in error.buckets}
        assert refused, error
        return refused
    return set()


def undo(worker: Worker, part: Part, got: Got, mark: Mark) -> None:
    """Nothing that is not acknowledged counts as done up to and with a refused part; it may be sent again."""
    worker.undone.setdefault((part.bucket, got.turns[part.bucket]), set()).update(range(mark.offset, part.end))


def parts_of(batch: ChangeBatch) -> tuple[Part, ...]:
    """What the batch acknowledges."""
    return token_parts(position_of(batch.token))


def rows_of(batch: ChangeBatch) -> list[tuple[int, int]]:
    """(bucket, offset) of its rows."""
    table = batch.to_arrow()
    return list(zip(table["__bucket"].to_pylist(), table["__offset"].to_pylist(), strict=True))


SharingMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "3")),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestSharingMachine = pytest.mark.timeout(600)(SharingMachine.TestCase)


@pytest.fixture
def machine() -> Iterator[SharingMachine]:
    """One whose steps a test names."""
    made = SharingMachine()
    yield made
    made.teardown()


def test_what_was_sent_before_another_consumer_read_is_refused(machine: SharingMachine) -> None:
    """Of two batches of the same rows, the one from before somebody else read them counts no more."""
    machine.begin(snapshot=False, rows=0)
    machine.marks_stay()
    machine.overtake(slow="a", quick="b", seconds=10.0, cut_off=True, first=False, goes=True)
    machine.marks_stay()


def test_what_lies_behind_a_refused_batch_is_refused_after_a_restart_too(machine: SharingMachine) -> None:
    """Who was refused has undone it: the batch behind would pass over that."""
    machine.begin(snapshot=False, rows=0)
    machine.write(6)
    machine.poll("a", 8)
    machine.write(6)
    machine.poll("a", 8)
    machine.lose_connection("a")
    machine.start("b")
    machine.wait(10.0)
    machine.poll("b", 8)
    machine.ack("a", 0)
    machine.crash(None)
    machine.ack("a", 1)
    machine.come_back("a")
    machine.poll("a", 8)
    machine.ack("a", 1)
    machine.ack("a", -1)
    machine.marks_stay()


def test_what_was_refused_is_refused_when_the_first_reader_after_a_restart_is_gone(machine: SharingMachine) -> None:
    """It was undone: that nobody reads the bucket now does not bring it back."""
    machine.begin(snapshot=False, rows=6)
    machine.poll("a", 8)
    machine.crash(None)
    machine.start("b")
    machine.poll("b", 8)
    machine.ack("a", 0)
    machine.die("b")
    machine.wait(1.0)
    machine.ack("a", 0)
    machine.marks_stay()
