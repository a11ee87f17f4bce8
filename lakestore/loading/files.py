"""Sources of a load and their files: names, formats, compression and fingerprints."""

from __future__ import annotations

import glob
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import fs

from lakestore.errors import Invalid, NotFound
from lakestore.model import file_uri
from lakestore.model.outside_values import first_line

STDIN = "-"
FORMATS = ("parquet", "csv", "jsonl", "arrow", "debezium-json")
TEXTS = ("csv", "jsonl", "debezium-json")
EDGE_BYTES = 64 << 10
"""Bytes at each end of a file that its fingerprint covers."""
HEAD_BYTES = 1 << 10
"""Bytes at the start of a text that distinguish it from another text of its name."""
_COPIED_BYTES = 4 << 20
_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class Stdin(io.BufferedIOBase):
    """Standard input or a named pipe. Its beginning can be read twice."""

    def __init__(self, source: IO[bytes], *, is_own: bool = False) -> None:
        """`is_own`: close the source at the end."""
        self._is_own = is_own
        self._source, self._noted, self._waiting = source, bytearray(), b""
        self._copy: IO[bytes] | None = None
        self._is_noting = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise io.UnsupportedOperation("the standard input is read in pieces")
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        data = taken + self._more(size - len(taken)) if len(taken) < size else taken
        if self._is_noting:
            self._noted += data
        return data

    def _more(self, size: int) -> bytes:
        if self._source.closed:
            return b""
        data = self._source.read(size)
        if self._is_own and not data:
            self._source.close()
        return data

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Bytes that are read inside the block are read again after it."""
        self._is_noting = True
        try:
            yield
        finally:
            self._is_noting = False
            self._waiting = bytes(self._noted) + self._waiting
            self._noted.clear()

    def copy_path(self) -> str:
        """Copy everything to a file, once, and return its path."""
        if self._copy is None:
            self._copy = tempfile.NamedTemporaryFile()
            while data := self.read(_COPIED_BYTES):
                self._copy.write(data)
            self._copy.flush()
        return self._copy.name


@dataclass(frozen=True, slots=True)
class File:
    """One file of rows."""

    name: str
    """Canonical: an absolute path or a URI. For stdin the given name, or empty."""
    shown: str
    kind: str
    compression: str = ""
    filesystem: fs.FileSystem | None = None
    """None: the local file system."""
    path: str = ""
    """Path in the file system; empty for stdin."""
    stdin: Stdin | None = None

    @property
    def is_stdin(self) -> bool:
        return self.stdin is not None

    @property
    def separator(self) -> str:
        return "\t" if ".tsv" in Path(self.path).suffixes else ","

    def raw(self) -> Any:
        """The stored bytes. The caller closes the stream."""
        if self.stdin is not None:
            return pa.PythonFile(self.stdin, mode="r")
        if self.filesystem is not None:
            return self.filesystem.open_input_file(self.path)
        return pa.OSFile(self.path, mode="r")

    @contextmanager
    def stream(self) -> Iterator[Any]:
        raw = self.raw()
        try:
            yield pa.CompressedInputStream(raw, self.compression) if self.compression else raw
        finally:
            if self.stdin is None:
                raw.close()

    @contextmanager
    def seekable(self) -> Iterator[Any]:
        """The decompressed bytes with random access. A compressed or piped file is copied to a temporary file."""
        if not (self.compression or self.is_stdin):
            with self.raw() as raw:
                yield raw
            return
        if self.stdin is not None:
            with pa.OSFile(self.stdin.copy_path(), mode="r") as whole:
                yield whole
            return
        with tempfile.NamedTemporaryFile() as copy:
            with self.stream() as stream:
                while data := stream.read(_COPIED_BYTES):
                    copy.write(data)
            copy.flush()
            with pa.OSFile(copy.name, mode="r") as whole:
                yield whole

    def fingerprint(self) -> str:
        """Identifies the file's content; empty for stdin."""
        if self.is_stdin:
            return ""
        with self.raw() as raw:
            return fingerprint_of(raw)


def fingerprint_of(stream: Any) -> str:
    """Size and checksums of both ends of an open file. Moves its position."""
    size = stream.size()
    head = zlib.crc32(stream.read_at(min(size, EDGE_BYTES), 0))
    tail = zlib.crc32(stream.read_at(min(size, EDGE_BYTES), max(0, size - EDGE_BYTES)))
    return f"{size:x}.{head:08x}.{tail:08x}"


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one load, in the order of their names."""

    name: str
    """Canonical; empty for stdin without a name, which has no identity."""
    shown: str
    files: tuple[File, ...]


def source_of(text: str, *, name: str = "", kind: str | None = None) -> Source:
    """The source for a path, glob, folder, URI or `-`. `kind` applies to all files."""
    if text == STDIN:
        if kind is None:
            raise Invalid(f"rows from stdin have no file name to tell their format: say --format {' | '.join(FORMATS)}")
        return Source(name, "stdin", (File(name, "stdin", kind, stdin=Stdin(_stdin())),))
    if "://" in text:
        return _remote(text, name, kind)
    path = Path(text)
    if path.is_dir():
        found = sorted(each for each in path.rglob("*") if each.is_file() and _is_rows(each.relative_to(path), kind))
        if not found:
            raise Invalid(f"{text} holds no files of rows: their names end in {', '.join(sorted(_KINDS))}")
        return Source(name or f"{path.resolve()}/", text, tuple(_local(each, kind) for each in found))
    if not path.exists() and glob.has_magic(text):
        paths = sorted(Path(each) for each in glob.glob(text, recursive=True) if os.path.isfile(each))
        if not paths:
            raise Invalid(f"no file matches {text}")
        return Source(name or os.path.abspath(text), text, tuple(_local(each, kind) for each in paths))
    if not path.exists():
        raise Invalid(f"{text} does not exist")
    if not path.is_file():
        return _piped(path, name, kind)
    return Source(name or str(path.resolve()), text, (_local(path, kind),))


def _piped(path: Path, name: str, kind: str | None) -> Source:
    """A pipe or device, read once like stdin. Its identity is the given name."""
    found, compression = _format(str(path), kind)
    try:
        stream = open(path, "rb", buffering=0)
    except OSError as error:
        raise Invalid(f"{path} cannot be opened: {error.strerror}") from error
    return Source(name, str(path), (File(name, str(path), found, compression, stdin=Stdin(stream, is_own=True)),))


def _stdin() -> IO[bytes]:
    """Standard input without Python's buffer. A thread that waits for the buffer would hold its lock for ever."""
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except OSError:  # a stand-in of a program, not a file of the system
        return sys.stdin.buffer


def _local(path: Path, kind: str | None) -> File:
    found, compression = _format(str(path), kind)
    return File(str(path.resolve()), str(path), found, compression, None, str(path))


def _remote(text: str, name: str, kind: str | None) -> Source:
    try:
        local = file_uri.to_path(text)
        filesystem, path = fs.FileSystem.from_uri(text) if local is None else (fs.LocalFileSystem(), local)
        about = filesystem.get_file_info(path)
        if about.type is fs.FileType.Directory:
            listed = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            base = len(path.rstrip("/")) + 1
            paths = [each.path for each in listed if each.is_file and _is_rows(Path(each.path[base:]), kind)]
        else:
            paths = [path] if about.is_file else []
    except (OSError, pa.ArrowException) as error:
        raise NotFound(f"{text} cannot be opened: {first_line(error)}") from error
    if not paths:
        raise NotFound(f"{text} does not exist, or holds no files of rows")
    scheme = text.split("://", 1)[0]
    files = [
        File(f"{scheme}://{each}", f"{scheme}://{each}", *_format(each, kind), filesystem, each)
        for each in sorted(paths)
    ]
    return Source(name or text, text, tuple(files))


def _is_rows(path: Path, kind: str | None) -> bool:
    if any(part.startswith((".", "_")) for part in path.parts):
        return False
    return kind is not None or _suffixes(str(path))[0] in _KINDS


def _suffixes(name: str) -> tuple[str, str]:
    stem, last = os.path.splitext(name.lower())
    return (os.path.splitext(stem)[1], last) if last in _COMPRESSIONS else (last, "")


def _format(name: str, kind: str | None) -> tuple[str, str]:
    suffix, packed = _suffixes(name)
    found = kind or _KINDS.get(suffix)
    if found is None:
        raise Invalid(f"{name}: the name ends in none of {', '.join(sorted(_KINDS))}: say --format")
    return found, _COMPRESSIONS.get(packed, "")


def format_of(path: Path) -> str:
    """The format that an output file's name implies."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise Invalid(f"{path}: the name ends in none of {', '.join(sorted(_KINDS))}: say --format")
    return kind
