"""The JSON of a table's metadata file, which Iceberg's writers may compress with gzip (`….gz.metadata.json`)."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import orjson

_GZIP = b"\x1f\x8b"


def is_compressed(data: bytes) -> bool:
    """Whether the bytes of a metadata file are compressed. The bytes decide, not the file's name."""
    return data.startswith(_GZIP)


def parsed(data: bytes) -> dict[str, Any]:
    """The document in the bytes of a metadata file. Raises `ValueError`."""
    try:
        found: dict[str, Any] = orjson.loads(gzip.decompress(data) if is_compressed(data) else data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"its gzip is damaged: {error}") from error
    return found


def same_form(document: bytes, before: bytes) -> bytes:
    """The JSON of a document, compressed if the bytes of an earlier form were: engines go by the file's name."""
    return gzip.compress(document, mtime=0) if is_compressed(before) else document
