"""Encoded change batches that several streams of the same tables share: made once, by the first that needs them.

A batch begins where the stream stands, and whoever comes to the same place takes the batch that lies there, so
streams that follow the same tables fall into step.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One message of a stream as it goes over the wire; nobody changes it."""

    data: bytes

    @staticmethod
    def of(message: pb.ChangeBatch) -> EncodedBatch:
        """A message, serialized."""
        return EncodedBatch(message.SerializeToString())

    @property
    def message(self) -> pb.ChangeBatch:
        """The message, for a client in this process."""
        return pb.ChangeBatch.FromString(self.data)

    def of_consumer(self, epoch: int) -> EncodedBatch:
        """The same for the consumer of a subscription: the fields of two messages one behind the other are one's."""
        return EncodedBatch(self.data + pb.ChangeBatch(subscription_epoch=epoch).SerializeToString())


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The messages of a stream from one LSN to another."""

    upto: int
    messages: tuple[EncodedBatch, ...]

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return sum(len(prepared.data) for prepared in self.messages) + 1_000


@dataclass(slots=True)
class _Entry:
    made: threading.Event = field(default_factory=threading.Event)
    run: StreamRun | None = None
    counted: int = 0
    """Its bytes in the sum; 0 while it is made."""


class BatchCache:
    """Runs of streams that have company. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._streams: Counter[Hashable] = Counter()
        self._entries: dict[tuple[Hashable, int], _Entry] = {}
        self._bytes = 0

    @contextmanager
    def followed(self, key: Hashable) -> Iterator[None]:
        """While a stream of this kind is open; a lonely one leaves nothing behind."""
        with self._lock:
            self._streams[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[key] -= 1
                if not self._streams[key]:
                    del self._streams[key]
                    for place in [place for place in self._entries if place[0] == key]:
                        self._bytes -= self._entries.pop(place).counted

    def of(self, key: Hashable, lsn: int, limit: int, make: Callable[[], StreamRun]) -> StreamRun:
        """The run that begins at `lsn` and ends at or before `limit`: a shared one, or the caller's own."""
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
        """Count a made run, forget one that could not be made, and the oldest beyond the bound."""
        if entry.run is None:
            self._entries.pop((key, lsn), None)
            return
        if self._entries.get((key, lsn)) is not entry:
            return
        entry.counted = entry.run.nbytes
        self._bytes += entry.counted
        while self._bytes > self._bytes_max:
            self._bytes -= self._entries.pop(next(iter(self._entries))).counted
