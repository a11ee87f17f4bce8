"""Keys of S3 stores that a server gives to readers of its tables.

1. A process that has a key of its own in its environment uses this key alone.
2. A key opens the files of one table. A reader asks for it at the first file, and again once half of its time is over.
3. If the store refuses a key, the reader asks for the next one. So a key may end, or be replaced, during a read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from weakref import WeakSet

from pyarrow.fs import S3FileSystem

from lakestore.errors import Invalid

OWN_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that give a process a key of its own."""
NO_KEY_SECONDS = 60.0
"""Seconds after which a server that gave no key is asked again."""


@dataclass(frozen=True, slots=True)
class ReaderKey:
    """One key of a store. Its text never shows the key."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    session: str = field(default="", repr=False)
    endpoint: str = ""
    """Address of the store; empty for AWS's."""
    region: str = ""
    """Empty for the region of the environment."""
    has_virtual_host: bool = False
    """Whether the bucket stands in the host name, at an address that is not AWS's."""

    def filesystem(self) -> S3FileSystem:
        """The store by this key."""
        scheme, _, host = self.endpoint.rpartition("://")
        return S3FileSystem(
            access_key=self.id,
            secret_key=self.secret,
            session_token=self.session or None,
            region=self.region or None,
            scheme=scheme or None,
            endpoint_override=host.rstrip("/") or None,
            force_virtual_addressing=self.has_virtual_host,
            allow_delayed_open=True,
        )


AskKey = Callable[[], "tuple[ReaderKey, float] | None"]
"""Asks a server for a key and the seconds until it ends; 0 for a key without an end. None: the server gives none."""


class KeySource:
    """The keys for the files in one folder. Thread-safe."""

    def __init__(self, folder: str, ask: AskKey, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._ask, self._clock = f"{folder.rstrip('/')}/", ask, clock
        self._lock = threading.Lock()
        self._key: ReaderKey | None = None
        self._due = -inf
        """The time from which on the server is asked again."""

    @property
    def has_key(self) -> bool:
        """Whether the server gave a key when it was asked last."""
        return self._key is not None

    def key(self) -> ReaderKey | None:
        """A key for now; None if the server gives none."""
        with self._lock:
            if self._clock() >= self._due:
                self._renew()
            return self._key

    def after(self, refused: ReaderKey) -> ReaderKey | None:
        """The key that follows one that the store refuses; None if there is no other."""
        with self._lock:
            if self._key == refused:
                self._renew()
            return None if self._key == refused else self._key

    def _renew(self) -> None:
        answer, now = self._ask(), self._clock()
        if answer is None:
            self._key, self._due = None, now + NO_KEY_SECONDS
        else:
            self._key, seconds = answer
            self._due = now + seconds / 2 if seconds else inf


class ReadFolders:
    """The folders that one reader has open, with the sources of their keys, until `close`."""

    def __init__(self, sources: Sequence[KeySource]) -> None:
        self.sources = sources
        if sources:
            with _lock:
                _open.add(self)

    def close(self) -> None:
        """The reader is done. Idempotent."""
        with _lock:
            _open.discard(self)


_lock = threading.Lock()
_open: WeakSet[ReadFolders] = WeakSet()


def has_own() -> bool:
    """Whether this process has a key of its own in its environment."""
    return any(os.environ.get(name) for name in OWN_KEYS)


def source_of(location: str) -> KeySource | None:
    """The source of a key for a file; None if the process has a key of its own, or no server gives one. `Invalid` if
    two servers name this location at two addresses."""
    keys = {source: key for source in _sources(location) if (key := source.key()) is not None}
    if len({key.endpoint for key in keys.values()}) > 1:
        raise Invalid(
            f"{location} is in the stores of two servers, and one process cannot read both: read one of them in a"
            " process of its own"
        )
    return next(iter(keys), None)


def is_without(location: str) -> bool:
    """Whether a server gave no key for a file that a reader opens."""
    sources = _sources(location)
    return bool(sources) and not any(source.has_key for source in sources)


def _sources(location: str) -> set[KeySource]:
    if not _open or has_own():
        return set()
    with _lock:
        return {source for folders in _open for source in folders.sources if location.startswith(source.folder)}
