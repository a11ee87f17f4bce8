"""Progress of a load, as the server keeps it with the rows: the place in the source and the files that were done."""

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
    """A place in one file: between two records."""

    offset: int = 0
    """Bytes of a text before it, decompressed; rows of Parquet and Arrow."""
    line: int = 0
    """Lines before it; rows of Parquet and Arrow."""
    crc: int = 0
    """Checksum of all bytes before it; 0 for Parquet and Arrow, whose fingerprint is compared."""
    head: int = 0
    """Checksum of the first bytes, as many as lie before it, and `files.HEAD_BYTES` at most."""
    is_end: bool = False
    """Whether the file ended here."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything that a load needs to go on."""

    table: str = ""
    """The table's uuid: a table made anew holds nothing of what was loaded into the old one."""
    file: str = ""
    """Name of the file that `place` is in; empty before the first commit."""
    place: Place = Place()
    fingerprint: str = ""
    """The file's, as `files.fingerprint_of` has it."""
    done: Mapping[str, str] = field(default_factory=dict)
    """Digest of the name of each file before this one to the digest of its fingerprint."""
    rows: int = 0
    """Rows that this source brought so far."""
    refused: int = 0
    """Records that were left out."""
    skipped: tuple[str, int] = ("", 0)
    """The file of refused records, and its bytes up to this place."""
    turn: str = ""
    """Drawn by a load that begins again, so that no progress of it is one of the load before."""

    def to_text(self) -> str:
        """The form that the server keeps; a list of producers shows how it begins."""
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
        """The progress of a text that `to_text` made; of an empty one: none yet."""
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
        """The place as a person says it: `line 4 of orders.csv`."""
        unit = "line" if self.place.crc else "row"
        return f"{unit} {self.place.line:,} of {PurePath(self.file).name or 'stdin'}"

    def knows(self, name: str) -> bool:
        """Whether a file before the current one had this name."""
        return _digest(name, 16) in self.done

    def is_same(self, name: str, fingerprint: str) -> bool:
        """Whether a file that is done looked so."""
        return self.done.get(_digest(name, 16)) == _digest(fingerprint, 12)

    def at(self, file: str, fingerprint: str) -> Progress:
        """At the beginning of the next file."""
        done = dict(self.done)
        if self.file:
            done[_digest(self.file, 16)] = _digest(self.fingerprint, 12)
        return replace(self, file=file, place=Place(), fingerprint=fingerprint, done=done)


_BEGIN = re.compile(
    r'\{"file":"((?:[^"\\]|\\.)+)","line":(\d+),"rows":(\d+),"ended":(true|false)(?:,"at":\[\d+,(\d+),)?(?:.*?"refused":(\d+))?'
)


def summary(text: str) -> str:
    """The beginning of a load's progress in a few words: a list of producers has no more; other texts as they are."""
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
    """The name of the producer of a source; a long one is cut and ends in its digest."""
    name = f"{'delete' if deletes else _PREFIX} {table} {source}"
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[: _NAME_CHARS_MAX - 17]}#{_digest(name, 16)}"
