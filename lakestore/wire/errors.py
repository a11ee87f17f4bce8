"""Errors as gRPC metadata, and the error that a bare status tells of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyroaring import BitMap

from lakestore.errors import (
    KINDS,
    Applied,
    Fenced,
    Internal,
    LakestoreError,
    NothingToKeep,
    NotLeader,
    RuleRows,
    Violated,
    error_of,
    figures_of,
)
from lakestore.v1 import lakestore_pb2 as pb

ERROR_KEY = "lakestore-error-bin"
BUSY_SECONDS = 0.5
"""The pause before a client calls a server again that serves as many calls as it can."""
_NOT_CONNECTED = "failed to connect to all addresses"
"""gRPC's text begins so for a call without a connection: no server received it."""
RETRY_KEY = "lakestore-retry-after"
"""Seconds, as text. It has its own entry, because older clients expect three parts in the first one."""
BUCKETS_KEY = "lakestore-buckets-bin"
"""The buckets that a `Fenced` names, by table, as JSON."""
EXACT_KEY = "lakestore-kind"
"""The exact kind of an error, if older clients do not know it. They ignore this entry."""
ROWS_KEY = "lakestore-rows-bin"
"""The rows that a `NothingToKeep` or a `Violated` names, as `ChangesRows`."""
FIGURES_KEY = "lakestore-figures-bin"
"""The figures of a `NotFresh`, `NeedsApproval`, `NotLeader` or `PositionExpired`, as JSON."""
ROWS_BYTES_MAX = 256 << 10
"""The most bytes of row numbers in an error; the first change is always complete."""
KINDS_SINCE_5 = {
    "OtherTimeline": "PositionExpired",
    "ProducerForgotten": "Fenced",
    "NothingToKeep": "Invalid",
    "Violated": "Invalid",
    "NotFresh": "Exhausted",
    "LimitReached": "Exhausted",
    "NotLeader": "Unavailable",
    "NeedsApproval": "Denied",
}
"""Kinds that came with protocol 5 or later, and the wider kind that clients of every protocol know."""
Metadata = tuple[tuple[str, str | bytes], ...]


def told_kinds(kind: str) -> tuple[str, str]:
    """(the kind that every client knows, the exact kind or "" if it is the same)."""
    wider = KINDS_SINCE_5.get(kind, "")
    return (wider, kind) if wider else (kind, "")


def known_kind(kind: str, exact: str) -> str:
    """`exact` if this release knows it, otherwise `kind`."""
    return exact if exact in KINDS else kind


def pack_error(error: LakestoreError) -> Metadata:
    """An error as metadata."""
    kind, exact = told_kinds(error.kind)
    told: list[tuple[str, str | bytes]] = [(ERROR_KEY, json.dumps([kind, error.message, error.applied]).encode())]
    if exact:
        told.append((EXACT_KEY, exact))
    if error.retry_after:
        told.append((RETRY_KEY, f"{error.retry_after:.3f}"))
    if isinstance(error, Fenced) and error.buckets:
        tables: dict[str, list[int]] = {}
        for table, bucket in error.buckets:
            tables.setdefault(table, []).append(bucket)
        told.append((BUCKETS_KEY, json.dumps(tables, separators=(",", ":")).encode()))
    if figures := figures_of(error):
        told.append((FIGURES_KEY, json.dumps(figures, separators=(",", ":")).encode()))
    if rows := _packed_rows(error):
        told.append((ROWS_KEY, pb.ChangesRows(changes=rows).SerializeToString()))
    return tuple(told)


def _packed_rows(error: LakestoreError) -> list[pb.ChangeRows]:
    """The rows that an error names."""
    packed: list[pb.ChangeRows] = []
    room = ROWS_BYTES_MAX
    for each in error.changes if isinstance(error, NothingToKeep | Violated) else ():
        packed.append(pb.ChangeRows(change=each.change, table=each.table, rows=BitMap(each.rows).serialize()))
        if isinstance(each, RuleRows):
            packed[-1].rule, packed[-1].sentence = each.rule, each.sentence
        room -= packed[-1].ByteSize()
        if room < 0:
            return packed[:-1] or packed
    return packed


def _rows_of(packed: Iterable[pb.ChangeRows]) -> Iterable[RuleRows]:
    return (
        RuleRows(each.change, each.table, tuple(BitMap.deserialize(each.rows)), each.rule, each.sentence)
        for each in packed
    )


def error_message(error: LakestoreError) -> pb.Error:
    """An error as a message."""
    kind, exact = told_kinds(error.kind)
    return pb.Error(
        kind=kind,
        exact=exact,
        message=error.message,
        applied=error.applied,
        retry_after_seconds=error.retry_after,
        nothing_to_keep=_packed_rows(error),
        leader=error.leader if isinstance(error, NotLeader) else "",
    )


def error_of_message(message: pb.Error) -> LakestoreError:
    """The error that `error_message` wrote."""
    kind = known_kind(message.kind, message.exact)
    retry_after, rows = message.retry_after_seconds, _rows_of(message.nothing_to_keep)
    figures = {"leader": message.leader}
    return error_of(kind, message.message, message.applied, retry_after, changes=rows, figures=figures)


def defect(error: BaseException, applied: Applied = "unknown") -> Internal:
    """The error for the client if the server failed in a way that nobody foresaw."""
    return Internal(f"a defect of the server: {type(error).__name__}: {error}", applied=applied)


def typed(error: Exception) -> LakestoreError:
    """The error for the client: a `LakestoreError` itself, any other error as a defect."""
    return error if isinstance(error, LakestoreError) else defect(error)


def error_fields(error: LakestoreError) -> dict[str, bytes]:
    """An error as fields of a message: its metadata."""
    return {key: value.encode() if isinstance(value, str) else value for key, value in pack_error(error)}


def error_of_fields(fields: Mapping[str, bytes]) -> LakestoreError:
    """The error that `error_fields` wrote."""
    metadata = {key: value if key.endswith("-bin") else value.decode() for key, value in fields.items()}
    return unpack_error(metadata, "INTERNAL", "a reply without an error")


def _silent(address: str, details: str) -> str:
    """A sentence that the server does not answer, with the reason that the connection gives."""
    where = f"the server at {address}" if address else "the server"
    return f"{where} does not answer ({details.rsplit('last error: ', 1)[-1].rstrip(')')}): is it running there?"


def unpack_error(
    metadata: Mapping[str, Any], code: str, details: str, *, reads: bool = False, address: str = ""
) -> LakestoreError:
    """The error in the metadata. Without one there, the error that gRPC's status means."""
    if ERROR_KEY in metadata:
        kind, message, applied = json.loads(metadata[ERROR_KEY])[:3]
        kind = known_kind(kind, metadata.get(EXACT_KEY, ""))
        tables = json.loads(metadata.get(BUCKETS_KEY, "{}"))
        buckets = [(table, bucket) for table, numbers in tables.items() for bucket in numbers]
        rows = _rows_of(pb.ChangesRows.FromString(metadata.get(ROWS_KEY, b"")).changes)
        figures = json.loads(metadata.get(FIGURES_KEY, "{}"))
        return error_of(kind, message, applied, float(metadata.get(RETRY_KEY, 0)), buckets, rows, figures)
    applied = "no" if reads or details.startswith(_NOT_CONNECTED) else "unknown"
    if code == "DEADLINE_EXCEEDED":
        return error_of("Unavailable", "the server did not answer in time: try again", applied)
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN"):
        return error_of("Unavailable", _silent(address, details), applied)
    if code == "RESOURCE_EXHAUSTED" and "oncurrent" in details:  # gRPC's own words for its limit of calls
        return error_of("Exhausted", "the server serves as many calls as it can: try again later", "no", BUSY_SECONDS)
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return error_of("NotAuthenticated" if code == "UNAUTHENTICATED" else "Denied", details)
    if code == "RESOURCE_EXHAUSTED":
        return error_of("Invalid", f"the message is too large ({details}): send fewer rows, or ask for fewer")
    return error_of("Internal", f"{code}: {details}", applied)
