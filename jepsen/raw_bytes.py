"""A search for bytes in every file below some folders, as they lie there and decoded by nobody's code of ours."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from fastavro import reader

_MESSAGE = b"\xff\xff\xff\xff"


def hits(folders: list[Path], wanted: bytes) -> list[str]:
    """The files that hold the bytes, plain or in a Parquet, Avro or Arrow value, or compressed. If a file is removed
    meanwhile, the search begins again: its content may be in another one."""
    while True:
        try:
            return _hits(folders, wanted)
        except FileNotFoundError:
            continue


def _hits(folders: list[Path], wanted: bytes) -> list[str]:
    found = []
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if holds(path, wanted):
                found.append(f"{folder.name}/{path.relative_to(folder)}")
            elif wanted in str(path).encode():
                found.append(f"the name of {path.relative_to(folder)}")
    return found


def matches(folder: Path, pattern: re.Pattern[bytes]) -> set[bytes]:
    """The first group of every match of a pattern in the files below a folder, plain, decoded or compressed. A file
    that is removed meanwhile is left out."""
    found: set[bytes] = set()
    for path in sorted(folder.rglob("*")):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        for part in (str(path).encode(), data, *_decoded(data)):
            found.update(pattern.findall(part))
    return found


def holds(path: Path, wanted: bytes) -> bool:
    """Whether a file holds the bytes."""
    data = path.read_bytes()
    return wanted in data or any(wanted in part for part in _decoded(data))


def _decoded(data: bytes) -> Iterator[bytes]:
    if data[:4] == b"PAR1":
        yield repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    elif data[:3] == b"Obj":
        yield repr(list(reader(io.BytesIO(data)))).encode()
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    else:
        yield from _messages(data)
        yield from _zstandard(data)


def _messages(data: bytes) -> Iterator[bytes]:
    """The buffers of Arrow messages, uncompressed."""
    at = data.find(_MESSAGE)
    while at >= 0:
        try:
            message = ipc.read_message(pa.BufferReader(data[at:]))
            body = message.body
            if body is not None:
                yield body.to_pybytes()
        except (pa.ArrowException, OSError, EOFError):
            pass
        at = data.find(_MESSAGE, at + 1)


def _zstandard(data: bytes) -> Iterator[bytes]:
    """Frames of zstd and lz4 at any place."""
    for magic, codec in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "lz4")):
        at = data.find(magic)
        while at >= 0:
            try:
                yield pa.CompressedInputStream(pa.BufferReader(data[at:]), codec).read()
            except (pa.ArrowException, OSError, zlib.error):
                pass
            at = data.find(magic, at + 1)
