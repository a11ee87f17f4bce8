"""Rows cut by bytes: a commit's worth of them has as many rows as have room in it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakestore.errors import Invalid

OVERHEAD_BYTES = 64 << 10
"""Room for everything in a message but its rows: their schema, names, and the commit around them."""


def pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces of at most so many bytes; a single row may be larger."""
    if batch.nbytes <= bytes_max or batch.num_rows < 2:
        yield batch
        return
    yield from _halves(_unfolded(batch), bytes_max)


def _halves(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= bytes_max or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halves(batch.slice(0, middle), bytes_max)
    yield from _halves(batch.slice(middle), bytes_max)


def _unfolded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in layouts whose slices have bytes of their own, unlike those of dictionaries and views."""
    arrays = [_plain(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def check_row(table: str, batch: pa.RecordBatch, row: int, message_bytes: int) -> None:
    """`Invalid` if a single row, the `row`th that was given, has no room in a message."""
    if batch.num_rows == 1 and batch.nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"table {table}: row {row} takes {batch.nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: raise message_bytes at the server, or keep large values elsewhere"
        )


def check_commit(nbytes: int, message_bytes: int) -> None:
    """`Invalid` if the rows of one commit, which go together or not at all, have no room in a message."""
    if nbytes > message_bytes - OVERHEAD_BYTES:
        raise Invalid(
            f"the rows of this commit take {nbytes:,} bytes, and one message of {message_bytes:,} has room for"
            f" {message_bytes - OVERHEAD_BYTES:,}: write them in several commits, as table.writer() does by itself, or"
            " raise message_bytes at the server"
        )
