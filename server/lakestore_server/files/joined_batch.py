"""Several batches as one message of Arrow, in parts that lie behind one another, without copies of long pieces.

The values of a column are those of the batches one after the other, as they lie in memory or in a mapped file; of texts
the offsets are made anew. Short pieces, columns in which values are missing, booleans, lists and such are put together
by Arrow.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.errors import Internal
from lakestore_server.arrays.flat_batch import is_text, value_bytes

SHORT = 64 << 10
"""Pieces that are shorter on average are copied by Arrow: to handle each takes longer, and the interpreter's lock."""
PADDED = 64
"""The message and what follows it begin at multiples of this."""
_OFFSET_BYTES, _OFFSET_MAX = 4, (1 << 31) - 1


def joined_message(batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """The message of all rows, padded. Its parts hold the memory of the batches, which nobody changes meanwhile."""
    batch, places = batches[0], _Places()
    if sum(each.get_total_buffer_size() for each in batches) < SHORT * len(batches):
        batch = pa.concat_batches(batches)
    elif len(batches) > 1:
        if any(not other.schema.equals(batch.schema) for other in batches):
            raise pa.ArrowInvalid("the batches have different schemas")
        columns = [_column([each.column(at) for each in batches], places) for at in range(batch.num_columns)]
        batch = pa.record_batch(columns, schema=batch.schema)
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema) as writer:
        writer.write_batch(batch)
        parts = list(_without(sink.parts, batch.schema.serialize().size))  # which is the table's
    return padded(places.filled(parts))


def padded(parts: Sequence[pa.Buffer]) -> list[pa.Buffer]:
    """Parts up to a multiple of `PADDED` bytes."""
    short = -sum(part.size for part in parts) % PADDED
    return [*parts, pa.py_buffer(bytes(short))] if short else list(parts)


class _Places:
    """Memory of which nothing but the addresses is used: Arrow passes buffers on without a look at them.

    Whoever asked for a place holds it until all are filled, so that no other buffer gets its address.
    """

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

    def filled(self, parts: Sequence[pa.Buffer]) -> list[pa.Buffer]:
        """The parts with the pieces in their places, each of which must be there as it is."""
        found: list[pa.Buffer] = []
        for part in parts:
            sources = self._sources.pop(part.address, None) or (part,)
            if part.size != sum(source.size for source in sources):
                raise Internal("Arrow has written a part of a buffer")
            found += sources
        if self._sources:
            raise Internal("Arrow has written copies of buffers")
        return found


def _column(pieces: Sequence[pa.Array], places: _Places) -> pa.Array:
    """The values of all pieces in one array, whose long buffers may be places."""
    kind, rows = pieces[0].type, sum(map(len, pieces))
    width = value_bytes(kind)
    if width:
        is_short = rows * width < SHORT * len(pieces)
    else:
        is_short = not is_text(kind) or sum(piece.nbytes for piece in pieces) < SHORT * len(pieces)
    if is_short or any(piece.null_count for piece in pieces):
        return pa.concat_arrays(pieces)
    held = [piece for piece in pieces if len(piece)]
    buffers = _values(held, width, places) if width else _texts(held, places)
    return pa.Array.from_buffers(kind, rows, [None, *buffers], null_count=0)


def _values(pieces: Sequence[pa.Array], width: int, places: _Places) -> list[pa.Buffer]:
    """The buffer of values of one width."""
    return [places.place([each.buffers()[1].slice(each.offset * width, len(each) * width) for each in pieces])]


def _texts(pieces: Sequence[pa.Array], places: _Places) -> list[pa.Buffer]:
    """The buffers of texts: their offsets, and their bytes."""
    ends, data = zip(*map(_text, pieces), strict=True)
    sizes = [each.size for each in data]
    if sum(sizes) > _OFFSET_MAX:
        raise pa.ArrowInvalid("the texts of one column take more than 2 GB: their offsets have 32 bits")
    offsets = np.zeros(sum(map(len, pieces)) + 1, dtype=np.int32)
    at = 1
    for each, begin in zip(ends, accumulate(sizes, initial=0), strict=False):
        np.add(each[1:], begin - int(each[0]), out=offsets[at : at + len(each) - 1])
        at += len(each) - 1
    return [pa.py_buffer(offsets), places.place(data)]


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
    """Keeps what is written to it as it is. `pa.PythonFile` asks for the rest of a file's methods."""

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
