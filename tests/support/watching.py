"""A bank whose changes are watched over connections that break, by a server that compacts, forgets and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.client.changes import ChangeBatch, ChangeStream, request
from lakestore.errors import Unavailable
from lakestore.limits import Limits
from lakestore.model.token import place_of, position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import ChangeMessage
from tests.support.folding import values
from tests.support.seeds import seeded
from tests.support.served import DAY, Served

NAME = "bank.accounts"
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ACCOUNTS, MONEY = 12, 100
State = dict[int, dict[str, Any]]
Event = tuple[str, int, int]
"""Change, key, amount."""


class Bank:
    """One table in which every commit keeps the sum, and what it held at each LSN."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = seeded(seed)
        limits = Limits(changes_batch_rows=4, read_batch_bytes=120, fetch_batch_rows=4)
        self.served = Served(folder, limits=limits)
        self.served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=3, retention="1d")
        self.states: dict[int, State] = {}
        self.events: dict[int, list[Event]] = {}
        self._now: State = {}
        self._commit({i: MONEY for i in range(ACCOUNTS)})

    @property
    def newest(self) -> int:
        """The LSN of the last commit."""
        return max(self.states)

    def _commit(self, amounts: dict[int, int | None]) -> None:
        before = self._now
        self.served.clock.advance(1)
        with self.served.lake.commit() as commit:
            rows = [{"id": key, "n": n} for key, n in amounts.items() if n is not None]
            gone = [{"id": key} for key, n in amounts.items() if n is None]
            if gone:
                commit.delete(NAME, gone)
            if rows:
                commit.upsert(NAME, rows)
        self._now = {k: row for k, row in before.items() if amounts.get(k, 0) is not None}
        self._now |= {row["id"]: row for row in rows}
        lsn = position_of(commit.token).lsn
        self.states[lsn] = self._now
        self.events[lsn] = [_event(key, before.get(key), n) for key, n in amounts.items()]

    def transfer(self) -> None:
        """Money moves between accounts; one may be closed and another one opened, all in one commit."""
        first, second, third = self.random.sample(range(ACCOUNTS), 3)
        have = {key: self._now[key]["n"] if key in self._now else 0 for key in (first, second, third)}
        total = sum(have.values())
        share = self.random.randint(0, total)
        closed = self.random.random() < 0.3 and second in self._now
        self._commit({first: share, third: total - share, **({second: None} if closed else {second: 0})})

    def disturb(self) -> None:
        """Something that a consumer must not notice."""
        steps: list[Callable[[], object]] = [self.transfer, self.served.checkpoint, self.forget]
        if self.random.random() < 0.75:
            self.random.choice(steps)()

    def forget(self) -> None:
        """Everything is in the lake and too old: the log start moves up to who holds it."""
        self.served.tier(NAME)
        self.served.clock.advance(2 * DAY)
        self.served.run()
        self.served.checkpoint()

    def state(self, lsn: int, least: int | None) -> State:
        """What the table, or the filtered one, held at an LSN."""
        at = max((known for known in self.states if known <= lsn), default=None)
        held = {} if at is None else self.states[at]
        return {key: row for key, row in held.items() if least is None or row["n"] >= least}


def _event(key: int, before: dict[str, Any] | None, after: int | None) -> Event:
    if after is None:
        assert before is not None
        return "-D", key, before["n"]
    return ("+I" if before is None else "+U"), key, after


class Dropping:
    """The bank's server over connections that break, and over its restarts."""

    def __init__(self, bank: Bank, drops: int) -> None:
        self._bank, self.drops = bank, drops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bank.served.lake.transport, name)

    def changes(self, asked: pb.ChangesRequest) -> Iterator[ChangeMessage]:
        """As the server's, until the connection breaks."""
        left = self._bank.random.randint(1, 6)
        for message in self._bank.served.lake.transport.changes(asked):
            if not left and self.drops:
                self.drops -= 1
                if self._bank.random.random() < 0.2:
                    self._bank.served.restart()
                raise Unavailable("cut", applied="no")
            left -= 1
            yield message


def watch(bank: Bank, start: str, *, where: str = "", drops: int = 4) -> ChangeStream:
    """A subscription's stream whose connections break."""
    asked = request([NAME], start, None, None, "watch", before_images=True, where=where)
    return ChangeStream(Dropping(bank, drops), asked, progress=True)


def watched(bank: Bank, start: str, *, where: str = "", rounds: int = 20) -> Iterator[ChangeBatch]:
    """What a consumer sees that is disturbed and pauses; it ends behind the last commit."""
    stream = watch(bank, start, where=where)
    for i, batch in enumerate(stream):
        yield batch
        if bank.random.random() < 0.5:
            batch.ack()
        if i < rounds:
            for _ in range(bank.random.choice([0, 1, 1, 2, 9])):
                bank.disturb()
            if lsn_of(batch) >= bank.newest:
                bank.transfer()
        elif lsn_of(batch) >= bank.newest:
            break
    stream.close()


def lsn_of(batch: ChangeBatch) -> int:
    """Up to where a consumer has everything."""
    token = position_of(batch.token)
    return token.lsn if place_of(token) is None and batch.whole else -1


def rows_of(batch: ChangeBatch) -> list[dict[str, Any]]:
    """The changes of a batch, system columns and all."""
    return [] if batch.progress else batch.to_pylist()


__all__ = ["Bank", "Event", "State", "lsn_of", "rows_of", "values", "watch", "watched"]
