"""Tables of every merge engine, what may be written to them, and each one's state as plain Python has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakestore.client.writer import Marks, with_marks
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from tests.model.merging import AS_OF, KEPT, Key, Merged, Row

EPOCH = datetime(1970, 1, 1)
BASE = EPOCH + timedelta(seconds=1_700_000_000)
TTL = {"column": "at", "after": "1h"}
IdRow = dict[int, Any]
"""Column id to value: the same whatever a column is called."""

_NUMBERS = st.none() | st.integers(-4, 4)
_TEXTS = st.none() | st.sampled_from(["", "x", "y;z", "ä\0"])
_TIMES = st.sampled_from([None, *(BASE + timedelta(minutes=m) for m in (-120, -60, -30, 0, 0, 60, 240))])
_DUE = _TIMES.map(lambda time: time and time + timedelta(seconds=30))
"""Times at which rows were due: never that of a commit."""
_FLAGS = st.none() | st.booleans()
_HALVES = st.sampled_from([None, 0.5, 1.0, 2.0, -1.0])
_SETS = st.none() | st.frozensets(st.sampled_from([0, 1, 7, 1 << 17, 1 << 40]), min_size=1, max_size=3)
LONG = "b" * 600
TEXT_KEYS = st.sampled_from(["", "a", "a\0", LONG, LONG[:-1] + "c"])
INT_KEYS = st.sampled_from([-(2**63), -1, 0, 2**63 - 1])


@dataclass(frozen=True)
class Spec:
    """One table."""

    columns: Mapping[str, tuple[pa.DataType, st.SearchStrategy[Any]]]
    options: Mapping[str, Any]
    always: tuple[str, ...] = ()
    """Beside the key, what each row brings."""
    never: tuple[str, ...] = ()
    """What no row brings."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The primary key."""
        return tuple(self.options["primary_key"])

    @property
    def schema(self) -> pa.Schema:
        """As it is created."""
        return pa.schema([(name, kind) for name, (kind, _) in self.columns.items()])

    @property
    def free(self) -> list[str]:
        """Columns that rows may bring or leave out."""
        fixed = {*self.keys, *self.always, *self.never}
        return [name for name in self.columns if name not in fixed]


_AT = {"at": (pa.timestamp("us"), _TIMES)}
_FUNCTIONS = {
    "total": "sum",
    "times": "product",
    "high": "max",
    "low": "min",
    "born": "first",
    "latest": "last",
    "rows": "count",
    "every": "bool_and",
    "some": "bool_or",
    "list": "string_list(;)",
    "who": "bitmap",
    "whos": "distinct_count(who)",
    "at": "max",
}
SPECS: dict[str, Spec] = {
    "e.upsert": Spec(
        {"id": (pa.int64(), INT_KEYS), "v": (pa.int32(), _NUMBERS), **_AT},
        {"primary_key": ["id"], "buckets": 3, "ttl": TTL},
    ),
    "e.skip": Spec(
        {
            "g": (pa.string(), TEXT_KEYS),
            "n": (pa.int16(), st.integers(-1, 1)),
            "v": (pa.float64(), st.sampled_from([None, float("nan"), 1.5, 0.0, -0.0])),
        },
        {"primary_key": ["g", "n"], "bucket_key": ["g"], "buckets": 2, "skip_unchanged": True},
    ),
    "e.partial": Spec(
        {"k": (pa.string(), TEXT_KEYS), "a": (pa.int32(), _NUMBERS), "b": (pa.string(), _TEXTS), **_AT},
        {"primary_key": ["k"], "buckets": 2, "merge": "partial", "ttl": TTL},
    ),
    "e.first": Spec(
        {
            "d": (pa.date32(), st.sampled_from([date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)])),
            "f": (pa.bool_(), st.booleans()),
            "v": (pa.int32(), _NUMBERS),
            **_AT,
        },
        {"primary_key": ["d", "f"], "buckets": 2, "merge": "first_row", "ttl": TTL},
    ),
    "e.versioned": Spec(
        {
            "id": (pa.int64(), INT_KEYS),
            "ver": (pa.int64(), st.integers(-3, 3)),
            "v": (pa.string(), _TEXTS),
            **_AT,
        },
        {"primary_key": ["id"], "buckets": 2, "merge": "versioned(ver)", "ttl": TTL},
        always=("ver",),
    ),
    "e.within": Spec(
        {
            "id": (pa.int64(), INT_KEYS),
            "ver": (pa.int64(), st.integers(-2, 2)),
            "src": (pa.string(), st.sampled_from(["", "a", "ä"])),
            "v": (pa.string(), _TEXTS),
            **_AT,
        },
        {"primary_key": ["id"], "buckets": 2, "merge": "versioned(ver, within src)", "ttl": TTL},
        always=("ver", "src"),
    ),
    "e.aggregate": Spec(
        {
            "id": (pa.int32(), st.integers(-2, 2)),
            "total": (pa.int64(), _NUMBERS),
            "times": (pa.float64(), _HALVES),
            "high": (pa.int32(), _NUMBERS),
            "low": (pa.string(), _TEXTS),
            "born": (pa.int32(), _NUMBERS),
            "latest": (pa.int32(), _NUMBERS),
            "plain": (pa.int32(), _NUMBERS),
            "rows": (pa.int64(), st.none()),
            "every": (pa.bool_(), _FLAGS),
            "some": (pa.bool_(), _FLAGS),
            "list": (pa.string(), _TEXTS),
            "who": (pa.binary(), _SETS),
            "whos": (pa.int64(), st.none()),
            **_AT,
        },
        {"primary_key": ["id"], "buckets": 1, "merge": {"aggregate": _FUNCTIONS}, "ttl": TTL},
        never=("rows", "whos"),
    ),
    "e.ignore": Spec(
        {"k": (pa.binary(), st.sampled_from([b"", b"\0", b"a\0", b"\xff" * 700])), "v": (pa.int32(), _NUMBERS)},
        {"primary_key": ["k"], "buckets": 2, "deletes": "ignore"},
    ),
}


@dataclass(frozen=True)
class Op:
    """Rows for one table; columns have the names that they were created with."""

    table: str
    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@st.composite
def ops(draw: st.DrawFn, names: Sequence[str] = tuple(sorted(SPECS))) -> Op:
    """Any change of one of the tables."""
    name = draw(st.sampled_from(names))
    spec = SPECS[name]
    kind = draw(st.sampled_from(["upsert", "upsert", "delete", "insert"]))
    engine = str(spec.options.get("merge", "upsert"))
    named = draw(st.sets(st.sampled_from(spec.free))) if draw(st.booleans()) else set(spec.free)
    if kind == "delete":
        named = named if engine == "partial" else set()
        always = spec.always if draw(st.booleans()) else ()
    else:
        always = spec.always
    due = (AS_OF,) if "src" in always and kind != "insert" and draw(st.booleans()) else ()
    columns = (*spec.keys, *always, *sorted(named), *due)
    values = {column: spec.columns[column][1] if column in spec.columns else _DUE for column in columns}
    if named and kind == "upsert" and engine.startswith(("upsert", "versioned")):
        for column in draw(st.sets(st.sampled_from(sorted(named)))):
            values[column] = st.just(KEPT) | values[column]
    row = st.tuples(*values.values())
    return Op(name, kind, columns, tuple(draw(st.lists(row, min_size=1, max_size=5))))


@st.composite
def series(draw: st.DrawFn) -> list[Op]:
    """Several changes of one table, one after the other."""
    name = draw(st.sampled_from(sorted(SPECS)))
    return draw(st.lists(ops([name]), min_size=2, max_size=6))


def plain(value: Any) -> Any:
    """A value that equals itself."""
    return str(value) if isinstance(value, float) and (value != value or value == 0) else value


def bitmap_columns(table: Table) -> set[str]:
    """Columns whose bytes are sets."""
    return {column for column, function in table.merge.functions if function.name == "bitmap"}


def by_id(row: Mapping[str, Any], table: Table) -> IdRow:
    """A row of that version; bitmaps as sets."""
    sets = bitmap_columns(table)
    return {c.id: plain(_opened(row[c.name]) if c.name in sets else row[c.name]) for c in table.columns}


def _opened(value: Any) -> Any:
    return frozenset(BitMap64.deserialize(value)) if isinstance(value, bytes) else value


def batch_of(rows: Sequence[Row], table: Table) -> pa.RecordBatch:
    """Rows that name the same columns, as Arrow."""
    names = [name for name in rows[0] if name != AS_OF]
    values = {name: [_closed(row[name]) for row in rows] for name in names}
    arrays = [pa.array(values[name], arrow_type(table.column(name).type)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def marked_batch_of(rows: Sequence[Row], table: Table) -> tuple[pa.RecordBatch, Marks]:
    """As `batch_of`, with what the rows keep and when they were due; a column that all rows keep may be left out."""
    flags = {name: [row[name] == KEPT for row in rows] for name in rows[0]}
    keep = {name: kept for name, kept in flags.items() if any(kept)}
    everywhere = [name for name, kept in keep.items() if all(kept)] if len(keep) == 1 and len(rows) % 2 else []
    values = [{n: None if v == KEPT else v for n, v in row.items() if n not in everywhere} for row in rows]
    due = [row[AS_OF] for row in rows] if AS_OF in rows[0] else None
    return with_marks(batch_of(values, table), everywhere or keep, due)


def _closed(value: Any) -> Any:
    return bytes(BitMap64(value).serialize()) if isinstance(value, frozenset) else value


@dataclass
class Mirror:
    """One table as it must be."""

    merged: Merged
    versions: list[Table]
    """By schema version; the options of the last one are not kept up to date."""
    history: list[tuple[str, IdRow, int]] = field(default_factory=list)
    """(__change, row, its version): every change so far; a delete has the row that it removed."""
    start: int = 0
    """How many of them lie below the log start."""
    start_lsn: int = 0
    base: dict[Key, tuple[IdRow, int]] = field(default_factory=dict)
    """What lived at the log start, as the versions then had it."""
    keys: dict[Key, None] = field(default_factory=dict)
    """Every key that was ever named."""

    @staticmethod
    def of(table: Table) -> Mirror:
        """A new table."""
        return Mirror(Merged(table), [table])

    @property
    def table(self) -> Table:
        """The definition now."""
        return self.merged.table

    def key_of(self, row: IdRow) -> Key:
        """The key's columns never change their ids."""
        first = self.versions[0]
        return tuple(row[first.column(name).id] for name in first.primary_key)

    def rows_of(self, op: Op) -> list[Row]:
        """An operation's rows with the names that hold now; columns that are gone are left out."""
        ids = {column.name: column.id for column in self.versions[0].columns}
        names: dict[Any, str] = {column.id: column.name for column in self.table.columns} | {AS_OF: AS_OF}
        taken = [(i, names[ids.get(name, name)]) for i, name in enumerate(op.columns) if ids.get(name, name) in names]
        return [{name: row[i] for i, name in taken} for row in op.rows]

    def apply(self, kind: str, rows: Sequence[Row], time: datetime) -> Counter[str]:
        """Apply one change of that time; what its rows were counted as."""
        counts = self.merged.apply(kind, rows, time)
        for row in rows:
            self.keys[tuple(row[name] for name in self.table.primary_key)] = None
        self._note()
        return counts

    def refuses(self, kind: str) -> bool:
        """Whether the table does not take such a change."""
        return kind == "delete" and self.table.deletes == "refuse"

    def expire(self, now: datetime) -> int:
        """Delete what is over; how many rows."""
        ttl = self.table.ttl
        if ttl is None:
            return 0
        over = [
            (key, row)
            for key, row in self.merged.live.items()
            if row[ttl.column] is not None and row[ttl.column] + timedelta(seconds=ttl.seconds) <= now
        ]
        for key, row in over:
            del self.merged.live[key]
            if self.table.merge.engine == "versioned":
                self.merged.deleted[key] = self.merged.mark(row, now)
            self.merged.changes.append(("-D", row))
        self._note()
        return len(over)

    def _note(self) -> None:
        version = self.table.schema_id
        new = self.merged.changes[len(self.history) :]
        self.history += [(change, by_id(row, self.table), version) for change, row in new]

    def altered(self, table: Table) -> None:
        """Another definition: rows are followed by the ids of their columns."""
        live = {key: by_id(row, self.table) for key, row in self.merged.live.items()}
        self.merged.table = table
        self.merged.live = {
            key: {column.name: row.get(column.id) for column in table.columns} for key, row in live.items()
        }
        if table.schema_id == len(self.versions):
            self.versions.append(table)

    def live(self) -> dict[Key, IdRow]:
        """The rows now."""
        return {key: by_id(row, self.table) for key, row in self.merged.live.items()}

    def shown(self, row: IdRow, version: int) -> IdRow:
        """A row as a version has it."""
        return {column.id: row.get(column.id) for column in self.versions[version].columns}

    def moved(self, lsn: int) -> None:
        """The log starts here now."""
        if lsn > self.start_lsn:
            self.start, self.start_lsn = len(self.history), lsn
            self.base = folded(self.history[: self.start], self)


def folded(
    changes: Iterable[tuple[str, IdRow, int]], mirror: Mirror, base: Mapping[Key, tuple[IdRow, int]] | None = None
) -> dict[Key, tuple[IdRow, int]]:
    """What lives after changes, each row in its version."""
    live = dict(base or {})
    for change, row, version in changes:
        key = mirror.key_of(row)
        if change == "-D":
            del live[key]
        else:
            live[key] = row, version
    return live
