"""Blocks of records as the assembler of transactions is told of them: runs of change events, and BEGINs and ENDs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow.compute as pc

from lakestore.connectors.bridge.outcome import Decoded
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.connectors.bridge.transactions.transactions import Ended, Place, Run, Transactions

FRAME_BYTES = 5
"""A zero and a schema's number in front of JSON of Confluent's converters."""
COUNTED = ("truncate", "message")
"""Reasons of passed records that are events of a transaction, which their end counts."""

_WITH_LSN = r"^([0-9]+):[0-9]+$"
"""Ids of PostgreSQL's connector: the transaction's number, and an LSN that BEGIN, each event and END have another of.
No other connector's ids look so: GTIDs begin with a UUID, SQL Server's have three parts."""


def runs(records: Records, decoded: Decoded) -> dict[Place, list[Run]]:
    """The runs of each partition. Events without a row are of a transaction that is not known."""
    count = len(records)
    names, orders = np.full(count, "", object), np.full(count, -1, np.int64)
    if decoded.envelope is not None and len(decoded.record):
        block = pc.struct_field(decoded.envelope, "transaction")
        ids = pc.replace_substring_regex(pc.struct_field(block, "id").fill_null(""), _WITH_LSN, r"\1")
        names[decoded.record] = ids.to_numpy(zero_copy_only=False)
        orders[decoded.record] = pc.struct_field(block, "data_collection_order").fill_null(-1).to_numpy()
    unread = np.zeros(count, bool)
    unread[[reject.record for reject in decoded.rejects]] = True
    for reason in COUNTED:
        unread[decoded.passed.get(reason, np.zeros(0, np.int64))] = True
    unread &= records.values.is_valid().to_numpy(zero_copy_only=False)
    sizes = pc.binary_length(records.values).fill_null(0).to_numpy(zero_copy_only=False)
    found: dict[Place, list[Run]] = {}
    for partition in np.unique(records.partition).tolist():
        rows = np.flatnonzero(records.partition == partition)
        found[records.topic, partition] = _runs(
            records.offset[rows], names[rows], orders[rows], unread[rows], sizes[rows]
        )
    return found


def _runs(
    offsets: Ints, names: npt.NDArray[np.object_], orders: Ints, unread: npt.NDArray[np.bool_], sizes: Ints
) -> list[Run]:
    edges = np.flatnonzero((names[1:] != names[:-1]) | (unread[1:] != unread[:-1])) + 1
    made = []
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(offsets)], strict=True):
        numbered = bool((orders[start:end] >= 0).all())
        order = orders[start:end] if numbered else None
        made.append(Run(offsets[start:end], names[start], order, int(sizes[start:end].sum()), bool(unread[start])))
    return made


def tell(transactions: Transactions, records: Records) -> list[int]:
    """Tells of BEGINs and ENDs in JSON, with or without their schema; gives the rows that are neither."""
    others = []
    for row, text in enumerate(records.values.to_pylist()):
        place, offset = (records.topic, int(records.partition[row])), int(records.offset[row])
        value = _parsed(text)
        if not told(transactions, place, offset, value):
            transactions.events(place, [Run(np.array([offset]))])
            others.append(row)
    return others


def tell_decoded(transactions: Transactions, records: Records, decoded: Decoded) -> None:
    """Tells of BEGINs and ENDs that a decoder of records has read."""
    values: list[Mapping[str, Any]] = [{} for _ in range(len(records))]
    for row, value in zip(decoded.record.tolist(), decoded.values.to_pylist(), strict=True):
        values[row] = value or {}
    for row, value in enumerate(values):
        place, offset = (records.topic, int(records.partition[row])), int(records.offset[row])
        if not told(transactions, place, offset, value):
            transactions.events(place, [Run(np.array([offset]))])


def told(transactions: Transactions, place: Place, offset: int, value: Mapping[str, Any]) -> bool:
    """Tells of one BEGIN or END; false for a value that is neither."""
    name = value.get("id")
    if not isinstance(name, str):
        return False
    name = re.sub(_WITH_LSN, r"\1", name)
    if value.get("status") == "BEGIN":
        transactions.begun(place, offset, name)
        return True
    if value.get("status") != "END":
        return False
    listed = value.get("data_collections")
    counts: dict[str, int] = {}
    for part in listed if isinstance(listed, list) else []:
        if isinstance(part, dict) and str(part.get("event_count")).isdigit():
            counts[str(part.get("data_collection"))] = int(part["event_count"])
    transactions.ended(place, offset, Ended(name, counts))
    return True


def _parsed(text: bytes | None) -> Mapping[str, Any]:
    framed = text is not None and text[:1] == b"\0"
    try:
        value = orjson.loads((text[FRAME_BYTES:] if framed and text else text) or b"null")
    except orjson.JSONDecodeError:
        return {}
    if isinstance(value, dict) and isinstance(value.get("payload"), dict):
        value = value["payload"]
    return value if isinstance(value, dict) else {}
