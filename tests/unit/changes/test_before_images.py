"""Before-images around the log start: of whatever was superseded at or above it, wherever the old row lies.

Local compaction, restarts, kills and rebuilds of the index change none of them (R20, invariants 3 and 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import PositionExpired
from lakestore.limits import Limits
from lakestore.union.verify import verify
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from tests.support.log_start import compact, move_log_start
from tests.support.served import Served

NAME = "t.keyed"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS, STEPS = 7, 22
Change = tuple[str, int, int | None]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, limits=Limits(segment_rows=8))
    yield running
    running.close()


class History:
    """One bucket, in which commit i is offset i: keys in turn, updated again and again, some deleted and put back."""

    def __init__(self, served: Served, steps: int, *, checkpoint_every: int) -> None:
        self.served, self.tokens = served, list[str]()
        self.changes: list[tuple[Change, ...]] = []
        """Of each commit, with the row before."""
        self.live: dict[int, int] = {}
        table = served.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=1)
        self.first_lsn = served.engine.view.lsn + 1
        for step in range(steps):
            key = step % KEYS if step % 5 else (step + 3) % KEYS
            before = self.live.get(key)
            if step % 7 == 6 and before is not None:
                self.tokens.append(table.delete([{"k": key}]))
                self.changes.append((("-D", key, self.live.pop(key)),))
            else:
                self.tokens.append(table.upsert([{"k": key, "v": step}]))
                image: tuple[Change, ...] = () if before is None else (("-U", key, before),)
                self.changes.append((*image, ("+I" if before is None else "+U", key, step)))
                self.live[key] = step
            if step % checkpoint_every == checkpoint_every - 1:
                served.checkpoint()
        assert served.state(NAME).logs[0].head == steps, "a commit is an offset"

    def start_at(self, step: int) -> None:
        """The log begins with this commit, and what may go has gone."""
        move_log_start(self.served.engine, NAME, self.first_lsn + step - 1)
        compact(self.served.server)

    def seen(self, start: str) -> list[Change]:
        """With before-images."""
        stream = self.served.lake.table(NAME).changes(start, until="now", before_images=True)
        return [(row["__change"], row["k"], row["v"]) for batch in stream for row in batch.to_pylist()]

    def check(self, start: int) -> None:
        """Every change from the log start on, from every position, and everything that is read elsewhere."""
        wanted = self.changes[start:]
        assert self.seen("earliest") == [change for commit in wanted for change in commit]
        for step in (start, start + 1, (start + len(self.tokens)) // 2):
            after = [change for commit in self.changes[step + 1 :] for change in commit]
            assert self.seen(self.tokens[min(step, len(self.tokens) - 1)]) == after
        if start > 1:
            with pytest.raises(PositionExpired):
                self.seen(self.tokens[start - 2])
        table = self.served.lake.table(NAME)
        assert {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == self.live
        assert {row["k"]: row["v"] for row in table.lookup([{"k": k} for k in range(KEYS)]).to_pylist()} == self.live
        if start % 3 == 0:
            assert verify(self.served.lake.transport, NAME, deep=True).problems() == []

    def stored(self) -> set[int]:
        """Offsets whose records are there."""
        log = self.served.state(NAME).logs[0]
        return {offset for found, _, _ in log.stored(0, log.head) for offset in found.tolist()}


def rebuild(served: Served) -> None:
    """The index is lost and comes again."""
    served.engine.index.found_problem("a test says so", damaged=False)
    while not served.engine.index.ready:
        served.engine.wait_beyond(1 << 60, 0.01)


@pytest.mark.parametrize("checkpoint_every", [4, 1_000], ids=["small", "one"])
def test_before_images_at_every_log_start(served: Served, tmp_path: Path, checkpoint_every: int) -> None:
    """It moves by one commit at a time, through restarts, kills and rebuilds."""
    history = History(served, STEPS, checkpoint_every=checkpoint_every)
    for start in range(1, STEPS):
        history.start_at(start)
        if start % 9 == 1:
            served.restart()
        elif start % 9 == 4:
            served.kill()
            served.open(tmp_path, RealDisk())
        elif start % 9 == 7:
            rebuild(served)
        history.check(start)


@pytest.mark.parametrize("victim", [-2, -1, 0, 1], ids=["below", "just_below", "at", "above"])
@pytest.mark.parametrize("trouble", ["restart", "rebuild"])
def test_the_row_before_lies_at_just_below_or_just_above_the_log_start(
    served: Served, victim: int, trouble: str
) -> None:
    """The predecessor of a change above the log start stays where it is, alone among rows that go."""
    table = served.lake.create_table(NAME, SCHEMA, primary_key=["k"], buckets=1)
    place, start = 20 + victim, 20
    first_lsn = served.engine.view.lsn + 1
    for step in range(40):
        table.upsert([{"k": 7 if step == place else step % 3, "v": step}])
        if step in (start - 1, start):
            served.checkpoint()
    table.upsert([{"k": 7, "v": 99}])
    table.delete([{"k": 7}])
    move_log_start(served.engine, NAME, first_lsn + start - 1)
    compact(served.server)
    served.restart() if trouble == "restart" else rebuild(served)
    log = served.state(NAME).logs[0]
    assert (log.base.end, log.base.live_rows) == (start, 3 + (victim < 0))
    assert sum(chunk.rows for chunk in log.chunks if chunk.end <= start) == log.base.live_rows, "only what lives there"
    assert any(isinstance(chunk, Segment) and chunk.is_sparse for chunk in log.chunks)
    stream = served.lake.table(NAME).changes(until="now", before_images=True)
    found = [(r["__change"], r["v"]) for batch in stream for r in batch.to_pylist() if r["k"] == 7]
    images = [("-U", place), ("+U", 99), ("-D", 99)]
    assert found == (images if victim < 0 else [("+I", place), *images])


def test_a_row_is_dropped_only_when_its_successor_lies_below_the_log_start(served: Served) -> None:
    """At every log start what lives there is stored; and of the dead there are never more than of the living."""
    history = History(served, STEPS, checkpoint_every=1)
    live: dict[int, int] = {}
    for step, commit in enumerate(history.changes):
        change, key, _ = commit[-1]
        if change == "-D":
            del live[key]
        else:
            live[key] = step
        history.start_at(step + 1)
        below = {offset for offset in history.stored() if offset <= step}
        assert below >= set(live.values())
        assert len(below) <= 2 * len(live) + 1
