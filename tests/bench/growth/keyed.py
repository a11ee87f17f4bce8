"""One table of so many keys: random inserts, look-ups, sustained upserts beside a second producer, kill and restart.

One producer over gRPC, commits of 10,000 rows, synced journal, four buckets, the whole log is kept. The folder keeps
what was measured while it was filled, so that other measures are taken again without another fill.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakestore
from lakestore.client import writer
from lakestore.errors import LakestoreError, Unavailable
from lakestore.v1.lakestore_pb2 import StatusRequest
from tests.bench import machine
from tests.bench.growth import accounts, beside, page_cache
from tests.bench.growth.accounts import Written
from tests.bench.growth.measured import Measured, told
from tests.bench.growth.rows import BATCH_ROWS, KINDS, NUMBER, Rows
from tests.support.process import ServerProcess

TABLE = "bench.growth"
FAILURES = (LakestoreError, subprocess.SubprocessError, OSError, AssertionError)
"""Errors of one part, which is then not measured."""
PARTS = ("lookup", "upsert", "restart")
"""The measures behind the fill, in the order in which they are taken."""
WINDOW_BYTES = 16 << 20
"""Rows that the producer may have on their way, so that what it has sent is soon what is durable."""
LOOKUP_KEYS, SINGLE_LOOKUPS = 1_000, 2_000
WARM_SECONDS, LOOKUP_SECONDS = 3.0, 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest times of the parts, in seconds."""

    upsert: float = 60.0
    fill: float = 240.0
    settle: float = 30.0


class Progress:
    """Durable rows by time, of one producer."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._times: list[float] = []
        self._rows: list[int] = []

    def note(self, rows: int) -> None:
        """So many rows are durable now."""
        self._times.append(time.perf_counter() - self.began)
        self._rows.append(rows)

    def over_rows(self, parts: int) -> list[int]:
        """Rows a second over each part of the rows."""
        bounds = np.linspace(0, self._rows[-1], parts + 1)
        times = np.interp(bounds, [0, *self._rows], [0.0, *self._times])
        return [round(float(rate)) for rate in np.diff(bounds) / np.maximum(np.diff(times), 1e-9)]

    def over_seconds(self, seconds: float) -> list[int]:
        """Rows a second over each whole piece of so many seconds."""
        bounds = np.arange(0, self._times[-1] + 1e-9, seconds)
        rows = np.interp(bounds, [0.0, *self._times], [0, *self._rows])
        return [round(float(rate)) for rate in np.diff(rows) / seconds]

    @property
    def mean(self) -> float:
        """Rows a second over all."""
        return self._rows[-1] / self._times[-1]

    @property
    def seconds(self) -> float:
        """Until the last row was durable."""
        return self._times[-1]


@contextmanager
def producer(table: lakestore.Table) -> Iterator[lakestore.Writer]:
    """A writer whose commits are single batches."""
    commit_rows, writer.COMMIT_ROWS_MAX = writer.COMMIT_ROWS_MAX, BATCH_ROWS
    try:
        with table.writer() as out:
            out._window_bytes = WINDOW_BYTES
            yield out
    finally:
        writer.COMMIT_ROWS_MAX = commit_rows


def _send(out: lakestore.Writer, batches: Iterator[pa.RecordBatch], seconds: float) -> tuple[Progress, int]:
    """(progress, rows) of batches, until they or the time are over and all are durable."""
    progress, sent = Progress(), 0
    for batch in batches:
        out.upsert(batch)
        sent += batch.num_rows
        progress.note(max(sent - round(out._held_bytes / batch.nbytes * batch.num_rows), 0))
        if time.perf_counter() - progress.began > seconds:
            break
    out.flush()
    progress.note(sent)
    return progress, sent


class Keyed:
    """The measures of one number of keys, in one folder."""

    def __init__(self, folder: Path, wanted: int, limits: Limits, kind: str = NUMBER) -> None:
        """`kind` is that of the keys."""
        self._name, self._kind = kind, KINDS[kind]
        named = f"keys-{wanted}" if kind == NUMBER else f"keys-{kind}-{wanted}"
        self._folder, self._wanted, self._limits = folder / named, wanted, limits
        self._data, self._notes = self._folder / "data", self._folder / "growth.json"
        self._rows = Rows(wanted, kind)
        self._chance = np.random.default_rng(wanted)
        self.measured = Measured(keys=wanted, key=kind)

    def measure(self, parts: tuple[str, ...]) -> Measured:
        """Fill the folder unless that was done, then take the named measures; what was measured before stays."""
        if self._notes.exists():
            self.measured = Measured(**json.loads(self._notes.read_text()))
        else:
            self._data.mkdir(parents=True)
            self._note_pace("insert")
            self._fill()
        works = {"lookup": self._lookup, "upsert": self._upsert, "restart": self._restart}
        for part in parts:
            self._note_pace(part)
            try:
                works[part]()
            except FAILURES as error:  # the other parts are measured all the same
                self._say(f"{part} FAILED: {type(error).__name__} {error}")
            self._keep()
        return self.measured

    def _note_pace(self, part: str) -> None:
        self.measured.paces[part] = machine.pace(self._folder)

    def _keep(self) -> None:
        self._notes.write_text(json.dumps(asdict(self.measured), indent=1))

    def _say(self, text: str) -> None:
        sys.stderr.write(f"  {time.strftime('%H:%M:%S')} {told(self.measured)}: {text}\n")
        sys.stderr.flush()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, self._wanted, BATCH_ROWS):
            yield self._rows.of(np.arange(start, min(start + BATCH_ROWS, self._wanted), dtype=np.int64))

    def _fill(self) -> None:
        """Random inserts; with fewer keys than were asked for if the time is over before."""
        found = self.measured
        with ServerProcess(self._data) as server, lakestore.connect(server.address) as lake:
            table = lake.create_table(TABLE, self._kind.schema, primary_key=["id"])
            before = Written.of(server)
            with producer(table) as out:
                progress, found.keys = _send(out, self._batches(), self._limits.fill)
            found.insert, found.insert_tenths = progress.mean, progress.over_rows(10)
            self._say(f"inserted at {found.insert:,.0f} rows/s, by tenths {found.insert_tenths}")
            found.is_settled = accounts.settle(self._data / "index", self._limits.settle)
            found.insert_written = Written.of(server).since(before).nbytes / (found.keys * self._kind.row_bytes)
        found.index_bytes = accounts.disk_bytes(self._data / "index")
        self._keep()

    def _wanted_keys(self) -> pa.RecordBatch:
        numbers = self._chance.integers(0, self.measured.keys, LOOKUP_KEYS)
        return pa.record_batch([self._kind.of(numbers)], names=["id"])

    def _looked_up(self, table: lakestore.Table, seconds: float) -> float:
        """Keys a second of one caller who asks for a thousand at a time."""
        began, count = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            if table.lookup(self._wanted_keys()).num_rows != LOOKUP_KEYS:
                raise AssertionError("rows are missing")
            count += LOOKUP_KEYS
        return count / took

    def _lookup(self) -> None:
        """Look-ups with the files in memory, as far as the machine leaves them there."""
        found = self.measured
        found.lookup_cached = page_cache.fill(self._data)
        with ServerProcess(self._data) as server, lakestore.connect(server.address) as lake:
            table = lake.table(TABLE)
            self._looked_up(table, WARM_SECONDS)
            found.lookup = self._looked_up(table, LOOKUP_SECONDS)
            took = []
            for key in self._kind.of(self._chance.integers(0, found.keys, SINGLE_LOOKUPS)).to_pylist():
                began = time.perf_counter()
                table.lookup([{"id": key}])
                took.append((time.perf_counter() - began) * 1e3)
        found.single_p50_ms, found.single_p99_ms = (float(each) for each in np.percentile(took, [50, 99]))
        self._say(
            f"{found.lookup:,.0f} look-ups/s with {found.lookup_cached:.1%} of the files in memory, "
            f"single p50 {found.single_p50_ms:.2f} ms"
        )

    def _upserts(self) -> Iterator[pa.RecordBatch]:
        while True:
            yield self._rows.uniform(self.measured.keys)

    def _upsert(self) -> None:
        """Sustained upserts, then half as long beside a second producer; what checkpoints behind them write counts."""
        found, seconds = self.measured, self._limits.upsert
        with ServerProcess(self._data) as server, lakestore.connect(server.address) as lake:
            before, (made, spent) = Written.of(server), accounts.checkpoints(server)
            with _sampled(server) as memory, producer(lake.table(TABLE)) as out:
                progress, rows = _send(out, self._upserts(), seconds)
                second = beside.begun(server.address, TABLE, found.keys, seconds / 2, self._name)
                shared, more = _send(out, self._upserts(), seconds / 2)
            took = beside.ended(second, seconds + 60)
            rows, found.upsert_beside = rows + more, shared.mean
            found.upsert, found.upsert_seconds = progress.mean, progress.seconds
            found.upsert_tens = progress.over_seconds(min(10.0, seconds))
            self._say(f"upserts at {found.upsert:,.0f} rows/s, by ten seconds {found.upsert_tens}")
            found.is_settled = accounts.settle(self._data / "index", self._limits.settle) and found.is_settled
            written, after = Written.of(server).since(before), accounts.checkpoints(server)
            found.stored_rows = self._stored_rows(lake)
            found.segment_bytes = accounts.disk_bytes(self._data / "segments")
            found.journal_bytes = sum(path.stat().st_size for path in self._data.glob("journal*"))
        nbytes = (rows + beside.COMMIT_ROWS * len(took)) * self._kind.row_bytes
        found.upsert_written, found.upsert_cancelled = written.nbytes / nbytes, written.cancelled / nbytes
        found.checkpoints = after[0] - made
        found.checkpoint_seconds = (after[1] - spent) / max(found.checkpoints, 1)
        found.anonymous_bytes = max(memory)
        found.commit_p50_ms, found.commit_p99_ms, found.commit_max_ms = (
            float(each) for each in np.percentile(took, [50, 99, 100])
        )
        found.index_bytes_upserted = accounts.disk_bytes(self._data / "index")

    def _stored_rows(self, lake: lakestore.Lake) -> int:
        [table] = json.loads(lake.transport.status(StatusRequest(tables=[TABLE])).status)["tables"]
        return int(table["stored_rows"])

    def _restart(self) -> None:
        """Two restarts: with the files as the machine has left them in memory, and with all of them read before."""
        found = self.measured
        left = self._restarted(page_cache.share)
        found.left_restart_seconds, found.left_first_second, found.left_cached = left
        found.restart_seconds, found.lookup_first_second, found.restart_cached = self._restarted(page_cache.fill)

    def _restarted(self, prepare: Callable[[Path], float]) -> tuple[float, float, float]:
        """(seconds, keys a second, share in memory): kill -9 just behind a commit, a first look-up, a second of them.

        What is prepared between the kill and the start is not counted.
        """
        server = ServerProcess(self._data)
        with lakestore.connect(server.address) as lake, producer(lake.table(TABLE)) as out:
            _send(out, self._upserts(), min(self._limits.upsert, 5.0))
        server.kill()
        cached = prepare(self._data)
        began = time.perf_counter()
        with ServerProcess(self._data) as server, lakestore.connect(server.address) as lake:
            table = lake.table(TABLE)
            while True:
                try:
                    table.lookup(self._wanted_keys().slice(0, 1))
                    break
                except Unavailable:
                    time.sleep(0.05)
            seconds, keys = time.perf_counter() - began, self._looked_up(table, 1.0)
        self._say(f"first look-up after {seconds:.2f} s, then {keys:,.0f} keys/s, {cached:.1%} of the files in memory")
        return seconds, keys, cached


@contextmanager
def _sampled(server: ServerProcess) -> Iterator[list[int]]:
    """Samples of the anonymous memory, two a second, while the block runs."""
    found, over = [accounts.anonymous_bytes(server)], threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            found.append(accounts.anonymous_bytes(server))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
