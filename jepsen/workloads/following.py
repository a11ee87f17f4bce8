"""Change streams as clients of several workloads read them: batches as JSON values."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

import lakestore as ls

Batch = ls.ChangeBatch
BEGUN_BATCHES = 20
"""Batches behind a snapshot that is read at one go."""
SYSTEM = ("__change", "__bucket", "__offset", "__timestamp")


def told(batch: ls.ChangeBatch) -> dict[str, Any]:
    """A batch as histories have it: each change is `[kind, bucket, offset, row, time]`."""
    rows = batch.to_pylist()
    return {
        "table": batch.name,
        "whole": batch.whole,
        "snapshot": batch.snapshot,
        "token": batch.token,
        "schema": batch.schema_id,
        "rows": [
            [*(plain_value(row.get(name)) for name in SYSTEM[:3]), plain(row), plain_value(row.get(SYSTEM[3]))]
            for row in rows
        ],
    }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row's own columns as JSON values."""
    return {name: plain_value(value) for name, value in row.items() if name not in SYSTEM}


def plain_value(value: Any) -> Any:
    """One value; times as ISO 8601, bytes as hex."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def take_begun(stream: ls.ChangeStream, rest_seconds: float, quiet_seconds: float, seconds: float) -> list[Batch]:
    """The whole snapshot that a stream begins with, and what follows it, for so many seconds beside the rest.

    Behind the first piece the reader rests: rows are written while the snapshot is under way.
    """
    found = take(stream, seconds, 1, seconds)
    time.sleep(rest_seconds)
    deadline = time.monotonic() + seconds
    while found and found[-1].snapshot and time.monotonic() < deadline:
        found += take(stream, seconds, 1, seconds)
    return found + take(stream, quiet_seconds, BEGUN_BATCHES, seconds)


def take_to_end(stream: ls.ChangeStream, seconds: float) -> list[Batch]:
    """The batches of a stream with an end, which is closed; one that gives neither in time has answered nothing.

    Where the network swallows what was sent, a stream is quiet until the connection's keepalive ends it.
    """
    found: list[ls.ChangeBatch] = []
    deadline = time.monotonic() + seconds
    with closing(stream), suppress(ls.errors.StreamEnded):
        while (left := deadline - time.monotonic()) > 0:
            batch = stream.next(left)
            if batch is not None:
                found.append(batch)
        if not found:
            raise ls.Unavailable(f"nothing came of a stream up to now within {seconds:g} s")
    return found


def take(stream: ls.ChangeStream, quiet_seconds: float, batches: int, seconds: float) -> list[Batch]:
    """The batches that come until nothing comes for a while, behind whole commits unless the time is over."""
    found: list[ls.ChangeBatch] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            batch = stream.next(quiet_seconds)
        except ls.errors.StreamEnded:
            break
        if batch is None:
            if not found or found[-1].whole:
                break
            continue
        found.append(batch)
        if len(found) >= batches and batch.whole:
            break
    return found
