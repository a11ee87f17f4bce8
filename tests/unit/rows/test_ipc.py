"""Arrow streams of rows."""

from __future__ import annotations

import pyarrow as pa

from lakestore.rows import ipc

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_stream_without_batches_is_no_rows() -> None:
    assert ipc.decode(ipc.encode(SCHEMA, [])).num_rows == 0


def test_a_stream_of_one_batch_is_as_a_writer_makes_it() -> None:
    coded = pa.array(["a", "b", "a"]).dictionary_encode()
    nested = pa.array([[{"d": value}] for value in ("x", "y", "x")])
    for column in (pa.array([1, None, 3]), pa.array(["a", "é", None]), nested, coded, pa.array([[1], None, []])):
        batch = pa.record_batch([column], names=["c"]).slice(1)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        assert ipc.encode(batch.schema, [batch]) == sink.getvalue().to_pybytes()
