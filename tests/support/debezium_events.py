"""Change events in the forms that Debezium's documentation describes, made small; and blocks of records of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.records import Headers, Records

Pair = tuple[Any, Any]


def text(value: Any) -> bytes | None:
    """JSON of a value; bytes and None as they are."""
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def block(
    pairs: Sequence[Pair],
    *,
    partition: Sequence[int] = (),
    headers: Sequence[Headers | None] | None = None,
    first: int = 0,
) -> Records:
    """Records of pairs of key and value, from offset `first` on."""
    count = len(pairs)
    return Records(
        "shop.public.orders",
        "AAAA",
        np.array(partition or [0] * count, np.int64),
        np.arange(first, first + count, dtype=np.int64),
        np.zeros(count, np.int64),
        pa.array([text(key) for key, _ in pairs], pa.binary()),
        pa.array([text(value) for _, value in pairs], pa.binary()),
        headers,
    )


def event(
    op: str, before: Any = None, after: Any = None, *, source: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """An envelope as Postgres's connector writes it, unless `source` says otherwise."""
    postgres = {"version": "3.0", "connector": "postgresql", "name": "shop", "ts_ms": 1_700_000_000_000}
    postgres |= {"snapshot": "false", "db": "shop", "schema": "public", "table": "orders", "txId": 7, "lsn": 24}
    said = postgres if source is None else dict(source)
    return {"before": before, "after": after, "source": said, "op": op, "ts_ms": 1, "transaction": None} | more


def with_schema(schema: Mapping[str, Any], payload: Any) -> bytes:
    """The JSON of a converter that writes the schema into each record."""
    return json.dumps({"schema": schema, "payload": payload}).encode()
