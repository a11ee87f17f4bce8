"""Encoded change batches that streams of the same tables share. The first stream that needs a batch makes it.

A run begins at the LSN that a stream has reached. Every stream at this LSN takes the same run, so streams of the same
tables fall into step and a thousand of them cost little more than one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.fields import Rows
from lakestore.wire.row_messages import ChangeMessage, with_rows

OF_CONSUMER_BYTES = 64
"""Upper bound of the bytes that `of_consumer` adds to a message."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One message of a stream as it goes over the wire. Immutable, because streams share it."""

    data: bytes

    @staticmethod
    def encode(message: pb.ChangeBatch, rows: Rows = ()) -> EncodedBatch:
        """A message with these rows; `message` has none."""
        return EncodedBatch(with_rows(message, rows))

    @property
    def message(self) -> ChangeMessage:
        return ChangeMessage.of(self.data)

    def of_consumer(self, epoch: int) -> EncodedBatch:
        """The same message with the epoch of a subscription. Two protobuf messages in sequence decode as one message
        with the fields of both, so the rows are encoded once for all consumers."""
        return EncodedBatch(self.data + pb.ChangeBatch(subscription_epoch=epoch).SerializeToString())


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The messages of a stream between two LSNs."""

    upto: int
    messages: tuple[EncodedBatch, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the run in bytes, with one kilobyte for its objects."""
        return sum(len(prepared.data) for prepared in self.messages) + 1_000


@dataclass(slots=True)
class _Entry:
    made: threading.Event = field(default_factory=threading.Event)
    run: StreamRun | None = None
    counted: int = 0
    """Bytes of the run in the cache's sum; 0 until the run is made."""


class BatchCache:
    """Runs that several streams share; the oldest run is removed first. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._streams: Counter[Hashable] = Counter()
        self._entries: dict[tuple[Hashable, int], _Entry] = {}
        self._bytes = 0

    @contextmanager
    def followed(self, key: Hashable) -> Iterator[None]:
        """Registers a stream under `key` while the block runs. The last stream of a key removes the key's runs."""
        with self._lock:
            self._streams[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[key] -= 1
                if not self._streams[key]:
                    del self._streams[key]
                    for kind, lsn in list(self._entries):
                        if kind == key:
                            self._bytes -= self._entries.pop((kind, lsn)).counted

    def shared_run(self, key: Hashable, lsn: int, limit: int, make: Callable[[], StreamRun]) -> StreamRun:
        """The run that begins at `lsn` and ends at or before `limit`: a shared run, or one that the caller makes."""
        with self._lock:
            shared = self._streams[key] > 1
            entry = self._entries.get((key, lsn)) if shared else None
            mine = _Entry() if shared and entry is None else None
            if mine is not None:
                self._entries[key, lsn] = mine
        if mine is not None:
            return self._filled(key, lsn, mine, make)
        if entry is None:
            return make()
        entry.made.wait()
        # The maker failed or had a newer view than this stream: this stream makes its own run.
        return entry.run if entry.run is not None and entry.run.upto <= limit else make()

    def _filled(self, key: Hashable, lsn: int, entry: _Entry, make: Callable[[], StreamRun]) -> StreamRun:
        try:
            run = entry.run = make()
        finally:
            entry.made.set()
            with self._lock:
                self._account(key, lsn, entry)
        return run

    def _account(self, key: Hashable, lsn: int, entry: _Entry) -> None:
        if entry.run is None:
            self._entries.pop((key, lsn), None)
            return
        if self._entries.get((key, lsn)) is not entry:
            return
        entry.counted = entry.run.nbytes
        self._bytes += entry.counted
        while self._bytes > self._bytes_max:
            self._bytes -= self._entries.pop(next(iter(self._entries))).counted
