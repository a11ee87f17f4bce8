"""A watch over one topic's tables: the tables follow the records' schema, or a proposal waits for a decision.

- Tables are reloaded every few seconds, so alterations and approvals need no restart.
- A proposal is stored before the first record that waits for it becomes a dead letter. So is a change that the table's
  contract leaves to an approver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.client.lake import Lake
from lakestore.errors import Conflict, Denied, Invalid, NeedsApproval, NotFound
from lakestore.evolution import MakeOptional, WidenColumn
from lakestore.kafka.bridge.drift.differences import Change, Differences, differences, new_fields
from lakestore.kafka.bridge.expressions import names_origin, origins, table_name
from lakestore.kafka.bridge.outcome import DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints
from lakestore.kafka.bridge.spec import TableSpec, TopicSpec
from lakestore.model.table import Table
from lakestore.rows.casting import null_mask

REFRESH_SECONDS = 5.0
"""Seconds between reloads of a table."""
TRIES = 3
"""Attempts to alter a table that other processes alter too. Afterwards the watch uses the table unchanged."""
_WAITING = (Stage.CONVERT, Stage.CONSTRAINT, Stage.SCHEMA)
PROPOSED = "proposed"
_LOG = logging.getLogger("lakestore.bridge")


class Drift(Protocol):
    """The part of a pipeline that keeps tables in step with records."""

    def follow(self, topic: str, schema: pa.Schema | None, decoded: DecodedBlock) -> DecodedBlock:
        """Return the rows with the column names of their table. The table may have changed afterwards."""

    def name_proposals(self, table: str, topic: str, rejects: Sequence[Reject]) -> Sequence[Reject]:
        """Add the proposal's name to rejects that wait for a decision."""


@dataclass(slots=True)
class _Watched:
    """A table as loaded last."""

    definition: Table
    schema: pa.Schema | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, Change] = field(default_factory=dict)
    """Field to a possible change. It is proposed when a value does not fit."""


class Watch:
    """A watch for one topic's pipeline. One thread uses it at a time."""

    def __init__(
        self,
        lake: Lake,
        bridge: str,
        topic: TopicSpec,
        tables: MutableMapping[str, Table],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tables` by full name are shared with the mapping: the watch puts new definitions there."""
        self._lake, self._bridge, self._topic = lake, bridge, topic
        self._tables, self._clock = tables, clock
        self._watched: dict[str, _Watched] = {}
        self._refused: set[tuple[str, str]] = set()
        """Refused changes by table and id. Each is logged once."""
        self._stored: dict[str, str] = {}
        """Change to the id of its proposal."""
        self._looked: dict[str, float] = {}

    def follow(self, topic: str, schema: pa.Schema | None, decoded: DecodedBlock) -> DecodedBlock:
        renamed: dict[str, str] = {}
        for spec in self._topic.tables:
            rows = _by_table(spec, topic, decoded)
            for name, some in rows.items():
                if name not in self._tables:
                    continue
                self._refresh(name)
                whole = schema is not None and len(rows) == 1
                told = schema
                if schema is None or not whole:  # records of several tables share no schema
                    told = new_fields(self._tables[name], _fields(decoded, some))
                self._settle(name, spec, topic, told, whole=whole)
                renamed |= self._watched[name].renamed
        return decoded if not renamed else replace(decoded, values=_called(decoded.values, renamed))

    def name_proposals(self, table: str, topic: str, rejects: Sequence[Reject]) -> Sequence[Reject]:
        watched = self._watched.get(table)
        if watched is None or not watched.waits:
            return rejects
        judged = []
        for reject in rejects:
            change = watched.waits.get(reject.path.removeprefix("value.")) if reject.stage in _WAITING else None
            judged.append(reject if change is None else _waiting(reject, self._proposed(table, topic, change)))
        return judged

    def _refresh(self, name: str) -> None:
        now = self._clock()
        if now - self._looked.get(name, now - REFRESH_SECONDS) < REFRESH_SECONDS:
            return
        self._looked[name] = now
        try:
            newest = self._lake.table(name).definition
        except NotFound:
            return
        if newest != self._tables[name]:
            self._tables[name] = newest

    def _settle(self, name: str, spec: TableSpec, topic: str, schema: pa.Schema, *, whole: bool) -> None:
        watched = self._watched.get(name)
        definition = self._tables[name]
        if watched is not None and watched.definition is definition and _same(watched.schema, schema):
            return
        found = Differences()
        for _ in range(TRIES):
            found = differences(self._tables[name], schema, spec)
            fresh = [change for change in found.follow if (name, change.id(name)) not in self._refused]
            if not fresh or self._followed(name, topic, fresh):
                break
        if not whole:  # samples do not show that a field is gone
            found = Differences(found.follow, tuple(change for change in found.propose if change.follows), {})
        for change in found.propose:
            if not change.waits:
                self._proposed(name, topic, change)
        waits = {change.waits: change for change in found.propose if change.waits}
        for change in found.follow:
            if change.id(name) in self._stored:
                waits |= {field: change for field in _fields_of(change)}
        self._watched[name] = _Watched(self._tables[name], schema, found.renamed, waits)

    def _followed(self, name: str, topic: str, changes: Sequence[Change]) -> bool:
        """Alter the table. Returns False if another process altered it first; the caller compares again."""
        try:
            for change in changes:
                self._follow(name, topic, change)
        except Conflict:
            self._tables[name] = self._lake.table(name).definition
            return False
        return True

    def _follow(self, name: str, topic: str, change: Change) -> None:
        try:
            said = {"bridge": self._bridge, "topic": topic, "change": change.words}
            self._tables[name] = self._lake.alter(self._tables[name], change.steps, proposal=said)
        except NeedsApproval as error:
            self._refused.add((name, change.id(name)))
            self._note(name, change, error)
        except (Invalid, Denied) as error:
            self._refused.add((name, change.id(name)))
            _LOG.warning("table %s does not follow topic %s: %s; %s", name, topic, change.words, error.message)
        else:
            _LOG.info("table %s follows topic %s: %s", name, topic, change.words)

    def _proposed(self, name: str, topic: str, change: Change) -> str:
        id = change.id(name)
        if id not in self._stored:
            said = {"bridge": self._bridge, "topic": topic, "change": change.words}
            error = self._lake.propose(self._tables[name], change.steps, said)
            self._note(name, change, error)
        return self._stored[id]

    def _note(self, name: str, change: Change, error: NeedsApproval) -> None:
        self._stored[change.id(name)] = error.proposal
        if error.state == PROPOSED:
            text = "table %s waits for a decision on proposal %s: %s (lakestore proposals list)"
            _LOG.warning(text, name, error.proposal, change.words)


def _fields_of(change: Change) -> list[str]:
    """The fields whose values may not fit before a change that the table was to follow."""
    return [step.name for step in change.steps if isinstance(step, WidenColumn | MakeOptional)]


def _by_table(spec: TableSpec, topic: str, decoded: DecodedBlock) -> dict[str, Ints | None]:
    if not names_origin(spec.table) or decoded.origin is None:
        return {table_name(spec.table, topic): None}
    found: dict[str, Ints | None] = {}
    for origin, rows in origins(decoded.origin):
        if any(origin.values()):  # a tombstone names none
            found[table_name(spec.table, topic, origin)] = rows
    return found


def _fields(decoded: DecodedBlock, rows: Ints | None) -> dict[str, pa.DataType]:
    found = dict(decoded.extra)
    for at, part in enumerate(decoded.values.type):
        column = pc.struct_field(decoded.values, [at])
        column = column if rows is None else column.take(pa.array(rows))
        if column.null_count < len(column):
            found.setdefault(part.name, part.type)
    return found


def _same(one: pa.Schema | None, other: pa.Schema) -> bool:
    return one is other or (one is not None and one.equals(other, check_metadata=True))


def _called(values: pa.StructArray, renamed: Mapping[str, str]) -> pa.StructArray:
    fields = [each.with_name(renamed.get(each.name, each.name)) for each in values.type]
    mask = null_mask(values)
    return pa.StructArray.from_arrays(values.flatten(), fields=fields, mask=mask)


def _waiting(reject: Reject, proposal: str) -> Reject:
    text = f"{reject.sentence}; it waits for a decision on proposal {proposal}"
    return replace(reject, stage=Stage.SCHEMA, code="waits-for-proposal", sentence=text)
