"""Field ids in the metadata of Arrow fields, as Parquet and ORC files carry them."""

from __future__ import annotations

import pyarrow as pa

FIELD_ID, ORC_FIELD_ID = b"PARQUET:field_id", b"iceberg.id"


def id_of(field: pa.Field) -> int | None:
    """The field id that a file carries, if it does."""
    metadata = field.metadata or {}
    found = metadata.get(FIELD_ID, metadata.get(ORC_FIELD_ID))
    return None if found is None else int(found)
