"""The demo's producer and its subscriber to the changelog."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore_demo.shop import EVENTS, ORDERS, Shop, State, hashes_of

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

LOAD_ORDERS = 100_000
LOAD_STEP_ORDERS = 20_000
STEP_INSERTS, STEP_UPDATES, STEP_DELETES = 300, 600, 100
STEPS_PER_SECOND = 2


@dataclass(frozen=True, slots=True)
class _Sent:
    """A commit of the producer."""

    rows: int
    token: str


class Producer:
    """Writes a change stream: first a load at full speed, then steps at a steady pace."""

    def __init__(self, lake: Lake, seed: int = 7) -> None:
        self._lake = lake
        self.shop = Shop(seed)
        self.rows = self.loaded_rows = 0
        self.load_seconds = self.stream_seconds = 0.0
        self.commit_seconds: list[float] = []

    def load(self) -> None:
        """Write the orders that exist before the stream begins."""
        started = time.perf_counter()
        for _ in range(LOAD_ORDERS // LOAD_STEP_ORDERS):
            self.loaded_rows += self._commit(LOAD_STEP_ORDERS, 0, 0).rows
        self.load_seconds = time.perf_counter() - started

    def stream(self, stop: threading.Event) -> None:
        started = due = time.perf_counter()
        while not stop.is_set():
            self.step()
            due = max(due + 1 / STEPS_PER_SECOND, time.perf_counter() - 1)
            stop.wait(max(0.0, due - time.perf_counter()))
        self.stream_seconds = time.perf_counter() - started

    def step(self) -> str:
        """Commit one step to both tables. Returns the token."""
        started = time.perf_counter()
        sent = self._commit(STEP_INSERTS, STEP_UPDATES, STEP_DELETES)
        self.rows += sent.rows
        self.commit_seconds.append(time.perf_counter() - started)
        return sent.token

    def _commit(self, inserts: int, updates: int, deletes: int) -> _Sent:
        step = self.shop.step(inserts, updates, deletes)
        with self._lake.commit() as commit:
            commit.upsert(ORDERS, step.changed)
            if step.deleted.num_rows:
                commit.delete(ORDERS, step.deleted)
            commit.append(EVENTS, step.events)
        return _Sent(step.rows, str(commit.token))


class Subscriber:
    """Follows the changelog of the orders and folds it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.state = State()
        self.changes = 0
        self.lag_seconds: list[float] = []
        self.stopping = threading.Event()
        """Set before the last commit, which wakes the stream."""
        self.end: Future[str] = Future()
        """Token of the last commit."""

    def follow(self) -> None:
        """Fold changes until stopped, then up to the last commit exactly."""
        orders, token = self._lake.table(ORDERS), None
        for batch in orders.changes(start="earliest", before_images=True):
            token = batch.token
            self._fold(batch.to_arrow(), live=True)
            if self.stopping.is_set():
                break
        for batch in orders.changes(start=str(token), until=self.end.result(), before_images=True):
            self._fold(batch.to_arrow(), live=False)

    def _fold(self, table: pa.Table, *, live: bool) -> None:
        if not table.num_rows:
            return
        if live:
            newest = pc.max(table.column("__timestamp")).cast(pa.int64()).as_py()
            self.lag_seconds.append(max(0.0, time.time() - newest / 1e6))
        after = table.filter(pc.not_equal(table.column("__change"), "-U"))
        hashes = hashes_of(after)
        hashes[pc.equal(after.column("__change"), "-D").to_numpy()] = 0
        self.state.put(after.column("order_id").to_numpy(), hashes)
        self.changes += after.num_rows


def quantile(values: list[float], share: float) -> float:
    """The quantile of values; 0 without values."""
    return float(np.quantile(values, share)) if values else 0.0
