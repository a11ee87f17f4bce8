"""Clients live through restarts, restores, dropped tables and forgotten producers, in random order.

Held against a plain model: of the history and the table that there are now no acknowledged row is missing, none is
there twice, none of another history or table is there, and nothing refused with `applied="no"` is stored. A client
is told of each thing that happened once, by name, and then goes on. A subscription's consumer gets every
row behind its position once and passes none over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.client.producer import Producer
from lakestore.client.table import Table
from lakestore.client.writer import Writer, change
from lakestore.errors import Fenced, LakestoreError, NotFound, OtherTimeline, ProducerForgotten
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.seeds import seeded
from tests.support.switch import Switch, World

NAME = "a.log"
SCHEMA = pa.schema([("n", pa.int64())])
NAMED = (Fenced, NotFound, OtherTimeline)
"""The errors that a client may be told of; `ProducerForgotten` is `Fenced`."""


@dataclass
class History:
    """The rows of the table that there is now, in the history that there is now."""

    acked: set[int] = field(default_factory=set)
    maybe: set[int] = field(default_factory=set)
    """Rows whose outcome is unknown."""
    delivered: set[int] = field(default_factory=set)
    """Rows that the subscription has acknowledged."""
    progress: dict[str, set[str]] = field(default_factory=dict)
    """Producer to what its progress may be."""


@dataclass
class Client:
    """A process."""

    lake: Lake
    table: Table
    writers: dict[str, Writer] = field(default_factory=dict)
    """By the producer's name; empty for one without a name."""
    stream: Any = None

    @property
    def switch(self) -> Switch:
        transport: Any = self.lake.transport
        wire: Switch = transport.wire
        return wire


class IdentityMachine:
    """One table, one server, three clients."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._chance, self.world = chance, World(root)
        self.now, self._number, self._epoch = History(), 0, 0
        self._backups: list[tuple[Path, History, str]] = []
        self._table = self.world.served.lake.create_table(NAME, SCHEMA, buckets=1).definition.uuid
        self.clients = [self._client() for _ in range(3)]
        self._older = Producer("f" * 32)
        self.backup()

    def _client(self) -> Client:
        lake = self.world.client()
        return Client(lake, lake.table(NAME))

    def steps(self, count: int) -> None:
        """Random steps; the model holds after each of them."""
        events = (self.restart, self.backup, self.restore, self.recreate, self.forget)
        for _ in range(count):
            self._step(self._chance.choice(self.clients), self._chance.choice(events))
            self.check()
        for client in self.clients:
            self.write(client, loses=False)
            self.write_by_writer(client, "", loses=False)
        self.check()

    def _step(self, client: Client, event: Callable[[], None]) -> None:
        number = self._chance.randrange(10)
        if number < 3:
            self.write(client)
        elif number < 7:
            self.write_by_writer(client, "" if number < 5 else "etl")
        elif number == 7:
            self.write_by_an_older_client()
        elif number == 8:
            self.consume(client)
        else:
            event()

    # Events.

    def restart(self) -> None:
        """The server ends and begins again."""
        self.world.restart()

    def backup(self) -> None:
        """A copy, and the model of it."""
        self._backups.append((self.world.backup(), deepcopy(self.now), self._table))

    def restore(self) -> None:
        """Some earlier copy takes the server's place; copies of the history that ends stay as they are."""
        folder, then, table = self._chance.choice(self._backups)
        self.world.restore(folder)
        self.now, self._table, self._epoch = deepcopy(then), table, self._epoch + 1

    def recreate(self) -> None:
        """The table is dropped, and another one gets its name; a subscription of it goes with it."""
        lake = self.world.served.lake
        lake.drop_table(NAME)
        for held in lake.subscriptions():
            lake.drop_subscription(held.name)
        self._table = lake.create_table(NAME, SCHEMA, buckets=1).definition.uuid
        self.now = History(progress=self.now.progress)

    def forget(self) -> None:
        """Everybody rests for longer than the server remembers producers without a name."""
        self.world.served.clock.advance(2 * 3_600)
        self._number += 1
        batch = rows(self._number)
        self.world.served.lake.transport.commit(pb.CommitRequest(changes=[change(NAME, pb.APPEND, [batch])]))
        self.now.acked.add(self._number)

    # Clients.

    def write(self, client: Client, *, loses: bool = True) -> None:
        """One commit, maybe with an answer that is lost while something happens; then one that succeeds."""
        self._written(client, "Commit", lambda value: client.table.append(pa.Table.from_batches([rows(value)])), loses)

    def write_by_writer(self, client: Client, name: str, *, loses: bool = True) -> None:
        """The same by a writer, which is opened again after an error."""

        def send(value: int) -> None:
            if name not in client.writers:
                writer = client.table.writer(producer=name or None)
                if name:
                    assert writer.progress in self.now.progress.get(name, {""}), "progress of this history"
                    self.now.progress[name] = {writer.progress}
                client.writers[name] = writer
            writer = client.writers[name]
            try:
                writer.append(pa.Table.from_batches([rows(value)]), progress=str(value) if name else "")
                writer.flush()
            except LakestoreError:
                del client.writers[name]
                raise

        self._written(client, "Write", send, loses, name)

    def _written(
        self, client: Client, rpc: str, send: Callable[[int], object], loses: bool, producer: str = ""
    ) -> None:
        event = self._chance.choice((lambda: None, self.restart, self.restore, self.recreate, self.forget))
        if loses and self._chance.random() < 0.4:
            client.switch.lost[rpc] = event
        told: list[LakestoreError] = []
        while (error := self._try(client, send, producer)) is not None:
            client.switch.lost.clear()
            assert type(error) not in map(type, told), f"stuck: {error!r} after {told!r}"
            told.append(error)
        client.switch.lost.clear()

    def _try(self, client: Client, send: Callable[[int], object], producer: str) -> LakestoreError | None:
        self._number += 1
        value, epoch, table = self._number, self._epoch, client.table.definition.uuid
        try:
            send(value)
        except NAMED as error:
            assert epoch == self._epoch or error.applied == "unknown" or isinstance(error, (OtherTimeline, NotFound))
            if error.applied == "unknown" and (epoch, table) == (self._epoch, self._table):
                self.now.maybe.add(value)
                self.now.progress.setdefault(producer, {""}).add(str(value))
            if isinstance(error, NotFound):
                client.table = client.lake.table(NAME)
                client.writers.clear()
            return error
        # What was sent to a table that was dropped before its answer came is acknowledged, and gone with that table.
        if table == self._table:
            self.now.acked.add(value)
        if producer:
            self.now.progress[producer] = {str(value)}
        return None

    def write_by_an_older_client(self) -> None:
        """It says neither history nor table; after an error it takes another name."""
        for _ in range(2):
            self._number += 1
            request = self._older.request([change(NAME, pb.APPEND, [rows(self._number)])])
            try:
                self.world.served.lake.transport.commit(request)
            except (LakestoreError, ProducerForgotten) as error:
                assert error.applied == "unknown", "or it would use the same name for ever"
                self._older = Producer(f"{self._chance.getrandbits(128):032x}")
            else:
                self.now.acked.add(self._number)
                return
        pytest.fail("an older client is stuck")

    def consume(self, client: Client) -> None:
        """One consumer reads all there is; the others' streams end."""
        for other in self.clients:
            if other is not client and other.stream is not None:
                other.stream.close()
                other.stream = None
        held = self._contents()
        for _ in range(2):
            try:
                self._read_all(client, held)
            except (OtherTimeline, NotFound, Fenced):
                client.stream = None
            else:
                return
        pytest.fail("a consumer is stuck")

    def _read_all(self, client: Client, held: list[int]) -> None:
        if client.stream is None:
            client.stream = client.lake.changes([NAME], subscription="s")
        while self.now.delivered != set(held):
            batch = client.stream.next(10)
            assert batch is not None, f"passed over: {set(held) - self.now.delivered}"
            got = batch.to_arrow().column("n").to_pylist()
            batch.ack()
            assert not self.now.delivered & set(got), "acknowledged rows come again"
            assert set(got) <= set(held), "rows of another history or table"
            self.now.delivered |= set(got)

    # The model.

    def _contents(self) -> list[int]:
        return sorted(self.world.served.lake.table(NAME).scan().to_arrow().column("n").to_pylist())

    def check(self) -> None:
        """The table holds what the model says."""
        held = self._contents()
        assert len(set(held)) == len(held), "applied twice"
        assert self.now.acked <= set(held), f"acknowledged and lost: {self.now.acked - set(held)}"
        assert set(held) <= self.now.acked | self.now.maybe, f"from elsewhere: {set(held) - self.now.acked}"
        self.now.acked, self.now.maybe = set(held), set()


def rows(value: int) -> pa.RecordBatch:
    return pa.record_batch([[value]], schema=SCHEMA)


def run(root: Path, chance: random.Random, steps: int) -> None:
    machine = IdentityMachine(root, chance)
    try:
        machine.steps(steps)
    finally:
        machine.world.served.close()


def test_nothing_crosses_from_one_history_or_table_to_another(tmp_path: Path) -> None:
    run(tmp_path, seeded(), 60)


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_nothing_crosses_in_many_histories(tmp_path: Path, number: int) -> None:
    run(tmp_path, random.Random(number), 150)
