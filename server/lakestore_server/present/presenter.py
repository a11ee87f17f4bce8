"""Presents cuts: keeps what was written for one cut for the next ones, and removes what nobody needs any more.

One at a time. Nothing that is kept changes before a presenting is complete: one that fails leaves no trace but files,
which are removed.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Invalid, LakestoreError, Unavailable
from lakestore.lake.offset_cache import OffsetCache
from lakestore.union import plan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.present.base_files import BaseFiles, Bases, Manifests
from lakestore_server.present.deletes import Ledger
from lakestore_server.present.hot_files import Fetch
from lakestore_server.present.kept_files import KeptFiles
from lakestore_server.present.merging import Merger
from lakestore_server.present.messages import DEFAULT_ROOM, Present, Presented, Room
from lakestore_server.present.presenting import Known, Outcome, Presenting, Tools
from lakestore_server.present.steps import Step, Window, to_merge

log = logging.getLogger("lakestore.present")
THREADS = 2
LEDGERS_MAX = 8
"""Ledgers of a table that are kept: of the newest cut, and of others that somebody reads at the same time."""


class _Table:
    """Everything that is kept of one table."""

    def __init__(self, folder: str, numbers: Iterator[int]) -> None:
        self.files = KeptFiles(folder, numbers)
        self._numbers = numbers
        self.answers: dict[int, Presented] = {}
        """By cut."""
        self._steps: list[Step] = []
        self._ledgers: list[Ledger] = []
        """The one that was used last is the last."""
        self._used: dict[int, tuple[Step, ...]] = {}
        self._merged: dict[Step, tuple[Step, ...]] = {}
        """Merged steps that no cut reads yet, and their parts."""
        self._newest: tuple[Window, ...] = ()
        self._base: BaseFiles | None = None
        """The base of the newest ledger, until the indexes of other files are removed."""
        self._tidied: BaseFiles | None = None
        """The base upon which they were removed last."""

    def known(self) -> Known:
        """The part of it that a presenting may use again."""
        return Known(tuple(self._steps), tuple(self._ledgers), self.files.name, self._numbers)

    def keep(self, cut_id: int, outcome: Outcome) -> list[str]:
        """Take over what a presenting made; the files that nobody needs any more."""
        steps = tuple(window.step for window in outcome.windows)
        self._steps += [step for step in steps if step not in self._steps]
        self._ledgers = [*(each for each in self._ledgers if each is not outcome.earlier), outcome.ledger]
        written = self.files.written_bytes(outcome.files)
        self.answers[cut_id], self._used[cut_id] = replace(outcome.answer, written_bytes=written), steps
        self._newest = outcome.windows
        if outcome.base.is_read and outcome.base.manifests and outcome.earlier is None:
            self._base = outcome.base
        self.files.keep(cut_id, outcome.files)
        return self._swept()

    def forget(self, cut_ids: Sequence[int]) -> list[str]:
        """Let go of cuts; the files that are gone with them."""
        for cut_id in cut_ids:
            del self.answers[cut_id], self._used[cut_id]
        self.files.forget(cut_ids)
        return self._swept()

    def to_merge(self) -> tuple[Step, ...]:
        """Steps of the cut that was presented last that are worth one."""
        return to_merge(self._newest) if not self._merged else ()

    def tidy(self, indexes: OffsetCache) -> None:
        """Remove the indexes of data files that the newest base no longer has."""
        base, self._base = self._base, None
        if base is None or base is self._tidied:
            return
        try:
            if self._tidied is None:
                indexes.keep_only(base.group, base.paths())
            else:
                indexes.forget(base.group, base.left_since(self._tidied))
            self._tidied = base
        except (OSError, LakestoreError) as error:
            log.warning("offset indexes of %s are not swept: %s", base.group, error)

    def merged(self, parts: tuple[Step, ...], step: Step) -> bool:
        """Take over a merged step; False if some cut's end has taken a part of it with it."""
        if not all(part in self._steps for part in parts):
            return False
        self._steps.append(step)
        self._merged[step] = parts
        self.files.adopt(file.path for file in step.files)
        return True

    def _swept(self) -> list[str]:
        """Drop steps and ledgers of cuts that are gone, and their files."""
        used = {step for steps in self._used.values() for step in steps}
        self._merged = {one: parts for one, parts in self._merged.items() if one not in used and used.issuperset(parts)}
        used |= self._merged.keys()
        self._steps = [step for step in self._steps if step in used]
        fresh = [each for each in self._ledgers if all(window.step in used for window in each.windows)]
        self._ledgers = fresh[-LEDGERS_MAX:] if self.answers else []
        needed = {file.path for step in self._steps for file in step.files}
        needed |= {file.path for each in self._ledgers for hidden in each.hidden.values() for file in hidden.deletes}
        return self.files.sweep(needed)


class Presenter:
    """Tables at cuts. For one thread."""

    def __init__(self, run: str, working: Callable[[], None] = lambda: None, room: Room = DEFAULT_ROOM) -> None:
        """`run` names this life's folder under each table's; `working` is called before work that takes its time."""
        self._run, self._numbers = run, itertools.count(1)
        self._tables: dict[str, _Table] = {}
        pool = ThreadPoolExecutor(THREADS, "present")
        folder = Path(room.offsets_folder) if room.offsets_folder else None
        kept = OffsetCache(
            folder, memory_bytes=room.offsets_memory, disk_bytes=room.offsets_disk, pool=pool, working=working
        )
        self._kept, self._told = kept, kept.figures
        self._tools = Tools(Bases(Manifests(room.manifests_memory), kept), kept, pool)
        self._merger = Merger(self._tools.indexes, self._numbers)

    def present(self, request: Present, fetch: Fetch) -> Presented:
        """The files of a table at a cut; the same ones if the cut was presented before."""
        answer = self._presented(request, fetch)
        before, self._told = self._told, self._kept.figures
        read, evicted = self._told.read - before.read, self._told.evicted - before.evicted
        return replace(answer, offsets_read=read, offsets_evicted=evicted) if read or evicted else answer

    def _presented(self, request: Present, fetch: Fetch) -> Presented:
        self._merge_done()
        scan = plan.decode(pb.PlanAnswer.FromString(request.plan)).tables[0]
        with _named(scan.table.name, request.folder):
            table = self._known(request.folder) or _Table(f"{request.folder}/{self._run}", self._numbers)
        if request.cut_id in table.answers:
            return table.answers[request.cut_id]
        if request.format < request.base.format:
            raise Invalid(
                f"table {scan.table.name} has format version {request.base.format}: it is not presented as"
                f" version {request.format}"
            )
        try:
            with _named(scan.table.name, request.folder):
                table.files.begin()
                outcome = Presenting(self._tools, table.known(), request, scan, fetch).done()
        except BaseException:
            self._tools.indexes.drop(table.files.discard_new())
            raise
        self._tables[request.folder] = table
        self._tools.indexes.drop(table.keep(request.cut_id, outcome))
        return table.answers[request.cut_id]

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Let go of cuts whose leases are over, and remove what nobody needs any more."""
        self._merge_done()
        for folder, table in list(self._tables.items()):
            self._forget(folder, table, [cut_id for cut_id in cut_ids if cut_id in table.answers])

    def _forget(self, folder: str, table: _Table, gone: Sequence[int]) -> None:
        if gone:
            self._tools.indexes.drop(table.forget(gone))
        if not table.answers:
            del self._tables[folder]
            self._merger.abandon(folder)

    def _known(self, folder: str) -> _Table | None:
        """Everything that is kept of a table; nothing of one whose files somebody removed."""
        table = self._tables.get(folder)
        if table is not None and table.files.is_gone():
            log.warning("presented files in %s were removed by somebody: they are written anew", table.files.folder)
            self._forget(folder, table, list(table.answers))
            return None
        return table

    def close(self) -> None:
        """End the threads."""
        self._merger.close()
        self._tools.pool.shutdown(cancel_futures=True)

    def tidy(self) -> None:
        """Begin what makes later answers cheaper, beside them; called after an answer is given."""
        self._merge_done()
        for folder, table in self._tables.items():
            table.tidy(self._tools.indexes)
            self._merger.begin(folder, table.files.folder, table.to_merge())

    def _merge_done(self) -> None:
        done = self._merger.done()
        if done is None:
            return
        merge, step = done
        table = self._tables.get(merge.owner)
        if table is None or not table.merged(merge.parts, step):
            self._merger.discard(merge)


@contextmanager
def _named(table: str, folder: str) -> Iterator[None]:
    """Errors of files and memory as a sentence."""
    try:
        yield
    except LakestoreError:
        raise
    except (OSError, MemoryError, pa.ArrowException) as error:
        raise Unavailable(
            f"table {table} cannot be presented in {folder} ({error}): free space or memory, then read again"
        ) from error
