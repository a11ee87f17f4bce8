"""The verb of producers: a defect in it is told to its client."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakestore.errors import LakestoreError
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_defect_in_a_write_stream_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])

    def broken(*_: object) -> None:
        raise ValueError("boom")

    monkeypatch.setattr("lakestore_server.commit.producers.change_of", broken)
    opened = table.writer()
    opened.upsert([{"id": 1, "v": "a"}])
    with pytest.raises(LakestoreError, match="boom"):
        opened.flush()
