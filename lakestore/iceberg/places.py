"""Locations of lake files: file systems, and reads and writes of whole small files.

1. Nothing is synced. Files that are written here can be written again from other files.
2. A file in an object store never changes, and its name is never used again. So a small one that this process wrote or
   read stays in memory, and the store is asked for it once.
3. A small file goes up in one put. No folder is made in an object store.
4. A store that does not answer is `Unavailable`, a store that refuses is `Invalid`: no raw error of Arrow's leaves.
5. A file for which a server gave the key is opened again with the next key if the store refuses the first one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyarrow import NativeFile
from pyarrow.fs import FileSystem, LocalFileSystem

from lakestore.errors import Invalid, LakestoreError, Unavailable
from lakestore.iceberg import store_counts, store_keys
from lakestore.iceberg.cache import RecentValues
from lakestore.iceberg.sized_file import SizedFile
from lakestore.iceberg.store_counts import GET, HEAD, PUT
from lakestore.iceberg.store_keys import KeySource, ReaderKey
from lakestore.model import file_uri

KEPT_BYTES_MAX = 4 << 20
"""Size up to which a file of an object store is read whole and stays in memory."""
SMALL_FILES_BYTES = 32 << 20
"""Memory for small files of object stores."""
_STORES_KEPT = 64
_KEYS_TRIED = 3
"""Keys of a server that a file tries, one after the other, before it takes a refusal as final."""
_STORE_ERROR = re.compile(
    r"AWS Error (?P<code>[A-Z_]+(?: \(HTTP status \d+\))?) during (?P<what>\w+)|google::cloud|Azure"
)
"""Texts that stand only in Arrow's errors of object stores, not in its errors of damaged files."""
_REFUSALS = frozenset(
    ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "INVALID_SIGNATURE", "UNRECOGNIZED_CLIENT",
     "SIGNATURE_DOES_NOT_MATCH", "MISSING_AUTHENTICATION_TOKEN", "REQUEST_EXPIRED", "NO_SUCH_BUCKET",
     "UNKNOWN (HTTP status 400)", "UNKNOWN (HTTP status 401)", "UNKNOWN (HTTP status 403)")
)  # fmt: skip
"""Codes of answers that a store repeats until its keys, address or region are set right."""
UNKNOWN_AUTHORITY = "this machine does not know the authority of its certificate: set SSL_CERT_FILE"
_Answer = TypeVar("_Answer")
_small: RecentValues[memoryview] = RecentValues(SMALL_FILES_BYTES)


class Files(Protocol):
    """A source of files by location."""

    def open_input_file(self, path: str, /) -> NativeFile:
        """Open a file for random reads. Raises `FileNotFoundError`."""


_forget_too: list[Callable[[], None]] = []

_instead: list[Files] = []
"""The source of all files, in a process that may open none itself; otherwise empty."""


def use(files: Files) -> None:
    """Read every location from this source from now on. Writing is then impossible."""
    _instead[:] = [files]


def place(location: str) -> tuple[Any, str]:
    """The file system and path of a location."""
    if _instead:
        return _instead[0], location
    local = file_uri.to_path(location)
    if local is not None:
        return _local(), local
    source = store_keys.source_of(location)
    return _place(location, source.key() if source else None)


def _place(location: str, key: ReaderKey | None) -> tuple[FileSystem, str]:
    """The file system and path of a file in a store, for one key; None for the environment's."""
    scheme, _, rest = location.partition("://")
    store, _, path = rest.partition("/")
    filesystem, root = _store(f"{scheme}://{store}", key)
    return filesystem, f"{root}/{path}"


def is_in_store(location: str) -> bool:
    """True if the location is in an object store that this process asks itself."""
    return not _instead and file_uri.to_path(location) is None


@contextmanager
def store_errors(location: str) -> Iterator[None]:
    """Turns Arrow's errors of an object store into Lakestore's. Errors of local and of damaged files stay."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        match = _STORE_ERROR.search(str(error))
        if match is None or not is_in_store(location):
            raise
        raise _store_error(location, match["code"] or "", match["what"] or "", error) from error


def _store_error(location: str, code: str, what: str, error: OSError) -> LakestoreError:
    hint = "check AWS_ACCESS_KEY_ID and its rights"
    if store_keys.is_without(location):
        hint = "set AWS_ACCESS_KEY_ID, or let the server give you a key (engine_keys in its settings)"
    if code in _REFUSALS:
        return Invalid(f"the object store refuses {what} of {location} ({code}): {hint}")
    said = f"{code} at {what}" if code else next(iter(str(error).splitlines()), "")[:200]
    if store_keys.is_without(location):
        said += f"; {hint}"
    if "SSL peer certificate" in str(error):
        said += f", {UNKNOWN_AUTHORITY}"
    return Unavailable(f"the object store does not answer for {location}: {said}")


def read(location: str) -> bytes:
    """The bytes of a file. Raises `OSError`, and `FileNotFoundError` if there is none. `Unavailable` if the store of
    the file does not answer, `Invalid` if it refuses."""
    with store_errors(location), open_file(location) as stream:
        found: bytes = stream.read()
    return found


def open_file(location: str) -> NativeFile:
    """Open a file for random reads. Raises `FileNotFoundError`."""
    if not is_in_store(location):
        filesystem, path = place(location)
        return filesystem.open_input_file(path)
    kept = _small.get(location)
    if kept is None:
        with store_errors(location):
            stream = _opened(location)
            if stream.size() > KEPT_BYTES_MAX:
                return stream
            with stream:
                kept = memoryview(stream.read_buffer())
        _keep(location, kept)
    return pa.BufferReader(pa.py_buffer(kept))


def _opened(location: str) -> NativeFile:
    """A file of a store, by the key of this process or of a server."""
    source = store_keys.source_of(location)
    key = source.key() if source else None
    if source is not None and key is not None:
        return pa.PythonFile(_KeyedFile(location, source, key), mode="r")
    store_counts.of_process().add(HEAD, GET)
    filesystem, path = _place(location, None)
    return filesystem.open_input_file(path)


class _KeyedFile(SizedFile):
    """A file of a store by the keys of a source. It is opened again when its key is replaced or refused."""

    def __init__(self, location: str, source: KeySource, key: ReaderKey) -> None:
        self._location, self._source, self._key = location, source, key
        self._stream: NativeFile | None = None
        super().__init__(self._answer(lambda stream: int(stream.size())))

    def _answer(self, work: Callable[[NativeFile], _Answer]) -> _Answer:
        current = self._source.key()
        if current is not None and current != self._key:
            self._use(current)
        for _ in range(_KEYS_TRIED - 1):
            try:
                return work(self._open_stream())
            except OSError as error:
                following = self._source.after(self._key) if _may_be_refusal(error) else None
                if following is None:
                    raise
                self._use(following)
        return work(self._open_stream())

    def _use(self, key: ReaderKey) -> None:
        self._key, self._stream = key, None

    def _open_stream(self) -> NativeFile:
        if self._stream is None:
            store_counts.of_process().add(HEAD, GET)
            filesystem, path = _place(self._location, self._key)
            self._stream = filesystem.open_input_file(path)
        return self._stream

    def part(self, at: int, size: int) -> bytes:
        return self._answer(lambda stream: bytes(stream.read_at(size, at)))


def _may_be_refusal(error: OSError) -> bool:
    """Arrow calls a refusal an internal failure if its text is longer than the bytes that were asked for."""
    match = _STORE_ERROR.search(str(error))
    return match is not None and (match["code"] in _REFUSALS or match["code"] == "INTERNAL_FAILURE")


def forget_stores() -> None:
    """Connect again to each store, by the variables that the environment has then."""
    _store.cache_clear()
    _small.clear()
    for forget in _forget_too:
        forget()


def forget_with_stores(forget: Callable[[], None]) -> None:
    """Call `forget` at each `forget_stores`: it drops connections that another module keeps."""
    _forget_too.append(forget)


def forget_small_files(location: str | None = None) -> None:
    """Read every file, or one, from its store at the next request: for checks, and after damaged bytes."""
    if location is None:
        _small.clear()
    else:
        _small.drop(location)


def version(location: str) -> str:
    """A text that differs between two files that were at this location: size and time of change of a local file.

    It is empty for an object store, which would have to be asked. Raises `FileNotFoundError` if a local file is gone.
    """
    local = None if _instead else file_uri.to_path(location)
    if local is None:
        return ""
    info = os.stat(local)
    return f"{info.st_size}-{info.st_mtime_ns}"


def read_part(location: str, begin: int, size: int) -> bytes:
    """`size` bytes of a file from `begin` on; fewer if the file ends earlier."""
    with store_errors(location), open_file(location) as stream:
        found: bytes = stream.read_at(size, begin)
    return found


def write(location: str, data: bytes | pa.Buffer) -> None:
    """Write a whole file and create its folders. Nothing is synced."""
    with store_errors(location), create(location) as stream:
        stream.write(data)
    if is_in_store(location):
        _keep(location, memoryview(data))


def _keep(location: str, data: memoryview) -> None:
    if data.nbytes <= KEPT_BYTES_MAX:
        _small.put(location, data)


def create(location: str) -> NativeFile:
    """Open a new file for writing and create its folders."""
    filesystem, path = place(location)
    if is_in_store(location):
        store_counts.of_process().add(PUT)
    try:
        with store_errors(location):
            return filesystem.open_output_stream(path)
    except FileNotFoundError:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(path)


@lru_cache(maxsize=1)
def _local() -> FileSystem:
    return LocalFileSystem()


@lru_cache(maxsize=_STORES_KEPT)
def _store(address: str, key: ReaderKey | None) -> tuple[FileSystem, str]:
    """The file system of an object store and the root path in it. It is cached to keep the connections."""
    if key is not None:
        return key.filesystem(), address.partition("://")[2]
    # With a delayed open, Arrow sends up to 5 MB in one put. Otherwise each file is an upload in parts: three requests.
    options = "?allow_delayed_open=true" if address.startswith("s3://") else ""
    filesystem, root = FileSystem.from_uri(f"{address}{options}")
    return filesystem, root.rstrip("/")
