"""Fill in values that a change of the primary key did not send, from the row under the old key.

A key change is two records: a delete of the old key and a row under the new key. PostgreSQL sends no unchanged TOASTed
value, so the new row takes that value from the old key's row.

- The value is the old key's value right before the delete: from an earlier row of the same commit, else from the live
  row in the lake.
- A new key that is already live keeps its own value: its record is a copy of a committed one, because a source never
  changes a key to a used one.
- A live row of the old key that is younger than the delete is another row, as in a replay of dead letters.
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
from lakestore.kafka.bridge.outcome import MappedBlock, Op, TableRows
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import POSITION
from lakestore.kafka.bridge.writing import codes_of


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a batch of source transactions where a commit may end."""

    highs: Sequence[int]
    """The number of records of each block before the place."""
    moves: Mapping[Place, int]
    """The next offset of every partition that moved since the beginning of the batch."""
    names: str
    """The transactions between the previous cut and this one, for messages."""


@dataclass(slots=True)
class Batch:
    """Records for one commit, if they fit in one."""

    generation: int
    """The consumer's generation. A restarted consumer raises it and drops batches of older generations."""
    blocks: Sequence[Records]
    moves: Mapping[Place, int]
    """The next offset of each partition that this batch advances."""
    polled: float
    """Monotonic time at which the last record was taken from Kafka."""
    nbytes: int
    mapped: Sequence[MappedBlock] = ()
    """The mapped blocks, once the second stage is through."""
    cuts: Sequence[Cut] = ()
    """The places to cut the batch; empty: anywhere except between companion records."""
    before: Sequence[Records] = ()

    @property
    def topics(self) -> set[str]:
        return {records.topic for records in self.blocks}


@dataclass(slots=True)
class OpenPartitions:
    """Partitions that this bridge owns exclusively."""

    offsets: dict[Place, int] = field(default_factory=dict)
    begins: dict[Place, int] = field(default_factory=dict)
    """The offsets to fetch from. For change events this is the record before, as it says what a null value means."""
    until: dict[Place, int] = field(default_factory=dict)
    """The ends at the time of opening, before records that an open transaction holds back."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, LakestoreError] = field(default_factory=dict)
    """Topic to the reason why it is not read."""


@dataclass(slots=True)
class Opening:
    """A message to the last stage: open the registers of partitions."""

    generation: int
    places: Sequence[Place]
    opened: OpenPartitions | None = None
    """The answer, once `done` is set; None if the opening was dropped."""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def topics(self) -> set[str]:
        return {place.topic for place in self.places}


@dataclass(slots=True)
class Release:
    """A message to the last stage: finish earlier work, because the partitions belong to another member."""

    places: Sequence[Place]
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Settling:
    """A message to the stages of a consumer of source transactions: check the waiting transactions again."""

    generation: int
    ends: Mapping[Place, float]
    """The times at which partitions were last read to their ends."""
    polled: float
    waiting: Sequence[str] = ()
    """The transactions that still wait, once `done` is set."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when all earlier work is committed or dropped."""


Work = Batch | Opening | Release | Settling


Live = Callable[[pa.RecordBatch, Sequence[str]], pa.Table]
"""Returns the live rows of keys with the given columns, in any order. An absent key gives no row."""
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
    none = np.zeros(0, np.int64)
    if rows.atomic is None or not rows.kept:
        return none, none
    put = np.flatnonzero((rows.atomic >= 0) & (rows.op == Op.PUT))
    gone = np.flatnonzero((rows.atomic >= 0) & (rows.op == Op.DELETE))
    _, at, of = np.intersect1d(rows.atomic[put], rows.atomic[gone], return_indices=True)
    return put[at], gone[of]


def _partners(count: int, new: Ints, old: Ints) -> Ints:
    found = np.full(count, -1, np.int64)
    found[new] = old
    return found


def _before(codes: Ints) -> Ints:
    order = np.argsort(codes, kind="stable")
    found = np.full(len(codes), -1, np.int64)
    same = codes[order][1:] == codes[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _lake_rows(batch: pa.RecordBatch, rows: pa.Table, key: Sequence[str], codes: Ints) -> Ints:
    if not rows.num_rows:
        return np.full(len(codes), -1, np.int64)
    keys = pa.Table.from_batches([batch.select(list(key))])
    both = pa.concat_tables([keys, rows.select(list(key)).cast(keys.schema)]).combine_chunks().to_batches()[0]
    code = codes_of(both, key)
    place = np.full(int(code.max()) + 1, -1, np.int64)
    place[code[len(codes) :]] = np.arange(rows.num_rows)
    return place[code[: len(codes)]]


class _Steps:
    """For each row with an unsent column, the place where its value comes from."""

    def __init__(self, rows: TableRows, before: Ints, lake: Ints, partner: Ints, live: int) -> None:
        """`before`, `lake` and `partner` have one entry a row; `live` is the number of live rows."""
        self._rows, self._partner = rows, partner
        self._count = len(before)
        self._whole = self._count + live
        is_put = rows.op == Op.PUT
        own = np.where(before >= 0, np.where(is_put[before], before, -1), self._of_lake(lake))
        self.carried: _Flags = is_put & (own < 0) & (partner >= 0)
        """Rows of new keys that are not live yet."""
        delete = partner[self.carried]
        earlier = before[delete]
        self._next = own
        self._next[self.carried] = np.where(
            earlier >= 0, np.where(is_put[earlier], earlier, -1), self._of_lake(lake)[delete]
        )

    def _of_lake(self, lake: Ints) -> Ints:
        return np.where(lake >= 0, self._count + lake, -1)

    def refuse_younger(self, found: pa.Table) -> None:
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
        """For each row the index of the row with a column's value: in the commit, then live rows; -1 for none."""
        to = np.arange(self._whole)
        to[: self._count] = np.where(kept, self._next, to[: self._count])
        while True:
            further = np.where(to >= 0, to[to], -1)
            if np.array_equal(further, to):
                return to[: self._count]
            to = further


def _filled(batch: pa.RecordBatch, name: str, found: pa.Table, rows: Ints, places: Ints) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    column = batch.column(at)
    both = pa.concat_arrays([column, found[name].combine_chunks().cast(column.type)])
    order = np.arange(batch.num_rows)
    order[rows] = places
    return batch.set_column(at, batch.schema.field(at), both.take(pa.array(order)))


def _flags(mask: pa.BooleanArray) -> _Flags:
    return np.array(mask.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def live_rows(lake: Lake, table: str) -> Live:
    """Return a function that looks up live rows of a table."""

    def rows(keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        return lake.table(table).lookup(pa.Table.from_batches([keys]), columns=list(columns))

    return rows
