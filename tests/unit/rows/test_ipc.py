"""Arrow streams of rows."""

from __future__ import annotations

import pyarrow as pa

from lakestore.rows import ipc

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_stream_without_batches_is_no_rows() -> None:
    assert ipc.decode(ipc.encode(SCHEMA, [])).num_rows == 0
