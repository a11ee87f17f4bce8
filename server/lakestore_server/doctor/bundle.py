"""The support bundle: redacted texts in one archive."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakestore_server.doctor.redaction import masked

LOG_BYTES_MAX = 1 << 20
"""The end of a log that is taken."""
FILES_MAX = 100_000
"""Files of a data folder that are listed."""
_MODE = 0o600


def as_json(data: Any) -> str:
    """Data as indented JSON."""
    return json.dumps(data, indent=1, default=str, ensure_ascii=False) + "\n"


def end_of(path: Path) -> str:
    """The last megabyte of a text file, from the begin of a line on."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        text = file.read().decode(errors="replace")
    return text if size <= LOG_BYTES_MAX else text.partition("\n")[2]


def files(folder: Path) -> list[dict[str, Any]]:
    """Names, sizes and ages of a data folder's files; nothing of their contents."""
    found: list[dict[str, Any]] = []
    now = time.time()
    for above, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(above, name)
            try:
                about = path.stat()
            except FileNotFoundError:  # a server that runs removes files meanwhile
                continue
            place = str(path.relative_to(folder))
            found.append({"file": place, "bytes": about.st_size, "age_seconds": round(now - about.st_mtime)})
            if len(found) == FILES_MAX:
                return found
    return found


def write(target: Path, parts: Mapping[str, str]) -> None:
    """Write the archive, which only its owner may read, whole or not at all; `FileExistsError` if there is one."""
    number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                data = masked(text).encode()
                entry = tarfile.TarInfo(f"lakestore-support/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), _MODE
                archive.addfile(entry, io.BytesIO(data))
    except BaseException:
        target.unlink(missing_ok=True)
        raise
