"""Tables of every merge engine, with operations on two keys that meet its rules; and what a server made of them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby, product
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

import lakestore as ls
from lakestore.client.writer import change
from lakestore.model.merge_engines import aggregate, versioned
from lakestore.rows.bitmaps import bitmap
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.priority import BackgroundPriority, CommitPriority
from lakestore_server.commit.request import Task
from tests.model.merging import Key, Merged, Row
from tests.support.served import Served

KINDS = {"upsert": pb.UPSERT, "delete": pb.DELETE, "insert": pb.INSERT}
COUNTS = ("inserted", "updated", "deleted", "not_found", "ignored", "unchanged", "folded")
NAN = float("nan")
Op = tuple[str, int, Row]
"""Kind, which of the two keys, and the other columns that the row names."""
Batch = tuple[str, list[Row]]
"""Kind and rows of one change."""

PLAIN = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("l", pa.list_(pa.float64()))])
VERSIONED = pa.schema([("id", pa.int64()), ("v", pa.timestamp("us")), ("b", pa.string())])
WITHIN = pa.schema([("id", pa.int64()), ("v", pa.int32()), ("s", pa.string())])
FUNCTIONS = {
    "total": "sum",
    "times": "product",
    "money": "sum",
    "high": "max",
    "low": "min",
    "begin": "first",
    "end": "last",
    "seen": "count",
    "all": "bool_and",
    "any": "bool_or",
    "words": "string_list(;)",
    "who": "bitmap",
    "people": "distinct_count(who)",
}
AGGREGATED = pa.schema(
    [
        ("id", pa.int64()),
        ("total", pa.int16()),
        ("times", pa.int64()),
        ("money", pa.decimal128(20, 2)),
        ("high", pa.float64()),
        ("low", pa.string()),
        ("begin", pa.list_(pa.int8())),
        ("end", pa.date32()),
        ("seen", pa.int32()),
        ("all", pa.bool_()),
        ("any", pa.bool_()),
        ("words", pa.string()),
        ("who", pa.binary()),
        ("people", pa.int64()),
        ("rest", pa.struct([("x", pa.int32())])),
    ]
)


@dataclass(frozen=True)
class Case:
    """A table and what is done to it."""

    name: str
    schema: pa.Schema
    ops: tuple[Op, ...]
    options: dict[str, Any] = field(default_factory=dict)


_ONE: Row = {"a": 1, "b": "x", "l": [1.0, NAN]}
_PLAIN_OPS: tuple[Op, ...] = (
    ("upsert", 0, _ONE),
    ("upsert", 0, {"a": 2, "b": None, "l": [1.0]}),
    ("upsert", 1, _ONE),
    ("delete", 0, {}),
    ("delete", 1, {}),
    ("insert", 0, {"a": 3, "b": "i", "l": None}),
)
_PARTIAL_OPS: tuple[Op, ...] = (
    ("upsert", 0, {"a": 1}),
    ("upsert", 0, {"b": "x", "l": [NAN]}),
    ("upsert", 0, {"a": None}),
    ("upsert", 1, {"a": 1, "b": "y", "l": None}),
    ("delete", 0, {}),
    ("delete", 0, {"b": None, "l": None}),
    ("delete", 0, {"a": None}),
    ("insert", 0, {"b": "i"}),
)
_VERSIONED_OPS: tuple[Op, ...] = (
    ("upsert", 0, {"v": 2, "b": "two"}),
    ("upsert", 0, {"v": 1, "b": "one"}),
    ("upsert", 1, {"v": 2, "b": "two"}),
    ("delete", 0, {}),
    ("delete", 0, {"v": 3}),
    ("insert", 0, {"v": 2, "b": "inserted"}),
    ("upsert", 0, {"v": 3}),
)
_WITHIN_OPS: tuple[Op, ...] = (
    ("upsert", 0, {"v": 2, "s": "x"}),
    ("upsert", 0, {"v": 1, "s": "x"}),
    ("upsert", 0, {"v": 1, "s": "y"}),
    ("delete", 0, {}),
    ("delete", 0, {"v": 2, "s": "y"}),
    ("insert", 0, {"v": 1, "s": "x"}),
)
_SENT: Row = {
    "total": 7,
    "times": -3,
    "money": Decimal("1.25"),
    "high": NAN,
    "low": "m",
    "begin": None,
    "end": 5,
    "all": True,
    "any": False,
    "words": "w",
    "who": frozenset([1, 1 << 40]),
    "rest": {"x": 1},
}
_NULLS: Row = dict.fromkeys(_SENT)
_MORE: Row = {
    "total": -9,
    "times": 5,
    "money": Decimal("99999999999999.99"),
    "high": 1.5,
    "low": "a",
    "begin": [1],
    "end": None,
    "all": False,
    "any": True,
    "words": "",
    "who": frozenset([1]),
    "rest": {"x": 2},
}
_AGGREGATED_OPS: tuple[Op, ...] = (
    ("upsert", 0, _SENT),
    ("upsert", 0, _NULLS),
    ("upsert", 0, _MORE),
    ("upsert", 1, _MORE),
    ("delete", 0, {}),
    ("upsert", 0, {"total": 1, "who": frozenset([5])}),
    ("insert", 0, _SENT),
)
_EXTREMES = ("id", "high", "low", "any", "who", "people", "rest")
"""Columns that a row may leave as they are."""
_EXTREME_OPS: tuple[Op, ...] = (
    ("upsert", 0, {"high": 1.5, "low": "m", "any": True, "who": frozenset([1, 2]), "rest": {"x": 1}}),
    ("upsert", 0, {"high": NAN, "low": "z", "any": False, "who": frozenset([2]), "rest": None}),
    ("upsert", 1, {"high": 1.0}),
    ("delete", 0, {}),
)
CASES = (
    Case("upsert", PLAIN, _PLAIN_OPS),
    Case("upsert_skipping", PLAIN, _PLAIN_OPS, {"skip_unchanged": True}),
    Case("deletes_ignored", PLAIN, _PLAIN_OPS, {"deletes": "ignore"}),
    Case("partial", PLAIN, _PARTIAL_OPS, {"merge": "partial"}),
    Case("partial_skipping", PLAIN, _PARTIAL_OPS, {"merge": "partial", "skip_unchanged": True}),
    Case("first_row", PLAIN, _PLAIN_OPS, {"merge": "first_row"}),
    Case("versioned", VERSIONED, _VERSIONED_OPS, {"merge": versioned("v")}),
    Case("versioned_within", WITHIN, _WITHIN_OPS, {"merge": versioned("v", within="s")}),
    Case("versioned_skipping", VERSIONED, _VERSIONED_OPS, {"merge": versioned("v"), "skip_unchanged": True}),
    Case("aggregate", AGGREGATED, _AGGREGATED_OPS, {"merge": aggregate(FUNCTIONS)}),
    Case(
        "extremes_skipping",
        pa.schema([field for field in AGGREGATED if field.name in _EXTREMES]),
        _EXTREME_OPS,
        {"merge": aggregate({n: f for n, f in FUNCTIONS.items() if n in _EXTREMES}), "skip_unchanged": True},
    ),
)


def sequences(case: Case, length: int) -> list[list[Op]]:
    """All sequences of so many operations; each has two keys of its own, so that all go together."""
    return [
        [(kind, 2 * number + key, row) for kind, key, row in ops]
        for number, ops in enumerate(product(case.ops, repeat=length))
    ]


def steps(sequences: Sequence[Sequence[Op]]) -> Iterator[list[Batch]]:
    """The first operation of each sequence, then the second: the changes of one commit each."""
    for step in zip(*sequences, strict=True):
        yield _batches(step)


def runs(sequences: Sequence[Sequence[Op]]) -> Iterator[list[Batch]]:
    """Neighbouring operations of a sequence in one change, if they are of one kind and name the same columns."""
    split = [[list(run) for _, run in groupby(ops, key=_shape)] for ops in sequences]
    for number in range(max(map(len, split))):
        yield _batches([op for found in split if number < len(found) for op in found[number]])


def _shape(op: Op) -> tuple[str, tuple[str, ...]]:
    return op[0], tuple(op[2])


def _batches(ops: Sequence[Op]) -> list[Batch]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for op in ops:
        found[_shape(op)].append({"id": op[1], **op[2]})
    return [(kind, rows) for (kind, _), rows in found.items()]


def separately(lake: ls.Lake, case: Case, length: int) -> None:
    """Each operation is a commit."""
    made = MergeTable(lake, case)
    for batches in steps(sequences(case, length)):
        for batch in batches:
            answer = lake.transport.commit(pb.CommitRequest(changes=[made.message(batch)]))
            made.expect(answer.results, [batch])
    made.check()


def in_batches(lake: ls.Lake, case: Case, length: int) -> None:
    """Operations of one shape are rows of one change, so that it has duplicates."""
    made = MergeTable(lake, case)
    for batches in runs(sequences(case, length)):
        answer = lake.transport.commit(pb.CommitRequest(changes=[made.message(batch) for batch in batches]))
        made.expect(answer.results, batches)
    made.check()


def in_one_commit(lake: ls.Lake, case: Case, length: int) -> None:
    """All operations are changes of one commit."""
    made = MergeTable(lake, case)
    batches = [batch for step in steps(sequences(case, length)) for batch in step]
    answer = lake.transport.commit(pb.CommitRequest(changes=[made.message(batch) for batch in batches]))
    made.expect(answer.results, batches)
    made.check()


def in_one_group(served: Served, case: Case, length: int) -> None:
    """Requests of one producer that wait together, and so are one frame, or a few."""
    made = MergeTable(served.lake, case)
    batches = [batch for step in runs(sequences(case, length)) for batch in step]
    requests = [
        pb.CommitRequest(changes=[made.message(batch)], producer="p", sequence=sequence)
        for sequence, batch in enumerate(batches, start=1)
    ]
    answers = grouped(served, requests)
    assert len({answer.lsn for answer in answers}) < max(len(answers), 2)
    for request, batch in zip(requests, batches, strict=True):
        made.expect(served.lake.transport.commit(request).results, [batch])  # a retry gives the first answer
    made.check()


MODES = ("separately", "in_batches", "in_one_commit", "in_one_group")


def run(mode: str, served: Served, case: Case, length: int) -> None:
    """The operations of a case in one of these modes."""
    if mode == "in_one_group":
        in_one_group(served, case, length)
    else:
        {"separately": separately, "in_batches": in_batches, "in_one_commit": in_one_commit}[mode](
            served.lake, case, length
        )


def grouped(served: Served, requests: Sequence[pb.CommitRequest]) -> list[Any]:
    """Requests that wait together, and so become one commit: their answers, or what they were refused with."""
    gate = threading.Event()

    def hold() -> None:
        gate.wait(30)

    served.engine.loop.queue.put(Task(hold))
    writes = served.verbs("Write")
    prepared = [writes._submit(request, BackgroundPriority(CommitPriority())) for request in requests]
    gate.set()
    return [each.answer.exception(30) or each.answer.result() for each in prepared]


class MergeTable:
    """A table of a case, and the model beside it."""

    def __init__(self, lake: ls.Lake, case: Case, buckets: int = 3) -> None:
        name = f"d.{case.name}"
        self.lake = lake
        self.table = lake.create_table(name, case.schema, primary_key=["id"], buckets=buckets, **case.options)
        self.model = Merged(self.table.definition)

    def message(self, batch: Batch) -> pb.Change:
        """A change as it is sent."""
        kind, rows = batch
        schema = self.table.definition.schema
        arrays = [pa.array([_sent(row[name]) for row in rows], schema.field(name).type) for name in rows[0]]
        return change(self.table.name, KINDS[kind], [pa.RecordBatch.from_arrays(arrays, names=list(rows[0]))])

    def expect(self, results: Sequence[pb.ChangeResult], batches: Sequence[Batch]) -> None:
        """The model follows, and counts the same."""
        for result, (kind, rows) in zip(results, batches, strict=True):
            counts = Counter({name: getattr(result, name) for name in COUNTS if getattr(result, name)})
            assert counts == self.model.apply(kind, [self._known(row) for row in rows])
            assert counts.total() == len(rows)

    def _known(self, row: Row) -> Row:
        return {name: _shown(value, self.table.definition.schema.field(name).type) for name, value in row.items()}

    def check(self) -> None:
        """Scan, look-ups, changelog, its fold and the live sums are the model's."""
        rows = {(row["id"],): row for row in _rows(self.table.scan().to_arrow())}
        assert _plain(rows) == _plain(self.model.live)
        asked = sorted({row["id"] for _, row in self.model.changes})
        found = {(row["id"],): row for row in _rows(self.table.lookup([{"id": i} for i in asked]))} if asked else {}
        assert _plain(found) == _plain(self.model.live)
        self._check_changes()
        for bucket in self.lake.transport.audit(pb.AuditRequest(table=self.table.name)).buckets:
            assert bucket.live_sum == bucket.log_sum == bucket.index_sum
            assert bucket.live_rows == bucket.log_rows == bucket.index_rows

    def _check_changes(self) -> None:
        folded: dict[Key, Row] = {}
        found: dict[Key, list[Any]] = defaultdict(list)
        for batch in self.table.changes("earliest", until="now", before_images=True):
            for row in _rows(batch.to_arrow()):
                kind, key = row.pop("__change"), (row["id"],)
                for name in ("__bucket", "__offset", "__timestamp"):
                    del row[name]
                assert (kind == "+I") == (key not in folded)
                if kind in ("-U", "-D"):
                    assert repr(folded[key]) == repr(row)
                if kind == "-D":
                    del folded[key]
                elif kind != "-U":
                    folded[key] = row
                if kind != "-U":
                    found[key].append((kind, repr(row)))
        expected: dict[Key, list[Any]] = defaultdict(list)
        for kind, row in self.model.changes:
            expected[(row["id"],)].append((kind, repr(row)))
        assert found == expected
        assert _plain(folded) == _plain(self.model.live)


def _sent(value: Any) -> Any:
    return bitmap(value) if isinstance(value, frozenset) else value


def _shown(value: Any, kind: pa.DataType) -> Any:
    """A value as reads give it."""
    if isinstance(value, frozenset) or value is None or pa.types.is_nested(kind):
        return value
    return pa.array([value], kind)[0].as_py()


def _rows(table: pa.Table | pa.RecordBatch) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    for row in rows:
        if row.get("who") is not None:
            row["who"] = frozenset(BitMap64.deserialize(row["who"]))
    return rows


def _plain(rows: dict[Key, Row]) -> dict[Key, str]:
    """Comparable: NaN as a text equals itself."""
    return {key: repr(row) for key, row in rows.items()}
