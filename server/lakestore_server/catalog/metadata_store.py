"""metadata.json files in the warehouse: written once, durable before a pointer names them, cached in parsed form.

A `Storage` is the interface to disk or object store; `MetadataStore` adds the JSON form and the cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

import orjson

from lakestore.errors import Corrupt, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.iceberg import metadata_files, store_counts
from lakestore.iceberg.cache import RecentValues
from lakestore.iceberg.store_counts import CREATE, DELETE, GET, LIST
from lakestore.release import needs_extra
from lakestore_server.catalog import locations, metadata
from lakestore_server.catalog.schemas import Json
from lakestore_server.journals import store_errors
from lakestore_server.journals.store_errors import StoreRefusal

with needs_extra("server", "the server's code"):  # commands such as `lakestore sizing` come here, too
    import obstore
    from obstore.store import from_url

SKEW_MS = 60_000
"""Milliseconds by which Java lets times go back."""
_LOGS = ("snapshot-log", "metadata-log")
_STAMP = "timestamp-ms"


def raise_times(doc: Json) -> Json:
    """The document with each time raised to the time before it; the same object if no time goes back."""
    return _mended(doc, None)


def lower_times(doc: Json, now_ms: int) -> Json:
    """The document without times after now; the same object if it has none."""
    return doc if doc["last-updated-ms"] <= now_ms else _mended(doc, now_ms)


def _mended(doc: Json, latest: int | None) -> Json:
    times = {key: [int(entry[_STAMP]) for entry in doc[key]] for key in _LOGS}
    sorted_times = {key: list(accumulate(stamps, max)) for key, stamps in times.items()}
    last = max(doc["last-updated-ms"], *(stamps[-1] for stamps in sorted_times.values() if stamps), 0)
    if latest is not None:
        sorted_times = {key: [min(stamp, latest) for stamp in stamps] for key, stamps in sorted_times.items()}
        last = min(last, latest)
    if sorted_times == times and last == doc["last-updated-ms"]:
        return doc
    logs = {
        key: [{**entry, _STAMP: stamp} for entry, stamp in zip(doc[key], stamps, strict=True)]
        for key, stamps in sorted_times.items()
    }
    return {**doc, **logs, "last-updated-ms": last}


log = logging.getLogger("lakestore.catalog")
Answer = TypeVar("Answer")
SCHEMES = ("s3", "gs", "abfs", "abfss")
"""Schemes that the catalog, lake readers (`lakestore.iceberg.places`) and Iceberg's Java all know. The catalog's own
store also knows `s3a` and `az`, but such a server would fail at every read."""
_KNOWN = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_AZURE = "abfss://<container>@<account>.dfs.core.windows.net/"
_MEANT = {"s3a": "s3://", "s3n": "s3://", "gcs": "gs://", "az": _AZURE, "azure": _AZURE, "adl": _AZURE}
CACHE_BYTES_MAX = 64 << 20
TRY_SECONDS = timedelta(seconds=10)
"""Time in which obstore repeats one request to an object store that answers 5xx."""
TRIES_SECONDS, PAUSE_SECONDS = 20.0, 0.1
"""Seconds after which a call begins no new attempt, and the first pause between attempts."""


class Storage(Protocol):
    """Whole files by URI. Thread-safe."""

    def read(self, location: str) -> bytes:
        """The file's bytes, or FileNotFoundError."""

    def write_new(self, location: str, data: bytes) -> None:
        """Create the file, durably. FileExistsError if it exists."""

    def remove(self, location: str) -> None:
        """Remove the file; FileNotFoundError if it does not exist."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder; empty without a folder."""

    def remove_below(self, folder: str) -> None:
        """Remove every file in a folder and its subfolders."""

    def sync(self) -> None:
        """Make durable everything that other processes wrote below the root."""


class LocalStorage:
    """A folder of a local file system."""

    def __init__(self, root: str) -> None:
        self.root = Path(locations.plain(root))
        self.root.mkdir(parents=True, exist_ok=True)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def read(self, location: str) -> bytes:
        return Path(locations.plain(location)).read_bytes()

    def write_new(self, location: str, data: bytes) -> None:
        """Create the file and sync it with all new folders."""
        path = Path(locations.plain(location))
        made = _make_folders(path.parent)
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        for folder in (path.parent, *made):
            _sync_folder(folder)

    def remove(self, location: str) -> None:
        Path(locations.plain(location)).unlink()

    def names(self, folder: str) -> list[str]:
        path = Path(locations.plain(folder))
        return [entry.name for entry in path.iterdir() if entry.is_file()] if path.is_dir() else []

    def remove_below(self, folder: str) -> None:
        path = Path(locations.plain(folder))
        if path.is_dir():
            shutil.rmtree(path)

    def sync(self) -> None:
        """syncfs of the root's file system."""
        number = os.open(self.root, os.O_RDONLY)
        try:
            if self._libc.syncfs(number) != 0:
                raise OSError(ctypes.get_errno(), "syncfs of the warehouse failed")
        finally:
            os.close(number)


def _make_folders(folder: Path) -> list[Path]:
    changed = []
    above = folder
    while not above.exists():
        above = above.parent
        changed.append(above)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class ObjectStorage:
    """A bucket of an object store: a written object is durable, and put-if-absent makes it new. Every call may be
    repeated, so a broken one is tried again until `TRIES_SECONDS` are over."""

    def __init__(self, root: str) -> None:
        self._root = locations.plain(root)
        store_errors.check_environment(self._root)
        try:
            self._store = from_url(self._root, retry_config={"max_retries": 10, "retry_timeout": TRY_SECONDS})
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise Invalid(f"warehouse {root} cannot be used: name a folder, or a store as {_KNOWN}") from error

    def _key(self, location: str) -> str:
        return locations.plain(location)[len(self._root) + 1 :]

    def read(self, location: str) -> bytes:
        return self._tried(GET, lambda: bytes(obstore.get(self._store, self._key(location)).bytes()))

    def write_new(self, location: str, data: bytes) -> None:
        """Create the object. An existing object with these bytes is ours: the answer to an earlier attempt was lost."""
        try:
            self._tried(CREATE, lambda: obstore.put(self._store, self._key(location), data, mode="create"))
        except FileExistsError:
            if self.read(location) != data:
                raise

    def remove(self, location: str) -> None:
        self._tried(DELETE, lambda: obstore.delete(self._store, self._key(location)))

    def read_first(self, location: str, nbytes: int) -> tuple[bytes, int]:
        """(the first bytes, size) of an object."""

        def read() -> tuple[bytes, int]:
            answer = obstore.get(self._store, self._key(location), options={"range": (0, nbytes)})
            return bytes(answer.bytes()), answer.meta["size"]

        return self._tried(GET, read)

    def sizes(self, folder: str) -> dict[str, int]:
        """Name to bytes of the objects in a folder."""
        found = self._tried(LIST, lambda: obstore.list_with_delimiter(self._store, prefix=self._key(folder)))
        return {entry["path"].rsplit("/", 1)[-1]: entry["size"] for entry in found["objects"]}

    def remove_all(self, locations: Sequence[str]) -> None:
        """Remove objects. Some of them may be absent."""
        if locations:
            self._tried(DELETE, lambda: self._remove_all([self._key(location) for location in locations]))

    def _remove_all(self, keys: list[str]) -> None:
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:  # some stores refuse to remove what is absent
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def names(self, folder: str) -> list[str]:
        found = self._tried(LIST, lambda: obstore.list_with_delimiter(self._store, prefix=self._key(folder)))
        return [entry["path"].rsplit("/", 1)[-1] for entry in found["objects"]]

    def remove_below(self, folder: str) -> None:
        self._tried(LIST, lambda: self._remove_below(self._key(folder)))

    def _remove_below(self, key: str) -> None:
        for found in obstore.list(self._store, prefix=key, chunk_size=1_000):
            store_counts.of_process().add(DELETE)
            obstore.delete(self._store, [entry["path"] for entry in found])

    def sync(self) -> None:
        """Nothing to do: a written object is durable."""

    def _tried(self, kind: str, call: Callable[[], Answer]) -> Answer:
        """The answer of a repeatable call, counted as a kind of request. `StoreRefusal` if the store refuses it for
        good, OSError if it does not answer. obstore repeats requests answered by 5xx, but no put-if-absent whose
        connection broke."""
        deadline, pause = time.monotonic() + TRIES_SECONDS, PAUSE_SECONDS
        while True:
            store_counts.of_process().add(kind)
            try:
                return call()
            except obstore.exceptions.AlreadyExistsError as error:
                raise FileExistsError(store_errors.brief(error)) from error
            except FileNotFoundError as error:
                if sentence := store_errors.refusal(error, self._root):
                    raise StoreRefusal(sentence) from error
                raise
            except obstore.exceptions.BaseError as error:
                if sentence := store_errors.refusal(error, self._root):
                    raise StoreRefusal(sentence) from error
                if not isinstance(error, obstore.exceptions.GenericError):
                    raise OSError(store_errors.brief(error)) from error
                if time.monotonic() + pause > deadline:
                    raise OSError(f"the object store did not answer: {store_errors.brief(error)}") from error
            time.sleep(pause)
            pause *= 2


def storage_for(warehouse: str) -> Storage:
    """The storage of a warehouse URI: a folder, or an object store by one of `SCHEMES`; else `Invalid`."""
    if local_folder(warehouse) is not None:
        return LocalStorage(warehouse)
    scheme = locations.plain(warehouse).partition("://")[0]
    if scheme not in SCHEMES:
        meant = f": write {_MEANT[scheme]}" if scheme in _MEANT else ""
        raise Invalid(f"warehouse {warehouse} cannot be used: name a folder, or a store as {_KNOWN}{meant}")
    return ObjectStorage(warehouse)


def local_folder(place: str) -> Path | None:
    """A place in a warehouse as a local path; None for an object store."""
    plain = locations.plain(place)
    return None if "://" in plain else Path(plain)


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """Metadata and its stored bytes. Immutable."""

    location: str
    doc: Json
    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of it as it is stored."""
        return len(self.data)


class MetadataStore:
    """Metadata by location."""

    def __init__(self, storage: Storage, *, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._storage = storage
        self._recent: RecentValues[StoredMetadata] = RecentValues(cache_bytes_max)

    def load(self, location: str) -> StoredMetadata:
        found = self._recent.get(location)
        if found is not None:
            return found
        data = self._read(location)
        try:
            read = metadata.normal(metadata_files.parsed(data))
        except (ValueError, Invalid) as error:
            raise Corrupt(f"{location} is not readable table metadata: {error}") from error
        doc = raise_times(read)
        stored = StoredMetadata(
            location, doc, data if doc is read and not metadata_files.is_compressed(data) else orjson.dumps(doc)
        )
        self._recent.put(location, stored)
        return stored

    def save(self, location: str, doc: Json) -> StoredMetadata:
        """Write new metadata, durably."""
        stored = StoredMetadata(location, doc, orjson.dumps(doc))
        try:
            self._storage.write_new(location, stored.data)
        except OSError as error:
            raise _failure(f"{location} could not be written", error) from error
        self._recent.put(location, stored)
        return stored

    def put(self, location: str, data: bytes) -> None:
        """Write another file that metadata names, durably."""
        try:
            self._storage.write_new(location, data)
        except OSError as error:
            raise _failure(f"{location} could not be written", error) from error

    def names(self, folder: str) -> list[str]:
        try:
            return self._storage.names(folder)
        except OSError as error:
            raise _failure(f"{folder} could not be listed", error) from error

    def sync_warehouse(self) -> None:
        """Make files of engines durable; called before a pointer that moves main is journaled."""
        try:
            self._storage.sync()
        except OSError as error:
            raise Unavailable(f"the warehouse could not be synced: {error}") from error

    def discard(self, location: str) -> bool:
        """Remove metadata that nothing names; False if the file stays as an orphan."""
        self._recent.drop(location)
        try:
            self._storage.remove(location)
        except OSError:
            return False
        return True

    def purge(self, folder: str) -> None:
        """Remove the folder of a removed table. Files that cannot be removed stay as orphans and are logged."""
        for location in self._recent.names:
            if locations.inside(location, folder):
                self._recent.drop(location)
        try:
            self._storage.remove_below(folder)
        except OSError as error:
            log.warning("files of a purged table stay in %s: %s", folder, error)

    def _read(self, location: str) -> bytes:
        try:
            return self._storage.read(location)
        except FileNotFoundError as error:
            raise NotFound(f"{location} does not exist") from error
        except OSError as error:
            raise _failure(f"{location} could not be read", error) from error


def _failure(what: str, error: OSError) -> LakestoreError:
    """The error of a call that failed. A client repeats `Unavailable` and not `Invalid`."""
    return Invalid(f"{what}: {error}") if isinstance(error, StoreRefusal) else Unavailable(f"{what}: {error}")
