"""Small streams of rows are read by a short way: with the same result, the same limits and the same distrust."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from lakestore.errors import Corrupt, Invalid
from lakestore.limits import Limits
from lakestore.rows import ipc

BATCH = pa.RecordBatch.from_pydict({"id": pa.array([5, None]), "name": pa.array(["a", "é"])})


def stream(batch: pa.RecordBatch = BATCH) -> bytes:
    return ipc.encode(batch.schema, [batch])


def test_the_second_stream_of_a_schema_is_read_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "_KNOWN", {})
    assert ipc.decode(stream()) == BATCH
    monkeypatch.setattr(ipc, "check_stream", None)  # the long way would fail
    assert ipc.decode(stream()) == BATCH
    other = BATCH.slice(1)
    assert ipc.decode(stream(other)) == other


def test_what_is_no_single_batch_goes_the_long_way() -> None:
    ipc.decode(stream())
    assert ipc.decode(ipc.encode(BATCH.schema, [])).num_rows == 0
    assert ipc.decode(ipc.encode(BATCH.schema, [BATCH, BATCH])).num_rows == 4
    with pytest.raises(Invalid, match="50 rows"):
        ipc.decode(stream(pa.concat_batches([BATCH] * 30)), limits=Limits(batch_rows=50))


def test_compressed_and_damaged_rows_are_refused_on_both_ways() -> None:
    ipc.decode(stream())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, BATCH.schema, options=options) as writer:
        writer.write_batch(BATCH)
    with pytest.raises(Invalid, match="compressed"):
        ipc.decode(sink.getvalue().to_pybytes())
    good = stream()
    for damaged in (
        good[:-20],
        good.replace("é".encode(), b"\xff\xff"),
        good.replace(b"\x01\0\0\0\x03", b"\x7f\0\0\0\x03"),
    ):
        assert damaged != good
        with pytest.raises(Invalid):
            ipc.decode(damaged)


def test_offsets_that_point_anywhere_are_refused_before_anything_follows_them() -> None:
    """Asking a batch that is not validated how many bytes it takes crashed the process."""
    batch = pa.RecordBatch.from_pydict({"v": pa.array([["a"], ["b", "c"]])})
    good = stream(batch)
    damaged = good.replace(struct.pack("<iii", 0, 1, 3), struct.pack("<iii", 0, 1, 1 << 30))
    assert damaged != good
    with pytest.raises(Invalid, match="not a valid"):
        ipc.decode(damaged)


def test_small_answers_of_one_schema_are_read_by_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "_TRUSTED", {})
    first, several = stream(), ipc.encode(BATCH.schema, [BATCH, BATCH])
    empty = ipc.encode(BATCH.schema, [BATCH.slice(2)])
    for _ in range(2):
        assert ipc.decode_server_rows(first, crc=ipc.crc32c(first)) == [BATCH]
        assert ipc.decode_server_rows(several, crc=ipc.crc32c(several)) == [BATCH, BATCH]
        assert ipc.decode_server_rows(empty, crc=ipc.crc32c(empty)) == [BATCH.slice(2)]
    with pytest.raises(Corrupt):
        ipc.decode_server_rows(first, crc=1)
