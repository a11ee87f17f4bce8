"""Progress of a load, stored by the server with the rows: the place in the source and the finished files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from lakestore.errors import Invalid
from lakestore.model.names import rows_text

_VERSION = 1
_NAME_CHARS_MAX = 200
_PREFIX = "write"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file between two records."""

    offset: int = 0
    """Decompressed bytes of a text, or rows of Parquet and Arrow, before the place."""
    line: int = 0
    """Lines, or rows of Parquet and Arrow, before the place."""
    crc: int = 0
    """Checksum of all bytes before the place; 0 for Parquet and Arrow, whose fingerprint is compared."""
    head: int = 0
    """Checksum of the first bytes before the place, at most `files.HEAD_BYTES`."""
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything that a load needs to continue."""

    table: str = ""
    """UUID of the table. A table created again under the name has none of the loaded rows."""
    file: str = ""
    """Name of the file of `place`; empty before the first commit."""
    place: Place = Place()
    fingerprint: str = ""
    done: Mapping[str, str] = field(default_factory=dict)
    """Digest of each finished file's name to the digest of its fingerprint."""
    rows: int = 0
    refused: int = 0
    skipped: tuple[str, int] = ("", 0)
    """The file of refused records and its length at this place."""
    turn: str = ""
    """Random for each load that starts over, so its progress never equals an earlier load's."""

    def to_text(self) -> str:
        """The stored form. Lists of producers show its beginning."""
        at = [self.place.offset, self.place.crc, self.place.head, self.fingerprint]
        told = {
            "file": self.file,
            "line": self.place.line,
            "rows": self.rows,
            "ended": self.place.is_end,
            "at": at,
            "table": self.table,
            "refused": self.refused,
            "skipped": list(self.skipped),
            "done": "".join(f"{name}{content}" for name, content in self.done.items()),
            **({"turn": self.turn} if self.turn else {}),
            "version": _VERSION,
        }
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def of_text(text: str) -> Progress:
        """Parse the output of `to_text`; an empty text is no progress."""
        if not text:
            return Progress()
        try:
            held = json.loads(text)
            if held["version"] != _VERSION:
                raise Invalid(f"the progress of this load is of version {held['version']}: load with a newer Lakestore")
            offset, crc, head, fingerprint = held["at"]
            done = held["done"]
            pairs = {done[at : at + 16]: done[at + 16 : at + 28] for at in range(0, len(done), 28)}
            place = Place(offset, held["line"], crc, head, held["ended"])
            name, length = held["skipped"]
            counts, skipped, turn = (held["rows"], held["refused"]), (name, length), held.get("turn", "")
            return Progress(held["table"], held["file"], place, fingerprint, pairs, *counts, skipped, turn)
        except (ValueError, KeyError, TypeError) as error:
            raise Invalid("the producer of this name is not that of a load: say --name NAME") from error

    @property
    def place_text(self) -> str:
        """The place for people: `line 4 of orders.csv`."""
        unit = "line" if self.place.crc else "row"
        return f"{unit} {self.place.line:,} of {PurePath(self.file).name or 'stdin'}"

    def knows(self, name: str) -> bool:
        return _digest(name, 16) in self.done

    def is_same(self, name: str, fingerprint: str) -> bool:
        """True if a finished file had this name and fingerprint."""
        return self.done.get(_digest(name, 16)) == _digest(fingerprint, 12)

    def at(self, file: str, fingerprint: str) -> Progress:
        """The progress at the beginning of the next file."""
        done = dict(self.done)
        if self.file:
            done[_digest(self.file, 16)] = _digest(self.fingerprint, 12)
        return replace(self, file=file, place=Place(), fingerprint=fingerprint, done=done)


_BEGIN = re.compile(
    r'\{"file":"((?:[^"\\]|\\.)+)","line":(\d+),"rows":(\d+),"ended":(true|false)(?:,"at":\[\d+,(\d+),)?(?:.*?"refused":(\d+))?'
)


def summary(text: str) -> str:
    """Summarise the beginning of a progress text. Other texts are returned unchanged."""
    found = _BEGIN.match(text)
    if found is None:
        return text
    file, line, rows, ended, crc, refused = found.groups()
    place = Progress(file=json.loads(f'"{file}"'), place=Place(line=int(line), crc=int(crc or 0))).place_text
    told = f"{rows_text(int(rows))}, to {place}{', its end' if ended == 'true' else ''}"
    return f"{told}; {rows_text(int(refused), 'bad row')} left out" if int(refused or 0) else told


def _digest(text: str, chars: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:chars]


def producer_name(table: str, source: str, *, deletes: bool) -> str:
    """Producer name of a source. A long name is cut and ends in its digest."""
    name = f"{'delete' if deletes else _PREFIX} {table} {source}"
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[: _NAME_CHARS_MAX - 17]}#{_digest(name, 16)}"
