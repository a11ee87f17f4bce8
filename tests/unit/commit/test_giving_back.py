"""Large commits that are begun anew behind small ones: nothing is lost, doubled or out of order by that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore_server.commit import build
from lakestore_server.commit import queue as commit_queue
from lakestore_server.commit.queue import CommitQueue
from lakestore_server.commit.request import Request
from tests.support.served import Served

SCHEMA = pa.schema([("of", pa.int64()), ("id", pa.int64()), ("v", pa.int64())])
ROWS, BATCHES, COMMITS = 100, 30, 100
LONG = 30.0

_BUILD = build.build


def load(table: ls.Table, of: int) -> None:
    """Rows of its own, all of them again and again."""
    for v in range(BATCHES):
        table.upsert(pa.table({"of": [of] * ROWS, "id": range(ROWS), "v": [v] * ROWS}, SCHEMA))


def commit(table: ls.Table, of: int) -> None:
    """One row of its own, again and again, with pauses: what others have just passed is not begun anew."""
    for v in range(COMMITS):
        table.upsert([{"of": of, "id": 0, "v": v}])
        time.sleep(0.005)


@pytest.mark.parametrize("merge", ["upsert", "partial"])
def test_every_row_has_all_its_values_in_order(merge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = list[int]()
    give_back = CommitQueue.give_back

    def slowly_built(group: Sequence[Request], *rest: Any) -> build.BuiltCommit:
        if group[0].changes[0].batch.num_rows > 1:
            time.sleep(0.002)
        return _BUILD(group, *rest)

    def noted(queue: CommitQueue, requests: Sequence[Request]) -> bool:
        is_back = give_back(queue, requests)
        given_back.extend([len(requests)] * is_back)
        return is_back

    monkeypatch.setattr(build, "build", slowly_built)
    monkeypatch.setattr(CommitQueue, "give_back", noted)
    monkeypatch.setattr(commit_queue, "SMALL_BYTES_MAX", 2_000)
    with Served(tmp_path / "data") as served, ThreadPoolExecutor(5) as pool:
        table = served.lake.create_table("d.t", SCHEMA, primary_key=["of", "id"], buckets=3, merge=merge)
        work = [partial(load, table, of) for of in range(3)] + [partial(commit, table, of) for of in (3, 4)]
        for each in [pool.submit(each) for each in work]:
            each.result(LONG)
        seen = dict[tuple[int, int], list[int]]()
        for batch in table.changes("earliest", until="now"):
            for row in batch.table.to_pylist():
                seen.setdefault((row["of"], row["id"]), []).append(row["v"])
    assert given_back
    loads = {(of, id): list(range(BATCHES)) for of in range(3) for id in range(ROWS)}
    assert seen == loads | {(of, 0): list(range(COMMITS)) for of in (3, 4)}
