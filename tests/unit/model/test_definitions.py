"""Definitions that come over the wire: what cannot be kept is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model import table as schema
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.mark.parametrize(
    ("column", "key", "value"),
    [(1, "type", "decimal(50,2)"), (1, "type", "decimal(5,9)"), (0, "required", False), (None, "buckets", 2.5)],
)
def test_a_definition_that_cannot_be_kept_is_refused_and_the_server_lives(
    served: Served, column: int | None, key: str, value: object
) -> None:
    definition = json.loads(schema.define("a.b", SCHEMA, primary_key=["id"]).to_json())
    (definition if column is None else definition["columns"][column])[key] = value
    with pytest.raises(Invalid):
        served.lake.transport.create_table(pb.CreateTableRequest(definition=json.dumps(definition)))
    served.lake.create_table("a.b", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": "a"}])
