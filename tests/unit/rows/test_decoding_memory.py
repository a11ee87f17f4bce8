"""What unfolds in the server is bounded by its own limits, and counted before it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Exhausted, Invalid
from lakestore.limits import Limits
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.request import change_of
from lakestore_server.host.quota import Quota
from lakestore_server.state.view import Versions

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.string())])
COUNT, TEXT = 1_000, "x" * 1_000


def named_often() -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(COUNT, dtype=np.int8)), pa.array([TEXT]))


def viewed_often() -> pa.Array:
    text = TEXT.encode()
    view = np.frombuffer(np.array([len(text)], "<i4").tobytes() + text[:4] + bytes(8), dtype=np.uint8)
    return pa.Array.from_buffers(
        pa.string_view(), COUNT, [None, pa.py_buffer(np.tile(view, COUNT)), pa.py_buffer(text)]
    )


BOMBS = [named_often, viewed_often]


def message(columns: dict[str, pa.Array]) -> pb.Change:
    table = pa.table(columns)
    data = ipc.encode(table.schema, table.to_batches())
    return pb.Change(table="a.b", kind=pb.UPSERT, rows=data, crc32c=ipc.crc32c(data))


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("column", ["id", "v"])
def test_rows_that_unfold_beyond_the_servers_own_limit_are_refused(
    tmp_path: Path, bomb: Callable[[], pa.Array], column: str
) -> None:
    """The limit is set far below its default, under which all of this would be taken."""
    columns = {"id": pa.array([str(i) for i in range(COUNT)]), column: bomb()}
    with ls.open(tmp_path / "data", limits=Limits(batch_memory_bytes=500_000)) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        with pytest.raises(Invalid, match=rf"'{column}' unfolds.*500000 bytes"):
            lake.transport.commit(pb.CommitRequest(changes=[message(columns)]))
        asked = message({"id": bomb()}).rows
        with pytest.raises(Invalid, match=r"'id' unfolds.*500000 bytes"):
            lake.transport.lookup(pb.LookupRequest(table="a.b", keys=asked))
        assert table.scan().count() == 0


def test_a_default_is_paid_for_as_often_as_it_is_filled_in(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data", limits=Limits(batch_memory_bytes=500_000)) as lake:
        table = lake.create_table("a.b", pa.schema([("n", pa.int64())]))
        table.alter(add={"v": pa.string()}, default={"v": TEXT}, new_rows_only=True)
        data = pa.table({"n": np.arange(COUNT)})
        change = message({"n": data["n"].combine_chunks()})
        change.kind = pb.APPEND
        with pytest.raises(Invalid, match=r"'v' unfolds.*500000 bytes"):
            lake.transport.commit(pb.CommitRequest(changes=[change]))


@pytest.mark.parametrize("bomb", BOMBS)
def test_bytes_that_will_unfold_are_claimed_before_they_do(tmp_path: Path, bomb: Callable[[], pa.Array]) -> None:
    with ls.open(tmp_path / "data") as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"]).definition
    change = message({"id": pa.array([str(i) for i in range(COUNT)]), "v": bomb()})
    permits = Quota(500_000, 0.0, "no memory")
    with permits.taken(1):
        with permits.taken(len(change.rows)) as claim, pytest.raises(Exhausted, match="no memory"):
            change_of(Versions.first(table, 0), change, "p", claim=claim)
        assert permits.held == 1
    with permits.taken(len(change.rows)) as claim:
        assert change_of(Versions.first(table, 0), change, "p", claim=claim).batch.num_rows == COUNT
        assert permits.held == 500_000, "one that is alone gets all there is"
    assert permits.held == 0
