"""Rows that no message could hold: refused when written, and named, and rid of, where an older folder has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore_server.commit import request
from tests.support.served import Served

MESSAGE = 1 << 20
LIMITS = Limits(message_bytes=MESSAGE, read_batch_bytes=1 << 19)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.binary()), ("w", pa.binary())])


def _rows(number: int, size: int, **more: Any) -> pa.Table:
    plain = pa.table({"id": [1, 2, number], "v": pa.array([b"a", b"b", bytes(size)], pa.binary())})
    return plain if not more else plain.append_column("w", pa.array([None, None, more["w"]], pa.binary()))


def _paths(served: Served, name: str) -> list[Callable[[], Any]]:
    table = ls.connect(served.server.about["grpc"]).table(name)
    return [
        lambda: table.scan().to_arrow(),
        lambda: [*table.changes("earliest", until="now")],
        lambda: [*table.changes("earliest", until="now", before_images=True)],
        lambda: [*table.changes("snapshot", until="now")],
        lambda: [*table.changes("snapshot", until="now", subscription="s", shared=True, member="m")],
        lambda: table.lookup([{"id": 3}]),
        lambda: table.lookup([{"id": 1}, {"id": 3}]),
    ]


def test_a_row_is_taken_if_and_only_if_every_way_can_send_it(tmp_path: Path) -> None:
    with Served(tmp_path, limits=LIMITS, ports=True) as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        log = served.lake.create_table("a.log", SCHEMA, buckets=1)
        most = request.row_bytes_max(served.state("a.t").table, MESSAGE)
        for size in (most + 1, MESSAGE - 500, 2 * MESSAGE):
            with pytest.raises(Invalid, match=r"table a\.t: row 2 takes \d+ bytes"):
                table.upsert(_rows(3, size))
            with pytest.raises(Invalid, match=r"table a\.log: row 2 takes \d+ bytes"):
                log.append(_rows(3, size))
        assert table.scan().count() == log.scan().count() == 0
        table.upsert(_rows(3, most - 100))
        table.upsert(_rows(3, most - 101))
        for read in _paths(served, "a.t"):
            read()


def test_a_merge_does_not_make_a_row_too_large(tmp_path: Path) -> None:
    with Served(tmp_path, limits=LIMITS) as served:
        half = bytes(MESSAGE * 2 // 3)
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1, merge="partial")
        table.upsert(pa.table({"id": [3], "v": pa.array([half], pa.binary())}))
        with pytest.raises(Invalid, match=r"the merged row id=3 takes \d+ bytes"):
            table.upsert(pa.table({"id": [2, 3], "w": pa.array([b"x", half], pa.binary())}))
        assert table.scan(columns=["id"]).to_arrow().column("id").to_pylist() == [3]
        schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
        grows = served.lake.create_table("a.l", schema, primary_key=["id"], merge=ls.aggregate({"s": "string_list"}))
        grows.upsert([{"id": 3, "s": "x" * (MESSAGE // 2)}])
        with pytest.raises(Invalid, match="the merged row id=3"):
            grows.upsert([{"id": 3, "s": "y" * (MESSAGE // 2)}])


def test_a_row_of_an_older_folder_is_named_and_can_be_deleted(tmp_path: Path) -> None:
    with Served(tmp_path, limits=Limits(message_bytes=4 * MESSAGE)) as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        table.upsert(_rows(3, 2 * MESSAGE))
    with Served(tmp_path, limits=LIMITS, ports=True) as served:
        for read in _paths(served, "a.t"):
            with pytest.raises(Invalid, match=r"the row id=3.*delete it by its key"):
                read()
        table = ls.connect(served.server.about["grpc"]).table("a.t")
        assert table.scan(columns=["id"]).to_arrow().num_rows == 3
        assert sum(len(batch) for batch in table.changes("earliest", until="now", columns=["id"])) == 3
        table.delete([{"id": 3}])
        assert table.scan().to_arrow().num_rows == 2
        assert sum(len(batch) for batch in table.changes("snapshot", until="now")) == 2


@pytest.mark.parametrize("read_batch_bytes", [MESSAGE, 16 << 20])
@pytest.mark.parametrize("size", [MESSAGE * 9 // 10, MESSAGE * 2 // 5, 5_000], ids=["one", "two", "many"])
def test_rows_that_fit_one_by_one_are_cut_into_messages_that_fit(
    tmp_path: Path, size: int, read_batch_bytes: int
) -> None:
    """A message may hold less than a batch of a read."""
    limits = Limits(message_bytes=MESSAGE, read_batch_bytes=read_batch_bytes)
    with Served(tmp_path, limits=limits, ports=True) as served:
        table = served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        log = served.lake.create_table("a.log", SCHEMA, buckets=1)
        count = max(3, 3 * MESSAGE // size)
        every = pa.table({"id": range(count), "v": pa.array([bytes(size)] * count, pa.binary())})
        for batch in every.to_batches(max_chunksize=max(MESSAGE // 2 // size, 1)):
            table.upsert(pa.table(batch))
            log.append(pa.table(batch))
        for _ in range(2):
            for read in _paths(served, "a.t"):
                read()
            reader = ls.connect(served.server.about["grpc"])
            assert reader.table("a.log").scan().to_arrow().num_rows == count
            assert reader.table("a.t").lookup(every.select(["id"])).num_rows == count
            assert sum(b.table.num_rows for b in reader.table("a.log").changes("earliest", until="now")) == count
            served.checkpoint()
