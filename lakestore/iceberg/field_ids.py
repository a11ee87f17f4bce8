"""Field ids in the metadata of Arrow fields, where readers of Parquet and ORC put them."""

from __future__ import annotations

import pyarrow as pa

FIELD_ID, ORC_FIELD_ID = b"PARQUET:field_id", b"iceberg.id"


def id_of(field: pa.Field) -> int | None:
    """The field id; None if the file has none for this field."""
    metadata = field.metadata or {}
    found = metadata.get(FIELD_ID, metadata.get(ORC_FIELD_ID))
    return None if found is None else int(found)
