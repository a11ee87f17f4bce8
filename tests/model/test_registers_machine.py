"""Registers under random openings, commits, lost answers, restarts, checkpoints, restores and drops, against a model.

The rows of a log are the commits that happened, in their order: each row tells its commit's moves. Followed from the
first row on, every move begins where the one before it ended, and the last values are those that the server keeps. So
a commit that is applied twice, in part, or from a place that was not there any more, breaks the chain.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.client.registers import Registers
from lakestore.client.writer import change
from lakestore.errors import Conflict, Fenced, Invalid, LakestoreError, OtherTimeline
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.durable import waited
from tests.support.seeds import seeded
from tests.support.switch import Switch, World, ends

NAMES = [f"k/{number}" for number in range(5)]
LOG, SUMS = "a.log", "a.sums"
SCHEMA = pa.schema([("moves", pa.string())])
SUM = pa.schema([("key", pa.int64()), ("total", pa.int8())])
TOO_MUCH = 100
"""Of two such values the sum has no room: only the commit loop can refuse the second one."""


@dataclass
class Held:
    """A register as the model has it."""

    epoch: int
    value: str = ""
    moved: int = 0
    request: bytes = b""
    """The request that moved it last."""


@dataclass
class History:
    """The registers and commits of the history that there is now."""

    registers: dict[str, Held] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    """Numbers of commits that were answered."""
    refused: set[int] = field(default_factory=set)
    """Numbers of commits that were refused, and by no try in doubt."""


@dataclass
class Client:
    """A process with the registers that it has open."""

    lake: Lake
    registers: Registers
    timeline: str = ""
    """The history that its registers are of."""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and last move of each register, as it knows them."""

    @property
    def switch(self) -> Switch:
        transport: Any = self.lake.transport
        wire: Switch = transport.wire
        return wire


class RegistersMachine:
    """One server, three clients that take registers from one another, and requests that come late or never were."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._chance, self.world, self.now = chance, World(root), History()
        lake = self.world.served.lake
        lake.create_table(LOG, SCHEMA, buckets=1)
        lake.create_table(SUMS, SUM, primary_key=["key"], merge={"aggregate": {"total": "sum"}}, buckets=1)
        lake.table(SUMS).upsert(pa.table({"key": [1], "total": [TOO_MUCH]}, schema=SUM))
        self._number = 0
        self._sent: list[pb.CommitRequest] = []
        self._timelines: list[str] = []
        """Histories that have ended."""
        self._backups: list[tuple[Path, History]] = []
        self.clients = [self._client() for _ in range(3)]
        self.backup()

    def _client(self) -> Client:
        lake = self.world.client()
        client = Client(lake, lake.registers([]))
        self.open(client)
        return client

    @property
    def _verbs(self) -> Any:
        return self.world.served.lake.transport

    def steps(self, count: int) -> None:
        """Random steps; the chain holds after each of them."""
        events = (self.world.restart, self.checkpoint, self.backup, self.restore, self.drop)
        for _ in range(count):
            client, number = self._chance.choice(self.clients), self._chance.randrange(12)
            if number < 4:
                self.commit(client, loses=self._chance.random() < 0.4)
            elif number < 6:
                self.open(client)
            elif number < 8:
                self.send(self._made())
            elif number < 10:
                self.send_together([self._made() for _ in range(self._chance.randint(2, 4))])
            elif number == 10:
                self.send(self._chance.choice(self._sent[-8:] or [self._made()]))
            else:
                self._chance.choice(events)()
            self.check()
        for client in self.clients:
            self.open(client)
            self.commit(client, loses=False)
        self.check()

    # Events.

    def checkpoint(self) -> None:
        """The state in a file, the journal behind it."""
        self.world.served.checkpoint()

    def backup(self) -> None:
        """A copy, and the model of it."""
        self._backups.append((self.world.backup(), deepcopy(self.now)))

    def restore(self) -> None:
        """Some earlier copy takes the server's place."""
        self._timelines.append(self.world.served.engine.timeline)
        folder, then = self._chance.choice(self._backups)
        self.world.restore(folder)
        self.now = deepcopy(then)

    def drop(self) -> None:
        """Some registers are dropped, which a row of the log tells too."""
        names = self._chance.sample(NAMES, 2)
        self.world.served.lake.drop_registers(names)
        for name in names:
            self.now.registers.pop(name, None)
        row = rows(-1, {name: ["", ""] for name in names})
        self._verbs.commit(pb.CommitRequest(changes=[change(LOG, pb.APPEND, [row])]))

    # Clients.

    def open(self, client: Client) -> None:
        """A client opens some registers, of others as well, and is told where they stand."""
        names = self._chance.sample(NAMES, self._chance.randint(1, 4))
        error = ends(lambda: client.registers.open(names))
        if error is not None:
            assert isinstance(error, (Invalid, OtherTimeline)), error
            client.registers, client.places = client.lake.registers(names), {}
        client.timeline = self.world.served.engine.timeline
        epochs = {held.name: held.epoch for held in self.world.served.lake.list_registers()}
        for name in names:
            held = self.now.registers.setdefault(name, Held(0))
            assert epochs[name] > held.epoch, "an epoch that fences nobody"
            held.epoch = epochs[name]
            client.places[name] = (held.epoch, held.moved)
            assert client.registers.progress[name] == held.value

    def _may(self, client: Client, names: list[str]) -> bool:
        """Whether a client's registers are where it left them."""
        now = self.now.registers
        there = {name: (now[name].epoch, now[name].moved) for name in names if name in now}
        is_here = client.timeline == self.world.served.engine.timeline
        return is_here and there == {name: client.places[name] for name in names}

    def commit(self, client: Client, *, loses: bool) -> None:
        """A client's commit, maybe with an answer that is lost while something happens."""
        open_here = sorted(client.registers.progress)
        mine = self._chance.sample(open_here, min(len(open_here), self._chance.randint(1, 3)))
        if not mine:
            return
        other = self._chance.choice(self.clients)
        happens: tuple[Callable[[], object], ...] = (
            lambda: None,
            self.world.restart,
            self.restore,
            lambda: self.open(other) if other is not client else None,
        )
        if loses:
            client.switch.lost["Commit"] = self._during(self._chance.choice(happens))
        self._number += 1
        number, after = self._number, {name: self._value() for name in mine}
        may = self._may(client, mine) and any(client.registers.progress[name] != after[name] for name in mine)
        befores = {name: client.registers.progress[name] for name in mine}
        moves = {name: [befores[name], after[name]] for name in mine}

        def send() -> None:
            with client.registers.commit(after) as commit:
                commit.append(LOG, pa.Table.from_batches([rows(number, moves)]))

        error = ends(send)
        client.switch.lost.clear()
        self._follow()
        assert (error is None) == may or (may and loses and error is not None and error.applied == "unknown")
        if error is None:
            self.now.acked.add(number)
            client.places |= {
                name: (self.now.registers[name].epoch, self.now.registers[name].moved)
                for name in mine
                if befores[name] != after[name]
            }
            assert dict(client.registers.progress).items() >= after.items()
            return
        assert isinstance(error, (Fenced, Conflict, OtherTimeline, Invalid)), error
        if error.applied == "no":
            self.now.refused.add(number)
        if error.applied == "unknown" or not isinstance(error, Invalid):
            client.timeline = "over"
        assert ends(send), "a client that went on after it was told to stop"

    def _during(self, happens: Callable[[], object]) -> Callable[[], None]:
        """The commit has happened, and the model follows, before something else does."""

        def both() -> None:
            self._follow()
            happens()

        return both

    # Requests of the protocol.

    def _made(self) -> pb.CommitRequest:
        """A request from where the registers are, sometimes with a lie or two in it."""
        self._number += 1
        names = self._chance.sample(NAMES, self._chance.randint(1, 3))
        request = pb.CommitRequest(timeline=self.world.served.engine.timeline)
        for name in names:
            held = self.now.registers.get(name, Held(1))
            after = held.value if self._chance.random() < 0.15 else self._value()
            request.registers.add(register=name, epoch=held.epoch, before=held.value, after=after, moved=held.moved)
        if all(move.before == move.after for move in request.registers):
            request.registers[0].after += "!"
        lies: tuple[Callable[[pb.RegisterMove], None], ...] = (
            lambda move: setattr(move, "epoch", move.epoch - 1),
            lambda move: setattr(move, "epoch", move.epoch + 1),
            lambda move: setattr(move, "before", move.before + "?"),
            lambda move: setattr(move, "moved", max(move.moved - 1, 0)),
            lambda move: setattr(move, "moved", move.moved + 1),
        )
        if self._chance.random() < 0.4:
            self._chance.choice(lies)(self._chance.choice(request.registers))
        elif self._timelines and self._chance.random() < 0.1:
            request.timeline = self._chance.choice(self._timelines)
        moves = {move.register: [move.before, move.after] for move in request.registers}
        request.changes.append(change(LOG, pb.APPEND, [rows(self._number, moves)]))
        if self._chance.random() < 0.15:
            batch = pa.record_batch({"key": [1], "total": [TOO_MUCH]}, schema=SUM)
            request.changes.append(change(SUMS, pb.UPSERT, [batch]))
        self._sent.append(request)
        return request

    def _expected(self, request: pb.CommitRequest) -> str:
        """The outcome of a request upon the registers as the model has them."""
        if request.timeline != self.world.served.engine.timeline:
            return "OtherTimeline"
        held = [self.now.registers.get(move.register) for move in request.registers]
        if any(one is None or one.epoch != move.epoch for one, move in zip(held, request.registers, strict=True)):
            return "Fenced"
        pairs = [(one, move) for one, move in zip(held, request.registers, strict=True) if one is not None]
        if all((one.value, one.moved) == (move.before, move.moved) for one, move in pairs):
            return "Invalid" if len(request.changes) > 1 else "applied"
        this = request.SerializeToString()
        return "repeated" if all(m.before == m.after or one.request == this for one, m in pairs) else "Conflict"

    def send(self, request: pb.CommitRequest) -> None:
        """One request, and its outcome as the model says."""
        expected = self._expected(request)
        try:
            answer = self._verbs.commit(request)
        except LakestoreError as error:
            assert error.kind == expected, f"{error!r} for {expected}"
        else:
            self._answered(request, answer, expected)

    def send_together(self, requests: list[pb.CommitRequest]) -> None:
        """Requests that wait in the queue together, the first one twice: as if they came one after the other."""
        served, requests = self.world.served, [*requests, requests[0]]
        go_on, stopped = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            go_on.wait(30)

        waiting = threading.Thread(target=served.engine.loop.run, args=(stop,))
        waiting.start()
        assert stopped.wait(30)
        streams = [served.verbs("Write").stream() for _ in requests]
        for stream, request in zip(streams, requests, strict=True):
            stream.take([request])
            stream.end()
        go_on.set()
        waiting.join(30)
        answers = [next(waited(stream.answers())) for stream in streams]
        for request, answer in zip(requests, answers, strict=True):
            expected = self._expected(request)
            if answer.HasField("error"):
                kind = answer.error.exact or answer.error.kind
                assert kind == expected, f"{answer.error.message} for {expected}"
            else:
                self._answered(request, answer, expected)

    def _answered(self, request: pb.CommitRequest, answer: pb.CommitAnswer, expected: str) -> None:
        assert ("repeated" if answer.is_repeated else "applied") == expected
        if expected == "applied":
            moved = {move.register: move.after for move in request.registers if move.before != move.after}
            self._moved(moved, request.SerializeToString())

    def _moved(self, after: dict[str, str], request: bytes = b"") -> None:
        """Take the commit's LSN from the server's list, which is right as far as the next commits agree with it."""
        lsns = {held.name: held.moved for held in self.world.served.lake.list_registers()}
        for name, value in after.items():
            held = self.now.registers[name]
            assert lsns[name] > held.moved
            held.value, held.moved, held.request = value, lsns[name], request

    # The model.

    def _value(self) -> str:
        """A new value; now and then one of before."""
        return str(self._chance.randrange(2)) if self._chance.random() < 0.4 else f"v{self._chance.getrandbits(32)}"

    def _follow(self) -> None:
        """Have the model know what a client's commit did, of which the client may not."""
        chain = self._chain()
        for name, held in self.now.registers.items():
            if chain.get(name, "") != held.value:
                self._moved({name: chain[name]})

    def _chain(self) -> dict[str, str]:
        """The values that the rows of the log lead to; each commit is there once, and begins where the last ended."""
        at: dict[str, str] = {}
        numbers: list[int] = []
        scanned = self.world.served.lake.table(LOG).changes(until="now")
        for text in (text for batch in scanned for text in batch.to_arrow().column("moves").to_pylist()):
            number, moves = json.loads(text)
            for name, (before, after) in moves.items():
                if number >= 0:
                    assert at.get(name, "") == before, (
                        f"commit {number} moves {name} from {before!r}, not {at.get(name)!r}"
                    )
                at[name] = after
            numbers += [number] if number >= 0 else []
        assert len(set(numbers)) == len(numbers), "applied twice"
        assert self.now.acked <= set(numbers), "acknowledged and lost"
        assert not self.now.refused & set(numbers), "refused and applied"
        return at

    def check(self) -> None:
        """The server's registers are the model's, and the log leads there."""
        chain = self._chain()
        kept = {held.name: (held.epoch, held.value, held.moved) for held in self.world.served.lake.list_registers()}
        assert kept == {name: (held.epoch, held.value, held.moved) for name, held in self.now.registers.items()}
        assert {name: value for name, (_, value, _) in kept.items()} == {name: chain.get(name, "") for name in kept}


def rows(number: int, moves: dict[str, list[str]]) -> pa.RecordBatch:
    return pa.record_batch([[json.dumps([number, moves])]], schema=SCHEMA)


def run(root: Path, chance: random.Random, steps: int) -> None:
    machine = RegistersMachine(root, chance)
    try:
        machine.steps(steps)
    finally:
        machine.world.served.close()


def test_commits_move_registers_from_where_they_are_and_once(tmp_path: Path) -> None:
    run(tmp_path, seeded(), 80)


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_commits_move_registers_through_many_histories(tmp_path: Path, number: int) -> None:
    run(tmp_path, random.Random(number), 200)
