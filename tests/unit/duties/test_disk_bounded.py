"""Endless updates of a table of N rows take a bounded disk, by bytes and by files, while it is read and written."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.log_start import compact
from tests.support.served import Served

NAME = "t.keyed"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.binary())])
ROWS, PER_COMMIT, TEXT = 2_000, 500, 100
UPDATES = 25 * ROWS
JOURNAL, KEPT = 256 << 10, 512 << 10
LIMITS = Limits(journal_checkpoint_bytes=JOURNAL, journal_bytes=4 * JOURNAL, segment_rows=1_000)


def used(folder: Path) -> Counter[str]:
    """Bytes on disk of each kind of file, and how many files there are."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                kind = next((name for name in ("journal", "segments", "index") if name in str(path)), "other")
                found[kind] += path.stat().st_blocks * 512
                found["files"] += 1
        except FileNotFoundError:  # removed by a checkpoint beside
            continue
    found["bytes"] = sum(size for name, size in found.items() if name != "files")
    return found


def batch(chance: np.random.Generator, ids: np.ndarray, value: int) -> pa.Table:
    """Rows that do not compress."""
    texts = pa.array([chance.bytes(TEXT) for _ in ids], pa.binary())
    return pa.table([pa.array(ids), pa.array(np.full(len(ids), value)), texts], schema=SCHEMA)


class Reader:
    """Reads all the time; what it sees of a key never goes back, and no key is missing."""

    def __init__(self, served: Served) -> None:
        self._table, self._stop, self.reads = served.lake.table(NAME), threading.Event(), 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = np.zeros(ROWS, dtype=np.int64)
        asked = [{"k": k} for k in range(0, ROWS, 40)]
        while not self._stop.wait(0.02):
            now = np.full(ROWS, -1)
            for batch in self._table.changes("snapshot", columns=["k", "v"], until="now"):
                now[batch.to_arrow()["k"].to_numpy()] = batch.to_arrow()["v"].to_numpy()
            found = self._table.lookup(asked, columns=["v"])["v"].to_numpy()
            if (now < last).any() or (found < now[::40]).any():
                self.wrong.append(f"{int((now < 0).sum())} rows are missing, {int((now < last).sum())} went back")
            last, self.reads = now, self.reads + 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_endless_updates_take_a_bounded_disk_in_bytes_and_files(tmp_path: Path) -> None:
    served = Served(tmp_path, limits=LIMITS)
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=2, retention={"bytes": KEPT})
    chance = np.random.default_rng(3)
    table.upsert(batch(chance, np.arange(ROWS), 0))
    served.checkpoint()
    live = ROWS * (TEXT + 16)
    reader, seen = Reader(served), list[Counter[str]]()
    for number in range(1, UPDATES // PER_COMMIT + 1):
        served.clock.advance(1)
        table.upsert(batch(chance, chance.choice(ROWS, PER_COMMIT, replace=False), number))
        if number % 8 == 0:
            served.checkpoint()
            served.tier(NAME)
            served.run()
            compact(served.server)
        seen.append(used(tmp_path))
    reader.stop()
    assert reader.wrong == []
    assert reader.reads > 5
    assert sum(served.state(NAME).starts()) > UPDATES * 0.9, "the log start followed"
    half = len(seen) // 2
    segments = 1.5 * (3 * live + 2 * KEPT)  # a shared file is emptied when a third of it is gone
    for name, most in (("segments", segments), ("journal", 4 * JOURNAL), ("index", 4 << 20), ("files", 60)):
        assert max(each[name] for each in seen) < most, name
    first, second = (np.mean([each["bytes"] for each in part]) for part in (seen[8:half], seen[half:]))
    assert second < 1.2 * first, "it does not grow"
    for each in served.lake.transport.audit(pb.AuditRequest(table=NAME, deep=True)).buckets:
        assert each.live_sum == each.log_sum == each.index_sum
    served.close()
    assert used(tmp_path)["bytes"] < UPDATES * TEXT / 4
