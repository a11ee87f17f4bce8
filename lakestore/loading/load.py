"""One load: commits the chunks of a source in order, each with its progress."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lakestore.client.named_writes import NamedWrites
from lakestore.errors import Conflict, Fenced, Invalid, LakestoreError, Violated
from lakestore.loading.changes import CHANGES_MAX, Change, Changes, add_to, violations
from lakestore.loading.files import TEXTS, File, Source
from lakestore.loading.json_blocks import chunks_of
from lakestore.loading.progress import Place, Progress, producer_name
from lakestore.loading.reading import Bad, Chunk, ColumnRequest, Options, naming
from lakestore.union.side_by_side import merged
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import COUNTS

if TYPE_CHECKING:
    from lakestore.client.commit import Commit
    from lakestore.client.lake import Lake
    from lakestore.model.table import Table


_NAMES = {"file", "line", "reason", "text"}


class SkippedFile:
    """A file of refused records. A context manager."""

    def __init__(self, path: Path, last: tuple[str, int], files: Collection[str]) -> None:
        """`last` is the name and length in the last commit; `files` are the files of the source."""
        self.name = str(path.resolve())
        if path.exists() and not path.is_file():
            raise Invalid(f"{path} is not a file for bad rows: name another one by --skip-bad")
        with naming(path):
            self._path, self._file = path, path.open("ab+")
        self.length = self._file.seek(0, os.SEEK_END)
        if last[0] == self.name:
            self._cut(last[1])
        else:
            self._cut_last(files)

    def _cut_last(self, files: Collection[str]) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if not lines.pop():  # otherwise a line was cut, and the file is another program's
            while lines and (held := _held(lines[-1])) is not None and held["file"] in files:
                self.length -= len(lines.pop()) + 1
            self._file.truncate(self.length)

    def _cut(self, length: int) -> None:
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
        """Truncate what this process wrote after a length."""
        self._file.truncate(length)
        self.length = length

    def add(self, file: str, refused: Iterable[Bad]) -> int:
        """Write and sync records. Returns the new length of the file."""
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
    try:
        held = json.loads(line)
    except ValueError:
        return None
    return held if isinstance(held, dict) and set(held) == _NAMES else None


MAX_BAD = 10_000
_AHEAD = 1


class RefusedRecord(Invalid):
    """The table refuses a record of a file."""


class LoadStopped(Exception):
    """The load was stopped between two commits."""


class Load:
    """Loads files into a table. For one thread; `stop` may be called from any."""

    def __init__(
        self,
        lake: Lake,
        table: Table,
        source: Source,
        options: Options | None = None,
        *,
        where: str = "",
        deletes: bool = False,
        again: bool = False,
        skip_bad: Path | None = None,
        max_bad: int = MAX_BAD,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_rows` is called with the number of committed rows. `max_bad` bounds the refused records of one run."""
        self._lake, self._table, self._source = lake, table, source
        self._wanted = ColumnRequest(table, options or Options(), deletes, max_bad if skip_bad is not None else 0)
        self._changes = Changes(self._wanted, where)
        self._again, self._skip_bad, self._max_bad, self._on_rows = again, skip_bad, max_bad, on_rows
        self._skipped: SkippedFile | None = None
        self._producer: NamedWrites | None = None
        self._is_stopped = False
        self._said = ""
        """The progress that the server has."""
        self.started = Progress()
        self.progress = Progress()
        self._ahead = Progress()
        """The progress including refused records that no commit covers yet."""
        self.counts: Counter[str] = Counter()
        """Rows of this run by the names of a write's result."""
        self.files = 0
        """Files that this run has finished."""
        self.token = ""
        self.doubtful = ""
        """Lines whose commit may have been applied; empty if there is no doubt."""

    @property
    def producer(self) -> str:
        """Name of the load's producer; empty for stdin without a name."""
        if not self._source.name:
            return ""
        return producer_name(self._table.name, self._source.name, deletes=self._wanted.deletes)

    @property
    def rows(self) -> int:
        return self.progress.rows - self.started.rows

    @property
    def refused(self) -> int:
        return self._ahead.refused - self.started.refused

    def stop(self) -> None:
        """End before the next commit by raising `LoadStopped`."""
        self._is_stopped = True

    def run(self) -> None:
        """Load everything that is not loaded yet. `progress` is what is committed, also after an error."""
        with ExitStack() as stack:
            if self.producer:
                self._producer = stack.enter_context(self._lake.producer(self.producer))
                self._resume(self._producer.progress)
            if self._skip_bad is not None:
                said, names = self.progress.skipped, {file.name or file.shown for file in self._source.files}
                self._skipped = stack.enter_context(SkippedFile(self._skip_bad, said, names))
                self._ahead = replace(self._ahead, skipped=(self._skipped.name, self._skipped.length))
            for file in self._files():
                self._file(file)

    def _files(self) -> Sequence[File]:
        """The files of the source, first the file that an earlier run began. Beginning another file would mark it as
        finished.

        A file that was begun and is now missing is refused when it is back.
        """
        begun, files = self._ahead.file, self._source.files
        if not any(file.name == begun for file in files):
            if not self._ahead.place.is_end:
                self._ahead = replace(self._ahead, fingerprint="")
            return files
        return sorted(files, key=lambda file: file.name != begun)

    def _resume(self, text: str) -> None:
        self._said = text
        known = Progress(turn=secrets.token_hex(4)) if self._again else Progress.of_text(text)
        if known.table not in ("", self._table.uuid):
            known = Progress(turn=known.turn)  # the table that held these rows is gone
        self.started = self.progress = self._ahead = replace(known, table=self._table.uuid)

    def _file(self, file: File) -> None:
        fingerprint = file.fingerprint()
        known = self._ahead
        if known.file != file.name and known.knows(file.name):
            if known.is_same(file.name, fingerprint):
                return
            raise Conflict(
                f"{file.shown} changed since it was loaded: --again loads everything from its beginning, another"
                " --name this file too"
            )
        if known.file != file.name:
            self._ahead = known = known.at(file.name, fingerprint)
        place = known.place
        if place.is_end and known.fingerprint == fingerprint and fingerprint:
            return
        if file.kind not in TEXTS and place.offset and fingerprint and fingerprint != known.fingerprint:
            raise Conflict(
                f"{file.shown} is another file than the one that was loaded under this name, up to row {place.offset}:"
                " --again loads it from its beginning"
            )
        self._ahead = replace(known, fingerprint=fingerprint)
        with closing(merged([lambda: self._chunks(file, place)], threads=1, ahead=_AHEAD, tick=self._check)) as found:
            for chunk in found:
                self._put(file, chunk)
        self.files += 1

    def _chunks(self, file: File, place: Place) -> Iterator[Chunk]:
        """The chunks of a file from a place. The last one is marked."""
        last: Chunk | None = None
        for chunk in chunks_of(file, self._wanted, place):
            made = self._changes.prepare(chunk)
            if last is not None and not made.batch.num_rows:
                last = last.followed_by(made)
                continue
            if last is not None:
                yield last
            last = made
        if last is not None:
            yield replace(last, is_last=True)

    def _check(self) -> None:
        if self._is_stopped:
            raise LoadStopped

    def _put(self, file: File, chunk: Chunk) -> None:
        self._check()
        if chunk.bad and self._skipped is None:
            first = chunk.bad[0]
            self._commit(file, chunk, 0, first.record)
            raise _refused(file, first)
        if chunk.tail is not None and chunk.tail.bad and self._skipped is None:
            self._commit(file, replace(chunk, tail=None, is_last=False), 0, chunk.count)
            raise _refused(file, chunk.tail.bad[0])
        self._commit(file, chunk, 0, chunk.count)

    def _commit(self, file: File, chunk: Chunk, start: int, end: int) -> None:
        """Commit a range of a chunk's records. If the server refuses a row, commit the parts around it."""
        part = chunk.part(start, end)
        changes = self._changes.of(part)
        if len(changes) > CHANGES_MAX and end - start > 1:
            self._halves(file, chunk, start, end)
            return
        before = self._ahead
        self._leave_out(file, [*part.bad, *(part.tail.bad if part.tail else ())])
        told = replace(self._ahead, place=part.place_behind(end), rows=self._ahead.rows + part.batch.num_rows)
        if not changes:
            self._ahead = told
            return
        self.doubtful = f"{file.shown}, {_unit(file)}s {int(chunk.line[start])} to {int(chunk.line[end - 1])}"
        try:
            self._sent(changes, told)
        except Invalid as error:
            if error.applied == "unknown":
                raise
            self.doubtful = ""
            self._back_to(before)
            if isinstance(error, Violated) and error.changes:
                reasons = {row: rule.sentence for row, rule in violations(changes, error).items()}
                self._commit_without(file, chunk, part, (start, end), reasons)
            elif part.batch.num_rows == 1:
                self._refused_by_server(file, part, end, error)
            else:
                self._halves(file, chunk, start, end)
        self.doubtful = ""

    def _commit_without(
        self, file: File, chunk: Chunk, part: Chunk, records: tuple[int, int], reasons: Mapping[int, str]
    ) -> None:
        """Commit the records of a range whose rows break no rule of the contract. `reasons` has the others by row."""
        start, end = records
        bad = np.isin(np.arange(part.batch.num_rows), list(reasons))
        left = part.without(bad, [reasons[row] for row in sorted(reasons)])
        if self._skipped is not None:
            self._commit(file, left, start, end)
            return
        first = next(each for each in left.bad if each.record in part.record[bad])
        if first.record > start:
            self._commit(file, chunk, start, first.record)
        raise _refused(file, first)

    def _halves(self, file: File, chunk: Chunk, start: int, end: int) -> None:
        middle = (start + end) // 2
        self._commit(file, chunk, start, middle)
        self._commit(file, chunk, middle, end)

    def _back_to(self, before: Progress) -> None:
        self._ahead = before
        if self._skipped is not None:
            self._skipped.back_to(before.skipped[1])

    def _refused_by_server(self, file: File, part: Chunk, end: int, error: Invalid) -> None:
        record = int(part.record[0])
        bad = Bad(record, int(part.line[record]), error.message, part.text(record))
        if self._skipped is None:
            raise _refused(file, bad) from error
        others = [*part.bad, *(part.tail.bad if part.tail else ())]
        self._leave_out(file, sorted([*others, bad], key=lambda each: each.line))
        self._ahead = replace(self._ahead, place=part.place_behind(end))

    def _sent(self, changes: Sequence[Change], progress: Progress) -> None:
        """Commit. If the answer is lost, the server's progress shows whether the commit happened."""
        text = progress.to_text()
        for is_last in (False, True):
            try:
                with self._opened(text) as commit:
                    add_to(commit, self._table.name, changes, keyed=self._table.keyed)
                self._noted(commit.token, commit.results, progress)
                return
            except Fenced as error:
                if not self.producer:
                    raise
                said = f"another load of {self._source.shown} into {self._table.name} has begun, and goes on from here"
                raise Fenced(said, applied=error.applied) from error
            except LakestoreError as error:
                if is_last or error.applied != "unknown" or not self.producer:
                    raise
                self._producer = self._lake.producer(self.producer)
                if self._producer.progress == text:
                    self._noted(self._lake.last_token, (), progress)
                    return
                if self._producer.progress != self._said:
                    raise Fenced(f"another load of {self._source.shown} has written meanwhile: load again") from error

    def _opened(self, progress: str) -> AbstractContextManager[Commit]:
        return self._lake.commit() if self._producer is None else self._producer.commit(progress=progress)

    def _noted(self, token: str, results: Iterable[pb.ChangeResult], progress: Progress) -> None:
        rows = progress.rows - self.progress.rows
        self.progress = self._ahead = progress
        self._said, self.token = progress.to_text(), token
        for result in results:
            for name in COUNTS:
                self.counts[name] += getattr(result, name)
        self._on_rows(rows)

    def _leave_out(self, file: File, refused: Sequence[Bad]) -> None:
        if not refused:
            return
        assert self._skipped is not None, "a refused record ends a load that keeps none"
        left = self._max_bad - self.refused
        if len(refused) > left:
            first = refused[left]
            raise RefusedRecord(
                f"{file.shown}, {_unit(file)} {first.line}: {first.reason}; more than {self._max_bad:,} records are"
                " refused: mend the file, or say --max-bad"
            )
        length = self._skipped.add(file.name or file.shown, refused)
        skipped = (self._skipped.name, length)
        self._ahead = replace(self._ahead, skipped=skipped, refused=self._ahead.refused + len(refused))


def _unit(file: File) -> str:
    return "line" if file.kind in TEXTS else "row"


def _refused(file: File, bad: Bad) -> RefusedRecord:
    return RefusedRecord(f"{file.shown}, {_unit(file)} {bad.line}: {bad.reason}")
