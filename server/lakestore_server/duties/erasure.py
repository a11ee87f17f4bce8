"""The duty of erasures: removes the bytes of rows from every file, step by step, and writes the certificate.

1. `rows`: the keys are found, their live rows deleted, and a checkpoint gives each bucket a floor. The journal keeps
   the offsets of the erased versions, and no longer the condition.
2. `lake`: the tierer rewrites the files with dead rows and expires every snapshot from before the floor. A log table
   has no deletes: first its log start moves to the floor, then the tierer deletes the rows from the lake in one commit.
3. `log`: the log start moves to the floor. Segments, index and journal are rewritten without dead rows, presented files
   and caches removed. Then every file is scanned. What it finds is the reason to go on.

Each step is repeated until its end is journaled, so a kill at any place costs one repetition. Readers and subscriptions
that need an older state hold a step back, and are named, until the deadline; then they are cut off.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pyarrow as pa
from pyroaring import BitMap64

from lakestore.errors import Conflict, Exhausted, LakestoreError, Stopped, Unavailable
from lakestore.model import dead_letter_table, times
from lakestore.model.system_tables import AUDIT
from lakestore.model.table import Table
from lakestore.release import RELEASE
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.changes.sharing.positions import needed
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.system_rows import add_decision
from lakestore_server.duties import erased_lake, erased_rows, erased_scan
from lakestore_server.duties.erased_lake import FORGOTTEN
from lakestore_server.duties.erased_rows import LETTER_VALUE, Letters, LogSearch, Search
from lakestore_server.duties.erased_scan import Scan
from lakestore_server.duties.scanned_object import HAS_ROWS, Gone, ScannedObject
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.host.worker import Worker
from lakestore_server.read.leases import Leases
from lakestore_server.snapshots.presented_tables import SnapshotTables
from lakestore_server.snapshots.removal import remove_file
from lakestore_server.state.catalog_change import TierRecord
from lakestore_server.state.commit_record import CommitRecord, LogStart
from lakestore_server.state.erasure import ErasedTable, Erasure, ErasureStep
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.erasure")
FOLDER = "erasures"
"""The folder of certificates in the data folder."""
LAKE_DUTY = "erasure"
"""The tierer's debt of an erasure. Its note is the id; its count is 0 once the lake has no older snapshot."""
POLL_SECONDS = 1.0
HOLDERS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ErasureFigures:
    """An unfinished erasure, as status shows it."""

    id: str
    step: str
    until_us: int
    """The deadline."""
    held_back_by: tuple[str, ...]


class ErasureDuty:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(
        self,
        *,
        engine: Engine,
        upkeep: Upkeep,
        leases: Leases,
        catalog: Catalog,
        presented: SnapshotTables,
        check_seconds: float,
    ) -> None:
        self._engine, self._upkeep, self._leases = engine, upkeep, leases
        self._catalog, self._presented = catalog, presented
        self._running = threading.Lock()
        self.held: dict[str, tuple[str, ...]] = {}
        """Why each erasure has not come further, by its id."""
        self._duty = Worker(
            supervisor=engine.supervisor,
            name="erasure",
            work=self._work,
            failed=lambda error: log.error("a round of erasures failed and will be tried again: %s", error),
            every=check_seconds,
        )
        self._duty.start()

    @property
    def has_uploads(self) -> bool:
        """Whether checkpoints go to a store as well."""
        return self._upkeep.upload is not None

    def wake(self) -> None:
        self._duty.wake()

    def close(self) -> None:
        self._duty.close()

    def figures(self, view: View, uuid: str) -> ErasureFigures | None:
        """The oldest unfinished erasure of a table; None if there is none."""
        held = view.erasing(uuid)
        return ErasureFigures(held.id, held.step, held.until_us, self.held.get(held.id, ())) if held else None

    def _work(self) -> None:
        self.run_once()
        while self.held and self._engine.is_leading and not self._duty.wait(POLL_SECONDS):
            self.run_once()

    def run_once(self) -> None:
        """Take every erasure as far as it goes now."""
        with self._running:
            if not self._engine.is_leading:
                return
            for number in [each.id for each in self._engine.view.erasures.values() if not each.is_done]:
                self.held[number] = self._tried(number)
                if self._duty.is_closing:
                    return
            open_ones = {each.id for each in self._engine.view.erasures.values() if not each.is_done}
            self.held = {number: held for number, held in self.held.items() if number in open_ones}

    def _tried(self, number: str) -> tuple[str, ...]:
        try:
            while not (held := self._engine.view.erasures[number]).is_done:
                if self._engine.view.erasing(held.tables[0].uuid) != held:
                    return ("an earlier erasure of this table",)
                reasons = self._step(held)
                if reasons:
                    return tuple(reasons)
        except Stopped:
            return ("the server is shutting down",)
        except (Conflict, Exhausted, Unavailable) as error:
            return (error.message,)
        except LakestoreError as error:
            log.error("erasure %s does not go on: %s", number, error)
            return (error.message,)
        return ()

    def _step(self, held: Erasure) -> Sequence[str]:
        """Do the next step, or say what holds it back."""
        view = self._engine.view
        missing = [table for table in held.tables if table.uuid not in view.tables]
        if missing:
            return self._without(held, missing)
        if held.step is ErasureStep.ROWS:
            return self._rows(held)
        is_past = self.past_deadline(held)
        if held.step is ErasureStep.LAKE:
            return self._lake(held, is_past=is_past)
        return self._log(held, is_past=is_past)

    def past_deadline(self, held: Erasure) -> bool:
        """Whether readers and subscriptions hold nothing back any more."""
        now = self._engine.time.read()
        return held.is_past(now.time_us, may_delete=now.may_delete)

    def _without(self, held: Erasure, missing: Sequence[ErasedTable]) -> Sequence[str]:
        """Go on without tables that were dropped: their files go after the drop grace."""
        dropped = self._engine.view.dropped
        kept = [dropped[table.uuid].name for table in missing if table.uuid in dropped]
        if kept:
            return [
                f"dropped table {name}: `lakestore drop {name} --now` removes it, and undrop lets it go on"
                for name in kept
            ]
        tables = tuple(table for table in held.tables if table not in missing)
        if tables and held.step is ErasureStep.ROWS:
            if held.tables[0] in missing:  # the condition is about its columns
                name = self._engine.view.tables[tables[0].uuid].table.name
                return [f"dead letters {name} of a table that is gone: `lakestore drop {name} --now` removes them"]
        step = held.step if tables else ErasureStep.DONE
        self._note(replace(held, tables=tables, where=held.where if tables else "", step=step))
        self._upkeep.checkpointer.wake()  # the journal still has the condition
        return ()

    def _note(self, after: Erasure) -> None:
        def plan(state: State, record: CommitRecord) -> None:
            if after.id not in state.view.erasures:
                raise Conflict("the erasure is gone")
            record.erase.append(after)
            table = state.view.tables.get(after.tables[0].uuid) if after.tables else None
            if after.is_done and table is not None:
                add_to_audit(state.view, record, table.table, after, "done")

        self._engine.operate(plan)

    # The rows.

    def _rows(self, held: Erasure) -> Sequence[str]:
        view, is_over = self._engine.view, lambda: self._duty.is_closing
        table = view.tables[held.tables[0].uuid].table
        view.refuse_rescale(table)
        found, keys = dict[str, Sequence[BitMap64]](), dict[str, pa.Table]()
        search: LogSearch | None = None
        if table.keyed:
            match, columns = erased_rows.of_condition(table, held.where)
            erased = Search(self._engine, table.uuid, match, columns, is_over).run()
            found[table.uuid], keys[table.uuid] = erased.gone, erased.keys
        else:
            search = LogSearch(self._engine, self._presented.plans, table.uuid, held.where, is_over)
            search.run()
            found[table.uuid] = search.gone
        unjudged = 0
        letters = next((t.uuid for t in held.tables[1:]), None)
        if letters is not None:
            judge = Letters(table, held.where, keys.get(table.uuid))
            erased = Search(self._engine, letters, judge.match, [LETTER_VALUE], is_over).run()
            found[letters], keys[letters], unjudged = erased.gone, erased.keys, judge.unjudged
        with self._upkeep.checkpointer.held() as made:  # no segment reaches across its end
            if search is not None:
                search.add_newer(made.view.tables[table.uuid])
            tables = tuple(
                ErasedTable(
                    uuid,
                    tuple(made.view.tables[uuid].heads()),
                    made.lsn,
                    erased_rows.stored(gone),
                    keys[uuid].num_rows if uuid in keys else 0,
                    sum(map(len, gone)),
                )
                for uuid, gone in found.items()
            )
            self._note(replace(held, tables=tables, where="", step=ErasureStep.LAKE, letters_left=unjudged))
        log.info("erasure %s: %d rows are found", held.id, sum(each.rows for each in tables))
        return ()

    # The lake.

    def _lake(self, held: Erasure, *, is_past: bool) -> Sequence[str]:
        reasons: list[str] = []
        for part in held.tables:
            state = self._engine.view.tables[part.uuid]
            dying = () if state.table.keyed else self._deaths_of(held, part, state, is_past=is_past)
            reasons += dying or self._lake_of(held, part, state, is_past=is_past)
        if not reasons:
            self._note(replace(held, step=ErasureStep.LOG))
        return reasons

    def _deaths_of(self, held: Erasure, part: ErasedTable, state: TableState, *, is_past: bool) -> Sequence[str]:
        """Why a log table still has the rows. First its log loses them, then the lake in one commit of the tierer."""
        if part.dead_lsn or not part.rows:
            return ()
        if not any(_has(tier, part) for tier in state.tiers.values()):
            return (self._not_tiered(state),)
        return self._log_of(held, part, is_past=is_past) or (
            f"the lake of table {state.table.name}, whose rows the tierer has not deleted yet",
        )

    def _not_tiered(self, state: TableState) -> str:
        return (
            f"the lake of table {state.table.name}, which has no tiering round behind the search for the rows yet: run"
            " `lakestore tier`"
        )

    def _lake_of(self, held: Erasure, part: ErasedTable, state: TableState, *, is_past: bool) -> list[str]:
        name = state.table.name
        if not any(_has(tier, part) for tier in state.tiers.values()):
            return [self._not_tiered(state)]
        upkeep = self._catalog.table_upkeep.get(part.uuid)
        debts = upkeep.debts if upkeep else ()
        said = next((d for d in debts if d.duty == LAKE_DUTY and d.note.startswith(held.id)), None)
        if said is None:
            return [f"the lake of table {name}, whose files the tierer has not rewritten yet"]
        if not said.count and all(_has(tier, part) for tier in state.tiers.values()):
            return []
        *kept, newest = state.tiers
        older = [*kept, *(self._leases.pinned(part.uuid) - {*kept, newest})]
        if is_past:
            self._cut_off(held, part.uuid, 0, older, ())
        readers = [f"a read of the lake of table {name} for {s:.0f} s more" for s in self._reads(part.uuid, 0, older)]
        named = said.note.removeprefix(held.id)
        return readers or [f"the lake of table {name}, which keeps {said.count:,} older snapshots{named}"]

    def _reads(self, uuid: str, lsn: int, snapshots: Sequence[int], starts: tuple[int, ...] = ()) -> list[float]:
        """The seconds for which each read of an older state goes on if it is not prolonged."""
        return [each.seconds for each in self._leases.before(uuid, lsn, snapshots, starts)][:HOLDERS_SHOWN]

    def _cut_off(self, held: Erasure, uuid: str, lsn: int, snapshots: Sequence[int], starts: tuple[int, ...]) -> None:
        count = self._leases.cut_off(uuid, lsn, snapshots, starts)
        if count:
            log.warning("erasure %s of table %s cut off %d reads", held.id, held.name, count)

    # The log and everything else.

    def _log(self, held: Erasure, *, is_past: bool) -> Sequence[str]:
        reasons = [each for part in held.tables for each in self._log_of(held, part, is_past=is_past)]
        if reasons:
            return reasons
        if not self._upkeep.forget_dead():
            return ["the disk, which has no room to merge the key index"]
        for part in held.tables:
            count = self._presented.forget_table(part.uuid, cut_off=is_past)
            if count:
                name = self._engine.view.tables[part.uuid].table.name
                reasons.append(f"presented cuts of table {name}, which readers hold")
        reasons += self._uploads(held, is_past=is_past)
        if reasons:
            return reasons
        done = self._scanned(held, is_past=is_past)
        if done.findings:
            return done.findings[:HOLDERS_SHOWN]
        self._certify(held, done)
        return ()

    def _uploads(self, held: Erasure, *, is_past: bool) -> list[str]:
        """Uploads from before the erasure that no commit has taken. They go with their age, or at the deadline."""
        parts, tables = self._engine.loop.parts, [part.uuid for part in held.tables]
        if is_past:
            parts.remove(parts.waiting(tables, held.at_us))
        count = len(parts.waiting(tables, held.at_us))
        return [f"uploads to table {held.name} that no commit has taken ({count:,})"] if count else []

    def _log_of(self, held: Erasure, part: ErasedTable, *, is_past: bool) -> list[str]:
        """Move a table's log start to its floor; or who holds it back."""
        view = self._engine.view
        state = view.tables[part.uuid]
        if state.log_start_lsn >= part.lsn:
            return []
        if is_past:
            self._cut_off(held, part.uuid, part.lsn, (), part.floors)
        else:
            reasons = self._holders(view, part, state)
            if reasons:
                return reasons
        raised: list[tuple[int, ...]] = []

        def plan(now: State, record: CommitRecord) -> None:
            table = now.view.tables[part.uuid]
            lost = range(max(table.created_lsn, table.log_start_lsn), part.lsn)
            if not self._leases.raise_log_start(part.uuid, table.from_lsn(part.lsn).starts(), lost):
                raise Conflict(f"a read of the log of table {table.table.name}")
            raised.append(table.starts())
            record.starts.append(LogStart(part.uuid, part.lsn))

        try:
            self._engine.operate(plan)
        except LakestoreError:
            for starts in raised:
                self._leases.reset_log_start(part.uuid, starts)
            raise
        return []

    def _holders(self, view: View, part: ErasedTable, state: TableState) -> list[str]:
        name = state.table.name
        seconds = self._reads(part.uuid, part.lsn, (), part.floors)
        reasons = [f"a read of the log of table {name} for {each:.0f} s more" for each in seconds]
        reasons += [
            f"subscription {each.name}, which has not read the deletes"
            for each in view.subscriptions.values()
            if part.uuid in each.tables and needed(each, state) < part.lsn
        ]
        if self._leases.in_grace:
            reasons.append("reads that began before the last start of the server")
        return reasons[:HOLDERS_SHOWN]

    def _scanned(self, held: Erasure, *, is_past: bool) -> Scan:
        """The scan. Files of the lake that no snapshot names go if they hold erased rows, or at the deadline."""
        tables = [part.uuid for part in held.tables]
        for uuid in tables:
            erased_lake.prune(erased_lake.lake_of(self._engine.view, self._catalog, uuid))
        found = self.scan(erased_scan.gone_of(held))
        gone = [each for each in found.objects if each.finding and each.is_unnamed and _may_go(each, is_past=is_past)]
        if gone:  # a commit since then may name one of them
            named = set[str]().union(*(erased_lake.named(self._engine, self._catalog, uuid) for uuid in tables))
            gone = [each for each in gone if each.place not in named]
        for each in gone:
            log.warning("erasure %s removes %s: %s", held.id, each.place, each.finding)
            remove_file(each.place)
        found.objects = [each for each in found.objects if each not in gone]
        return found

    def scan(self, gone: Gone) -> Scan:
        """Scan every file for erased rows."""
        return erased_scan.scan(self._engine, self._upkeep.checkpointer, self._catalog, gone, self._pause)

    def _pause(self) -> None:
        if self._duty.is_closing:
            raise Stopped("the server is shutting down")

    def _certify(self, held: Erasure, done: Scan) -> None:
        now_us = self._engine.now_us()
        text = orjson.dumps(self._certificate(held, done, now_us), option=orjson.OPT_INDENT_2)
        write_certificate(self._engine, held.id, text)
        tables = tuple(replace(part, gone=()) for part in held.tables)
        self._note(replace(held, tables=tables, step=ErasureStep.DONE, done_us=now_us))
        log.info("erasure %s is done: %d files were scanned", held.id, len(done.objects))

    def _in_backup(self, folder: str, held: Erasure) -> list[str]:
        """The files of a backup with erased rows."""
        gone = erased_scan.gone_of(held)
        return [each.place for each in erased_scan.of_backup(self._engine, self._catalog, Path(folder), gone)]

    def _certificate(self, held: Erasure, done: Scan, now_us: int) -> dict[str, object]:
        view = self._engine.view
        backups = {folder: self._in_backup(folder, held) for folder in held.backups}
        return {
            "certificate": "lakestore-erasure-1",
            "id": held.id,
            "table": view.tables[held.tables[0].uuid].table.name,
            "condition_sha256": held.where_hash,
            "asked_by": held.by,
            "why": held.why,
            "asked_at": times.text_of(held.at_us),
            "done_at": times.text_of(now_us),
            "release": RELEASE,
            "timeline": view.timeline,
            "readable_from": view.token(max(part.lsn for part in held.tables)),
            "tables": [
                {
                    "name": view.tables[part.uuid].table.name,
                    "uuid": part.uuid,
                    "keys": part.keys,
                    "versions": part.rows,
                    "erased_offsets": list(part.gone),
                }
                for part in held.tables
            ],
            "dead_letters_not_judged": held.letters_left,
            "held_back_by": list(self.held.get(held.id, ())),
            "backups": backups,
            "files": len(done.objects),
            "bytes": done.nbytes,
            "objects": [
                {"place": each.place, "kind": each.kind, "bytes": each.size, "sha256": each.sha256}
                for each in done.objects
            ],
        }


def _has(tier: TierRecord, part: ErasedTable) -> bool:
    """Whether a snapshot of the lake has everything below the floors, also the deletes."""
    return all(point >= floor for point, floor in zip(tier.tier_point, part.floors, strict=True))


def _may_go(found: ScannedObject, *, is_past: bool) -> bool:
    """Whether a file that no snapshot names may be removed now. A commit may be about to name it, but not if it has
    rows that are dead. The tierer removes data files at the deadline, when it knows that it commits nothing."""
    return found.finding == HAS_ROWS or (is_past and not found.may_grow and found.finding != FORGOTTEN)


def write_certificate(engine: Engine, number: str, text: bytes) -> None:
    """Write a certificate durably."""
    folder = engine.folder / FOLDER
    engine.disk.make_folder(folder)
    path = folder / f"{number}.json"
    temporary = folder / f"{number}.json.tmp"
    for each in (temporary, path):
        if engine.disk.size(each) is not None:
            engine.disk.remove(each)
    file = engine.disk.create(temporary)
    try:
        file.write([text])
        file.sync()
    finally:
        file.close()
    engine.disk.rename(temporary, path)
    engine.disk.sync_folder(folder)


def add_to_audit(view: View, record: CommitRecord, table: Table, held: Erasure, outcome: str) -> None:
    """Add a row about an erasure to `lakestore.audit`, if the server has that table."""
    if AUDIT in view.names:
        what = f"erasure {held.id} of rows that meet the condition with the SHA-256 {held.where_hash}"
        add_decision(view, record, table, principal=held.by, action="erase", what=what, why=held.why, outcome=outcome)


def letters_of(view: View, name: str) -> str | None:
    """The uuid of the table with the dead letters of a table."""
    uuid = view.names.get(dead_letter_table.table_of(name))
    state = view.tables.get(uuid) if uuid else None
    if state is None or not state.table.keyed or LETTER_VALUE not in [c.name for c in state.table.columns]:
        return None
    return uuid
