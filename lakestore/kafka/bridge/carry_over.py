"""Values that a change of the primary key does not send, taken from the row under the old key.

A change of a key is two records: a delete of the old key and a row under the new one. PostgreSQL sends no unchanged
TOASTed value, so the new row keeps a column whose value stands under the old key. Three rules:

- The value is the one that the old key has right before the delete: of an earlier row of the same commit, else of the
  live row in the lake.
- A new key that is live already keeps its own value: its record is a copy of one that was committed before, for a
  source never changes a key into one that is taken.
- A live row of the old key that is younger than the delete, as in a replay of dead letters, is another row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.client.lake import Lake
from lakestore.errors import LakestoreError
from lakestore.kafka.bridge.outcome import Mapped, Op, TableRows
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import POSITION
from lakestore.kafka.bridge.writing import codes_of


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a batch of source transactions behind which a commit may end."""

    highs: Sequence[int]
    """The records of each block that lie before."""
    moves: Mapping[Place, int]
    """The next offsets there, of all partitions that have moved since the batch's beginning."""
    names: str
    """The transactions behind the cut before, for messages."""


@dataclass(slots=True)
class Batch:
    """Records that are to be one commit, as far as that has room for them."""

    generation: int
    """The lane's; a lane that begins anew counts on, and batches of older ones are thrown away."""
    blocks: Sequence[Records]
    """One for each topic."""
    moves: Mapping[Place, int]
    """The next offset of each partition that goes on by this batch."""
    polled: float
    """The time at which its last record was taken from Kafka, by the monotonic clock."""
    nbytes: int
    mapped: Sequence[Mapped] = ()
    """The ends of each block, behind the second stage."""
    cuts: Sequence[Cut] = ()
    """Places to cut it; none: anywhere but between records that belong together."""

    @property
    def topics(self) -> set[str]:
        """The topics of its records."""
        return {records.topic for records in self.blocks}


@dataclass(slots=True)
class Opened:
    """Partitions that are open for this bridge and nobody else."""

    offsets: dict[Place, int] = field(default_factory=dict)
    until: dict[Place, int] = field(default_factory=dict)
    """The ends as of the opening, in front of records that an open transaction holds back."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, LakestoreError] = field(default_factory=dict)
    """Topic to why it is not read."""


@dataclass(slots=True)
class Opening:
    """A word to the last stage: open the registers of partitions."""

    generation: int
    places: Sequence[Place]
    opened: Opened | None = None
    """The answer, once `done` is set; None for an opening that was thrown away."""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def topics(self) -> set[str]:
        """The topics of its partitions."""
        return {place.topic for place in self.places}


@dataclass(slots=True)
class Release:
    """A word to the last stage: all that came before is committed or thrown away; these partitions are another's."""

    places: Sequence[Place]
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Settling:
    """A word to the stages of a lane that reads source transactions: look at those that wait once more."""

    generation: int
    ends: Mapping[Place, float]
    """The times at which partitions were last at their ends."""
    polled: float
    waiting: Sequence[str] = ()
    """The transactions that still wait, once `done` is set."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set once all that came before is committed or thrown away."""


Work = Batch | Opening | Release | Settling


Live = Callable[[pa.RecordBatch, Sequence[str]], pa.Table]
"""The live rows of keys, in any order, with these columns; absent keys give no row."""
_Flags = npt.NDArray[np.bool_]


def carry_over(rows: TableRows, key: Sequence[str], live: Live) -> TableRows:
    """Return the rows with the values of old keys in place of what new keys were to keep.

    rows of one commit            big         becomes
    put    1                      "a"         "a"
    delete 1 (pair 0)
    put    2 (pair 0)             kept        "a"
    put    2                      kept        kept: the server finds "a" in the row above
    """
    new, old = _pairs(rows)
    names = [name for name, mask in rows.kept.items() if pc.any(mask.take(pa.array(new))).as_py()]
    if not names:
        return rows
    places = [name for name in POSITION if name in rows.batch.schema.names]
    columns = [*key, *(name for name in (*places, *names) if name not in key)]
    codes = codes_of(rows.batch, key)
    before = _before(codes)
    wanted = np.unique(codes[np.r_[new, old]], return_index=True)[1]
    asked = rows.batch.select(list(key)).take(pa.array(np.r_[new, old][wanted]))
    found = live(asked, columns).combine_chunks()
    lake = _lake_rows(rows.batch, found, key, codes)
    steps = _Steps(rows, before, lake, _partners(len(codes), new, old), found.num_rows)
    steps.refuse_younger(found)
    batch, kept = rows.batch, dict(rows.kept)
    for name in names:
        mask = _flags(kept[name])
        end = steps.ends(mask)
        filled = new[mask[new] & steps.carried[new] & (end[new] >= 0)]
        if len(filled):
            batch = _filled(batch, name, found, filled, end[filled])
            mask[filled] = False
            kept[name] = pa.array(mask)
    return replace(rows, batch=batch, kept=kept)


def _pairs(rows: TableRows) -> tuple[Ints, Ints]:
    """The rows of new keys, and the deletes of their old keys, side by side."""
    none = np.zeros(0, np.int64)
    if rows.atomic is None or not rows.kept:
        return none, none
    put = np.flatnonzero((rows.atomic >= 0) & (rows.op == Op.PUT))
    gone = np.flatnonzero((rows.atomic >= 0) & (rows.op == Op.DELETE))
    _, at, of = np.intersect1d(rows.atomic[put], rows.atomic[gone], return_indices=True)
    return put[at], gone[of]


def _partners(count: int, new: Ints, old: Ints) -> Ints:
    """For each row of a new key the delete of its old key; -1 for other rows."""
    found = np.full(count, -1, np.int64)
    found[new] = old
    return found


def _before(codes: Ints) -> Ints:
    """For each row the row of the same key before it; -1 for none."""
    order = np.argsort(codes, kind="stable")
    found = np.full(len(codes), -1, np.int64)
    same = codes[order][1:] == codes[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _lake_rows(batch: pa.RecordBatch, found: pa.Table, key: Sequence[str], codes: Ints) -> Ints:
    """For each row the place of its key's live row in `found`; -1 for none."""
    if not found.num_rows:
        return np.full(len(codes), -1, np.int64)
    keys = pa.Table.from_batches([batch.select(list(key))])
    both = pa.concat_tables([keys, found.select(list(key)).cast(keys.schema)]).combine_chunks().to_batches()[0]
    code = codes_of(both, key)
    place = np.full(int(code.max()) + 1, -1, np.int64)
    place[code[len(codes) :]] = np.arange(found.num_rows)
    return place[code[: len(codes)]]


class _Steps:
    """For each row that keeps a column, the place where the value is to be looked for."""

    def __init__(self, rows: TableRows, before: Ints, lake: Ints, partner: Ints, live: int) -> None:
        """`before`, `lake` and `partner` are those of each row; `live` is the number of live rows that were found."""
        self._rows, self._partner = rows, partner
        self._count = len(before)
        self._whole = self._count + live
        is_put = rows.op == Op.PUT
        own = np.where(before >= 0, np.where(is_put[before], before, -1), self._of_lake(lake))
        self.carried: _Flags = is_put & (own < 0) & (partner >= 0)
        """Rows of new keys that are not live before."""
        delete = partner[self.carried]
        earlier = before[delete]
        self._next = own
        self._next[self.carried] = np.where(
            earlier >= 0, np.where(is_put[earlier], earlier, -1), self._of_lake(lake)[delete]
        )

    def _of_lake(self, lake: Ints) -> Ints:
        """Places of live rows lie behind those of the commit's rows."""
        return np.where(lake >= 0, self._count + lake, -1)

    def refuse_younger(self, found: pa.Table) -> None:
        """Let rows of new keys alone whose old key's live row came behind the delete."""
        source, offset = POSITION
        batch = self._rows.batch
        if not {source, offset} <= {*batch.schema.names} or not {source, offset} <= {*found.column_names}:
            return
        new = np.flatnonzero(self.carried)
        of_lake = new[self._next[new] >= self._count]
        if not len(of_lake):
            return
        delete = pa.array(self._partner[of_lake])
        live = pa.array(self._next[of_lake] - self._count)
        same = pc.equal(found[source].combine_chunks().take(live), batch.column(source).take(delete))
        later = pc.greater_equal(found[offset].combine_chunks().take(live), batch.column(offset).take(delete))
        self._next[of_lake[_flags(pc.and_(same, later))]] = -1

    def ends(self, kept: _Flags) -> Ints:
        """For each row the place of the value that a column has there: of a row of the commit, or behind these of a
        row in the lake; -1 for none."""
        to = np.arange(self._whole)
        to[: self._count] = np.where(kept, self._next, to[: self._count])
        while True:
            further = np.where(to >= 0, to[to], -1)
            if np.array_equal(further, to):
                return to[: self._count]
            to = further


def _filled(batch: pa.RecordBatch, name: str, found: pa.Table, rows: Ints, places: Ints) -> pa.RecordBatch:
    """The batch with values of a column from places in the column and, behind them, in the live rows."""
    at = batch.schema.get_field_index(name)
    column = batch.column(at)
    both = pa.concat_arrays([column, found[name].combine_chunks().cast(column.type)])
    order = np.arange(batch.num_rows)
    order[rows] = places
    return batch.set_column(at, batch.schema.field(at), both.take(pa.array(order)))


def _flags(mask: pa.BooleanArray) -> _Flags:
    return np.array(mask.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def live_rows(lake: Lake, table: str) -> Live:
    """Return the look-up of a table's live rows."""

    def rows(keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        return lake.table(table).lookup(pa.Table.from_batches([keys]), columns=list(columns))

    return rows
