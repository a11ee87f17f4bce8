"""Several batches as one message of Arrow, in parts that lie behind one another: large ones are not copied for it.

The values of a column are those of the batches one after the other, as they lie in memory or in a mapped file; of texts
the offsets are made anew. Short pieces, columns in which values are missing, booleans, lists and such are put together
by Arrow.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore_server.arrays.flat_batch import is_text, word_bytes

SHORT = 64 << 10
"""Pieces of a column that are shorter on average are copied by Arrow, which takes less time than to handle each."""
PADDED = 64
"""The message and what follows it begin at multiples of this."""
_OFFSET_BYTES, _OFFSETS_END = 4, (1 << 31) - 1


def joined(batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """The message of all rows, padded; the parts hold the batches' memory."""
    schema, places = batches[0].schema, _Places()
    columns = [_column([batch.column(at) for batch in batches], places.place) for at in range(len(schema))]
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
        parts = _without(sink.parts, schema.serialize().size)  # which is the table's
        return padded([each for part in parts for each in places.filled(part)])


def padded(parts: list[pa.Buffer]) -> list[pa.Buffer]:
    """Parts up to a multiple of `PADDED` bytes."""
    short = -sum(part.size for part in parts) % PADDED
    return [*parts, pa.py_buffer(bytes(short))] if short else parts


class _Places:
    """Memory of which nothing but the addresses is used: Arrow passes buffers on without a look at them."""

    def __init__(self) -> None:
        self._sources: dict[int, Sequence[pa.Buffer]] = {}

    def place(self, sources: Sequence[pa.Buffer]) -> pa.Buffer:
        """The place of bytes that lie in several pieces elsewhere."""
        size = sum(source.size for source in sources)
        if not size:
            return pa.py_buffer(b"")
        place = pa.py_buffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ))
        self._sources[place.address] = sources
        return place

    def filled(self, part: pa.Buffer) -> Sequence[pa.Buffer]:
        """A part itself, or the pieces whose place it is."""
        return self._sources.get(part.address, (part,)) if part.size else ()


Place = Callable[[Sequence[pa.Buffer]], pa.Buffer]


def _column(pieces: Sequence[pa.Array], place: Place) -> pa.Array:
    """The values of all pieces in one array; some of its buffers may be places."""
    kind, rows = pieces[0].type, sum(map(len, pieces))
    words, count = word_bytes(kind)
    is_short = sum(piece.nbytes for piece in pieces) < SHORT * len(pieces)
    if is_short or any(piece.null_count for piece in pieces) or not (words or is_text(kind)):
        return pa.concat_arrays(pieces)
    if words:
        width = words * count
        values = [piece.buffers()[1].slice(piece.offset * width, len(piece) * width) for piece in pieces if len(piece)]
        return pa.Array.from_buffers(kind, rows, [None, place(values)], null_count=0)
    texts = [_text(piece) for piece in pieces if len(piece)]
    sizes = [data.size for _, data in texts]
    if sum(sizes) > _OFFSETS_END:
        raise pa.ArrowInvalid("the texts of one column take more than 2 GB: their offsets have 32 bits")
    offsets = np.zeros(rows + 1, dtype=np.int32)
    at = 1
    for (ends, _), begin in zip(texts, accumulate(sizes, initial=0), strict=False):
        np.add(ends[1:], begin - int(ends[0]), out=offsets[at : at + len(ends) - 1])
        at += len(ends) - 1
    buffers = [None, pa.py_buffer(offsets), place([data for _, data in texts])]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=0)


def _text(piece: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int32]], pa.Buffer]:
    """(the offsets of texts and the end of the last one, the bytes from the first to that)."""
    _, offsets, data = piece.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(piece) + 1, offset=_OFFSET_BYTES * piece.offset)
    first, last = int(ends[0]), int(ends[-1])
    return ends, data.slice(first, last - first) if last > first else pa.py_buffer(b"")


def _without(parts: Sequence[pa.Buffer], count: int) -> Iterator[pa.Buffer]:
    """The parts without the first bytes."""
    for part in parts:
        skipped = min(count, part.size)
        count -= skipped
        if skipped < part.size:
            yield part.slice(skipped)


class _Sink:
    """Keeps what is written to it as it is."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[pa.Buffer] = []

    def write(self, data: Any) -> int:
        """Keep a part."""
        part = data if isinstance(data, pa.Buffer) else pa.py_buffer(bytes(data))
        self.parts.append(part)
        return int(part.size)

    def flush(self) -> None:
        """Nothing waits."""
