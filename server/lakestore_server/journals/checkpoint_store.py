"""Checkpoints in an object store: heads, manifests and the parts of files.

- `heads/<number>` is put at the next number, by a put that never replaces. The highest number counts. A writer puts a
  head only on top of one that it has read, so a server that leads no more cannot move the newest checkpoint.
- Names of files and manifests are random, so an object never gets other bytes.
- A request is repeated a few times; then `Unavailable` says nothing about its outcome.
"""

from __future__ import annotations

import logging
import re
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import orjson

from lakestore.errors import Corrupt, NotFound, OtherTimeline, Unavailable
from lakestore.rows.ipc import crc32c
from lakestore_server.host import versions
from lakestore_server.journals.object_store import ListingStore, StoreError, check_races
from lakestore_server.state.commit_record import Place

log = logging.getLogger("lakestore.store")
HEADS, MANIFESTS, FILES = "heads", "manifests", "files"
HEAD_MAGIC, MANIFEST_MAGIC, VERSION = 0x4C534844, 0x4C534D46, 1
_HEADER = struct.Struct("<IIII")
"""magic u32 · version u32 · bytes u32 · crc32c u32 of all but itself; JSON follows."""
_CRC_AT = _HEADER.size - 4
_NUMBER = re.compile(rf"{HEADS}/([0-9]{{20}})")
PART_BYTES = 8 << 20
"""The bytes of a part; the last one of a file may be smaller."""
PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Pauses before a request is repeated, in seconds."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store."""

    path: str
    """Its path in the data folder, with `/`."""
    file_id: str
    size: int
    crcs: tuple[int, ...]
    """The crc32c of the file's bytes up to the end of each part. An empty file has one part."""

    @property
    def crc(self) -> int:
        """The crc32c of the file."""
        return self.crcs[-1]

    def part(self, number: int) -> str:
        """The name of a part's object."""
        return part_name(self.file_id, number)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the store."""

    lsn: int
    place: Place
    """The place in the journal at which the records after it begin."""
    manifest: str
    """The name of the object that lists its files."""
    size: int
    """Bytes of all its files."""


@dataclass(frozen=True, slots=True)
class StoreHead:
    """A pointer to the newest checkpoint at the time of its put."""

    number: int
    timeline: str
    """The journal's."""
    epoch: int
    writer: str
    """The random id of the server that put it."""
    checkpoint: StoredCheckpoint | None
    """None as long as there is no checkpoint."""


@dataclass(slots=True)
class StoreHeads:
    """The heads that one look found."""

    heads: list[StoreHead] = field(default_factory=list)
    """The whole ones, by number."""
    next_number: int = 0
    """The number after the highest one that is there, whole or not."""
    damage: Corrupt | None = None

    @property
    def newest(self) -> StoreHead | None:
        """The newest head that is whole."""
        return self.heads[-1] if self.heads else None


def part_name(file_id: str, number: int) -> str:
    """The name of a part's object."""
    return f"{FILES}/{file_id}/{number:05}"


def new_id() -> str:
    """A random id."""
    return secrets.token_hex(12)


def _encoded(magic: int, data: Any) -> bytes:
    body = orjson.dumps(data)
    head = _HEADER.pack(magic, VERSION, len(body), 0)[:_CRC_AT]
    return head + struct.pack("<I", crc32c(body, crc32c(head))) + body


def _decoded(magic: int, data: bytes, name: str) -> Any:
    """The content of a head or a manifest; `Corrupt` if it is damaged, `NewerFormat` of a newer release."""
    damaged = Corrupt(f"object {name} of the checkpoint store is damaged")
    if len(data) < _HEADER.size:
        raise damaged
    found, version, size, crc = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if found != magic or size != len(body) or crc != crc32c(body, crc32c(data[:_CRC_AT])):
        raise damaged
    versions.check(version, (VERSION,), f"object {name} of the checkpoint store")
    return orjson.loads(body)


def _head_of(data: bytes, name: str) -> StoreHead:
    content = _decoded(HEAD_MAGIC, data, name)
    checkpoint = content.pop("checkpoint")
    if checkpoint is not None:
        checkpoint = StoredCheckpoint(**{**checkpoint, "place": Place(checkpoint["place"])})
    return StoreHead(**content, checkpoint=checkpoint)


class CheckpointStore:
    """The checkpoints below one URL. Thread-safe. Methods raise `Unavailable` if the store does not answer."""

    def __init__(self, store: ListingStore, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store, self.url, self._sleep = store, url, sleep
        self.is_closing: Callable[[], bool] = lambda: False
        """Whether the server ends: then no request is repeated."""

    def check(self, timeline: str) -> None:
        """`OtherTimeline` if they are checkpoints of another journal; `Invalid` if the store lets two puts of one
        name win, which is checked while it has no head."""
        if not self.heads(timeline, newest_only=True).next_number:
            check_races(self._store, self.url)

    def newest_head(self, timeline: str) -> StoreHead | None:
        """The newest head that is whole; None without one. `OtherTimeline` for one of another journal, `Corrupt` if
        there are some and none is whole."""
        found = self.heads(timeline, newest_only=True)
        if found.damage and not found.heads:
            raise found.damage
        return found.newest

    def heads(self, timeline: str, *, newest_only: bool = False) -> StoreHeads:
        """The heads of one look, or only the newest one that is whole. `OtherTimeline` for one of another journal."""
        found = StoreHeads()
        for number in reversed(self.numbers()):
            found.next_number = max(found.next_number, number + 1)
            try:
                head = self._head(number)
            except Corrupt as error:
                log.warning("%s: %s", self.url, error.message)
                found.damage = error
                continue
            if head is None:  # removed meanwhile
                continue
            if head.timeline != timeline:
                raise OtherTimeline(
                    f"{self.url} has the checkpoints of another journal (timeline {head.timeline}, not {timeline}):"
                    " name an empty prefix"
                )
            found.heads.insert(0, head)
            if newest_only:
                break
        return found

    def numbers(self) -> list[int]:
        """The numbers of all heads, in order."""
        names = self._repeated(lambda: self._store.names(HEADS))
        return sorted(int(match[1]) for match in map(_NUMBER.fullmatch, names) if match is not None)

    def _head(self, number: int) -> StoreHead | None:
        name = head_name(number)
        data = self._repeated(lambda: self._store.get(name))
        if data is None:
            return None
        head = _head_of(data, name)
        if head.number != number:
            raise Corrupt(f"object {name} of the checkpoint store is a copy of another one")
        return head

    def put_head(self, head: StoreHead) -> bool:
        """Whether the number is this head's, also if the answer of an earlier put was lost. No two heads that were put
        have equal bytes: they have number and writer."""
        name = head_name(head.number)
        return self._put(name, _encoded(HEAD_MAGIC, asdict(head)))

    def put_manifest(self, files: Sequence[StoredFile]) -> str:
        """Put the list of a checkpoint's files; returns the object's name."""
        name = f"{MANIFESTS}/{new_id()}"
        content = [[file.path, file.file_id, file.size, file.crcs] for file in files]
        self._put(name, _encoded(MANIFEST_MAGIC, content))
        return name

    def files_of(self, checkpoint: StoredCheckpoint) -> list[StoredFile]:
        """The files of a checkpoint, the checkpoint file last. `NotFound` if it was removed, `Corrupt` for damage."""
        data = self._repeated(lambda: self._store.get(checkpoint.manifest))
        if data is None:
            raise NotFound(f"{checkpoint.manifest} is not in {self.url} any more")
        content = _decoded(MANIFEST_MAGIC, data, checkpoint.manifest)
        return [StoredFile(path, file_id, size, tuple(crcs)) for path, file_id, size, crcs in content]

    def put_part(self, file_id: str, number: int, data: bytes) -> None:
        """Put a part of a file whose id is new."""
        name = part_name(file_id, number)
        if not self._put(name, data):
            raise Corrupt(f"object {name} of {self.url} has other bytes than were put")

    def part(self, file: StoredFile, number: int) -> bytes:
        """The bytes of a part. `NotFound` if it was removed, `Corrupt` if they differ however often they are read."""
        name = file.part(number)
        before = file.crcs[number - 1] if number else 0

        def fetch() -> bytes | None:
            data = self._store.get(name)
            if data is not None and crc32c(data, before) != file.crcs[number]:
                raise _DamagedPart(f"object {name} of {self.url} differs from its checksum")
            return data

        try:
            data = self._repeated(fetch)
        except Unavailable as error:
            if isinstance(error.__cause__, _DamagedPart):
                raise Corrupt(error.message) from error
            raise
        if data is None:
            raise NotFound(f"{name} is not in {self.url} any more")
        return data

    def objects(self) -> list[str]:
        """The names of all parts and manifests."""
        return [name for folder in (FILES, MANIFESTS) for name in self._repeated(partial(self._store.names, folder))]

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects. Some of them may be absent."""
        self._repeated(lambda: self._store.remove(names))

    def _put(self, name: str, data: bytes) -> bool:
        """Put an object; whether the object of this name has these bytes."""

        def put() -> bool:
            if self._store.put_new(name, data):
                return True
            there = self._store.get(name)
            if there is None:
                raise StoreError(f"{name} was not put, and there is none")
            return there == data

        return self._repeated(put)

    def _repeated(self, call: Callable[[], Answer]) -> Answer:
        """The answer of a request that is repeated after errors."""
        for pause in PAUSES:
            try:
                return call()
            except StoreError as error:
                if self.is_closing():
                    raise Unavailable(str(error)) from error
                log.debug("a request to the checkpoint store is repeated: %s", error)
            self._sleep(pause)
        try:
            return call()
        except StoreError as error:
            raise Unavailable(str(error)) from error


class _DamagedPart(StoreError):
    """The bytes of a part differ from the checksum; they may have changed on their way."""


def head_name(number: int) -> str:
    """The name of a head's object."""
    return f"{HEADS}/{number:020}"
