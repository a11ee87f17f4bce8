"""The file of refused records: a line of JSON for each, once each however often a load is resumed.

A load notes the file's length with each commit. What is behind that length was written for records that no commit
passed, and is cut off before the load goes on, after a look that it is of this kind. Before a first commit, and where
a source is loaded again, the last lines that are of its files are cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Self

from lakestore.errors import Conflict, Invalid
from lakestore.loading.chunks import Bad
from lakestore.loading.disk import naming

_NAMES = {"file", "line", "reason", "text"}


class SkippedFile:
    """A file of refused records, open for more; a context manager."""

    def __init__(self, path: Path, said: tuple[str, int], files: Collection[str]) -> None:
        """`said` is the name and the length that the last commit noted; `files` are those of the source."""
        self.name = str(path.resolve())
        if path.exists() and not path.is_file():
            raise Invalid(f"{path} is no file in which bad rows can be kept: name another one by --skip-bad")
        with naming(path):
            self._path, self._file = path, path.open("ab+")
        self.length = self._file.seek(0, os.SEEK_END)
        if said[0] == self.name:
            self._cut(said[1])
        else:
            self._cut_last(files)

    def _cut_last(self, files: Collection[str]) -> None:
        """Take off the last lines that are of some files."""
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if not lines.pop():  # else a line was cut short, which is another's
            while lines and (held := _held(lines[-1])) is not None and held["file"] in files:
                self.length -= len(lines.pop()) + 1
            self._file.truncate(self.length)

    def _cut(self, length: int) -> None:
        """Back to a length."""
        if self.length < length:
            self._file.close()
            raise Conflict(
                f"{self._path} has {self.length} bytes, fewer than this load wrote: name another file by --skip-bad"
            )
        self._file.seek(length)
        *lines, _ = self._file.read().split(b"\n")
        if not all(_held(line) for line in lines):
            self._file.close()
            raise Conflict(f"{self._path} has more behind what this load wrote to it: name another file by --skip-bad")
        self._file.truncate(length)
        self.length = length

    def back_to(self, length: int) -> None:
        """Take back what was written behind a length by this process."""
        self._file.truncate(length)
        self.length = length

    def add(self, file: str, refused: Iterable[Bad]) -> int:
        """Write records, and have them on the disk; the length of the file then."""
        lines = [
            json.dumps(
                {"file": file, "line": each.line, "reason": each.reason, "text": each.text}, ensure_ascii=False
            ).encode("utf-8", "replace")
            for each in refused
        ]
        if lines:
            with naming(self._path):
                self._file.write(b"\n".join(lines) + b"\n")
                self._file.flush()
                os.fsync(self._file.fileno())
            self.length = self._file.seek(0, os.SEEK_END)
        return self.length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _held(line: bytes) -> dict[str, Any] | None:
    """A line of such a file; None for any other."""
    try:
        held = json.loads(line)
    except ValueError:
        return None
    return held if isinstance(held, dict) and set(held) == _NAMES else None
