"""The verbs of erasures: ask for one, list them, check a certificate again."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import orjson

from lakestore.errors import Conflict, Invalid
from lakestore.model import dead_letter_table, times
from lakestore.model.columns import OWN_CATALOG
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import owners
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.owners import Decision
from lakestore_server.commit.engine import Engine
from lakestore_server.duties import erasure
from lakestore_server.duties.erasure import FOLDER, ErasureDuty, letters_of
from lakestore_server.read.parsed_conditions import PARSED
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.erasure import ErasedTable, Erasure, offsets_of
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

_ID = re.compile(r"[0-9a-f]{8,32}")
WHY_CHARS_MAX = 1_000
BACKUPS_MAX = 100
WITHIN_SECONDS_MAX = 366 * 86_400


class ErasureVerbs:
    """Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, duty: ErasureDuty) -> None:
        self._engine, self._catalog, self._duty = engine, catalog, duty

    def erase_rows(self, request: pb.EraseRowsRequest) -> pb.EraseRowsAnswer:
        """Journal a request, and wake the duty."""
        view = self._engine.view
        if not _ID.fullmatch(request.erasure):
            raise Invalid("an erasure has an id of 8 to 32 hexadecimal digits, drawn by the client")
        if request.erasure in view.erasures:
            return pb.EraseRowsAnswer(erasure=self._shown(view, view.erasures[request.erasure]))
        state = view.meant(request.table, request.table_uuid)
        self._check(view, state, request)

        by = Decision.of_caller("erase", f"rows of table {request.table}", request.why)

        def plan(now: State, record: CommitRecord) -> Erasure:
            held = now.view.meant(request.table, state.table.uuid)
            self._check(now.view, held, request)
            by.check_owner(held.table)
            letters = letters_of(now.view, request.table)
            tables = [ErasedTable(uuid) for uuid in (held.table.uuid, letters) if uuid]
            until_us = record.clock_us + request.within_seconds * 1_000_000
            where_hash = hashlib.sha256(request.where.encode()).hexdigest()
            about = request.where, where_hash, request.owner, request.why, record.clock_us, until_us
            made = Erasure(request.erasure, request.table, tuple(tables), *about, backups=tuple(request.backups))
            record.erase.append(made)
            erasure.add_to_audit(now.view, record, held.table, made, "asked")
            return made

        done = owners.decided(self._engine, plan)
        self._duty.wake()
        return pb.EraseRowsAnswer(erasure=self._shown(done.view, done.result))

    def _check(self, view: View, state: TableState, request: pb.EraseRowsRequest) -> None:
        self._check_kind(state)
        self._check_now(view, state)
        check_request(state.table, request)

    def _check_kind(self, state: TableState) -> None:
        """`Invalid` for a table whose rows no erasure can remove."""
        table = state.table
        if self._engine.loop.journal.is_shared:
            raise Invalid(
                f"rows of table {table.name} cannot be erased: its journal is shared, and no server can scan the"
                " folders of the others yet. Use `lakestore delete`, a retention, and the expiry of the lake"
            )
        if self._duty.has_uploads:
            raise Invalid(
                f"rows of table {table.name} cannot be erased: the server uploads its checkpoints, and keeps replaced"
                " ones there for a time"
            )
        if table.lake.adopted or table.lake.catalog not in ("", OWN_CATALOG):
            raise Invalid(
                f"rows of table {table.name} cannot be erased: its lake is adopted or in an outside catalog, where"
                " other tables and snapshots may name its files. Use `lakestore delete`, and the catalog's own expiry"
            )

    def _check_now(self, view: View, state: TableState) -> None:
        """`Conflict` while other copies of the rows are there."""
        table = state.table
        problem = self._engine.lake_ahead.get(table.uuid)
        if problem:
            raise Conflict(f"rows of table {table.name} cannot be erased until its lake is repaired: {problem}")
        names, former = {table.name, dead_letter_table.table_of(table.name)}, {each.uuid for each in state.former}
        for dropped in view.dropped.values():
            if dropped.name in names or dropped.state.table.uuid in former:
                raise Conflict(
                    f"rows of table {table.name} cannot be erased yet: a dropped table {dropped.name}, which may have"
                    " the same rows, is kept for its drop grace. `lakestore tables --dropped` shows it, and `lakestore"
                    f" drop {dropped.name} --now` with its --id removes it"
                )
        view.refuse_rescale(table)

    def list_erasures(self, request: pb.ListErasuresRequest) -> pb.ListErasuresAnswer:
        """The erasures of a table, newest first."""
        view = self._engine.view
        uuid = view.meant(request.table, request.table_uuid).table.uuid
        mine = [e for e in view.erasures.values() if any(table.uuid == uuid for table in e.tables)]
        chosen = [each for each in reversed(mine) if request.erasure in ("", each.id)]
        return pb.ListErasuresAnswer(erasures=[self._shown(view, each) for each in chosen])

    def _shown(self, view: View, held: Erasure) -> str:
        path = self._engine.folder / FOLDER / f"{held.id}.json"
        certificate = path.read_text() if held.is_done and path.exists() else ""
        about: dict[str, Any] = {
            "id": held.id,
            "table": held.name,
            "step": held.step,
            "asked_by": held.by,
            "why": held.why,
            "asked_at": times.text_of(held.at_us),
            "until": times.text_of(held.until_us),
            "done_at": times.text_of(held.done_us) if held.done_us else None,
            "keys": sum(part.keys for part in held.tables),
            "versions": sum(part.rows for part in held.tables),
            "held_back_by": list(self._duty.held.get(held.id, ())),
            "certificate": orjson.loads(certificate) if certificate else None,
        }
        return orjson.dumps(about).decode()

    def verify_erased(self, request: pb.VerifyErasedRequest) -> pb.VerifyErasedAnswer:
        """Scan every file for the rows of a certificate."""
        view = self._engine.view
        try:
            said = orjson.loads(request.certificate)
            texts = {part["uuid"]: part["erased_offsets"] for part in said["tables"]}
            gone, timeline = {uuid: offsets_of(parts) for uuid, parts in texts.items()}, said["timeline"]
        except (ValueError, KeyError, TypeError) as error:
            raise Invalid("the file is no certificate of an erasure") from error
        if timeline != view.timeline:
            raise Invalid(
                "the certificate is of another timeline: this server was restored from a backup since, and its rows"
                " have other numbers. Erase again"
            )
        found = self._duty.scan(gone)
        return pb.VerifyErasedAnswer(findings=found.findings, objects=len(found.objects), bytes=found.nbytes)


def check_request(table: Table, request: pb.EraseRowsRequest) -> None:
    """`Invalid` for a request that cannot be carried out."""
    if not request.where.strip():
        raise Invalid("an erasure needs a condition; `lakestore truncate` removes all rows")
    if len(request.why) > WHY_CHARS_MAX or len(request.backups) > BACKUPS_MAX:
        raise Invalid(f"a reason has at most {WHY_CHARS_MAX} characters, and at most {BACKUPS_MAX} backups are named")
    if request.within_seconds > WITHIN_SECONDS_MAX:
        raise Invalid("the deadline of an erasure is at most 366 days away")
    missing = [folder for folder in request.backups if not Path(folder).is_dir()]
    if missing:
        raise Invalid(f"backup {missing[0]} is no folder of the server's machine")
    PARSED.filter_of(request.where, table.name, table.columns)
