"""Look-ups: the rows of whole keys, or of leading parts of keys, now or at a cut.

An answer holds what fits into it; a client that takes it in parts asks again for the rest, at the same cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.projection import check_present, renamed
from lakestore.model.table import Table
from lakestore.rows import ipc, keys
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import row_limit
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import encoded
from lakestore_server.read import live_offsets, lookup_at, reach
from lakestore_server.read import rows as reads
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.lookup_one import KeyForm, KeyForms, row_of
from lakestore_server.read.lookup_prefix import GROUP_KEYS_MAX, PAGE_KEYS, PREFIX_KEYS_MIN, PREFIXES_MAX, Leading
from lakestore_server.read.lookup_rows import AnswerShape, Located
from lakestore_server.read.positions import lsn_at, parse_token, reached
from lakestore_server.state.view import TableState

Ints = npt.NDArray[np.int64]
_ANSWER_BYTES = 1 << 10
"""More than an answer holds beside its rows: token, prefix and frames."""


@dataclass(frozen=True, slots=True)
class LookupKeys:
    """The keys of a request, in the table's names and types."""

    columns: list[pa.Array]
    """The columns of the primary key, or the first of these columns, in the key's order."""
    bucket_columns: list[pa.Array]
    """The columns of the bucket key."""
    is_whole: bool

    @staticmethod
    def of(state: TableState, request: pb.LookupRequest, batch: pa.RecordBatch, limits: Limits) -> LookupKeys:
        """The keys of a request, conformed to the current version; `Invalid` if they are no leading part of the key."""
        table, source = state.table, _source(state, request)
        if not table.keyed:
            raise Invalid(f"table {table.name} has no primary key to look up")
        if source.schema_id == table.schema_id and _fits(batch, table):
            columns = dict(zip(table.primary_key, batch.columns, strict=True))
            return LookupKeys(batch.columns, [columns[name] for name in table.bucket_key], True)
        named = [name for name in source.primary_key if name in batch.schema.names]
        given = renamed(batch.select(named), source, table)
        is_whole = len(named) == len(table.primary_key)
        names = table.primary_key if is_whole else _leading(table, given, batch)
        conformed = ipc.conform(given, table, keys_only=True, limits=limits, only=names)
        columns = dict(zip(names, conformed.columns, strict=True))
        in_bucket_key = [columns[name] for name in table.bucket_key]
        return LookupKeys(conformed.columns, in_bucket_key, is_whole)

    def buckets(self, table: Table) -> npt.NDArray[np.int32]:
        """The bucket of each key."""
        return keys.buckets(self.bucket_columns, table.buckets)


class _RequestedKeys:
    """A request, and its keys conformed to the table's version of the moment."""

    def __init__(self, request: pb.LookupRequest, batch: pa.RecordBatch, limits: Limits) -> None:
        self.request, self.batch, self._limits = request, batch, limits
        self._table: Table | None = None
        self._keys: LookupKeys | None = None

    def keys(self, state: TableState) -> LookupKeys:
        """The keys in the current version."""
        if self._keys is None or self._table is not state.table:
            meant = state.meant(self.request.table_uuid)
            self._table, self._keys = state.table, LookupKeys.of(meant, self.request, self.batch, self._limits)
        return self._keys


class Lookups:
    """Rows by key. Thread-safe."""

    def __init__(self, engine: Engine, completeness: Completeness) -> None:
        self._engine, self._completeness = engine, completeness
        self._forms = KeyForms()

    def lookup(self, request: pb.LookupRequest) -> pb.RowBatch:
        """The rows of many keys, in the order of the keys; absent keys give no row."""
        engine = self._engine
        if request.at_least:
            reached(engine, parse_token(request.at_least, engine).lsn)
        if request.HasField("require"):
            at = lsn_at(engine, request.at, [request.table]) if request.at else None
            self._completeness.cut([request.table], at, request.require)
        if request.key:
            return row_of(engine, self._forms.of, request) or self._asked(request, self._one_key(request))
        return self._asked(request, ipc.decode(request.keys, limits=engine.limits))

    def _one_key(self, request: pb.LookupRequest) -> pa.RecordBatch:
        """The whole key of a request as a row in the names of the request's version."""
        source = _source(self._engine.view.meant(request.table, request.table_uuid), request)
        return KeyForm.of(source).batch(request.key)

    def _asked(self, request: pb.LookupRequest, wanted: pa.RecordBatch) -> pb.RowBatch:
        engine = self._engine
        cut = lsn_at(engine, request.at, [request.table]) if request.at else None
        if cut is not None:
            reached(engine, cut)
        asking = _RequestedKeys(request, wanted, engine.limits)
        is_whole = asking.keys(engine.view.named(request.table)).is_whole
        return (self._whole if is_whole else self._leading)(asking, cut)

    def _whole(self, asking: _RequestedKeys, cut: int | None) -> pb.RowBatch:
        def encode(state: TableState) -> KeyQuery:
            columns = asking.keys(state).columns
            return KeyQuery(encoded(columns, table_prefix(state.table.number)), lambda: columns)

        view, offsets = live_offsets.of_keys(self._engine, asking.request.table, encode)
        state = view.named(asking.request.table)
        wanted = asking.keys(state)
        if cut is not None:
            check_created(state, cut)
            reach.check(view, [state], cut)
            offsets = lookup_at.offsets_at(state, cut, wanted.columns, wanted.buckets(state.table), offsets)
        found = np.flatnonzero(offsets >= 0)
        shape = self._shape(state, asking.request, cut)
        located = shape.located(wanted.buckets(state.table)[found], offsets[found])
        count = self._fitting(located, asking.request)
        answered = asking.batch.num_rows if count == len(found) else int(found[count])
        return self._answer(located.rows(count), shape, answered, b"", view.lsn if cut is None else cut)

    def _leading(self, asking: _RequestedKeys, cut: int | None) -> pb.RowBatch:
        request, count = asking.request, asking.batch.num_rows
        prefixes = min(count, PREFIXES_MAX)
        answer = self._page(asking, cut, prefixes, max(PAGE_KEYS // max(prefixes, 1), PREFIX_KEYS_MIN))
        answer = answer or self._page(asking, cut, 1, GROUP_KEYS_MAX)
        if answer is None:
            raise Invalid(f"more than {GROUP_KEYS_MAX} keys begin with the same {keys.KEPT_BYTES} bytes")
        if not request.in_parts and answer.answered < count:
            raise Invalid("these prefixes have more rows than one answer holds: ask for fewer, or with a newer client")
        return answer

    def _page(self, asking: _RequestedKeys, cut: int | None, prefixes: int, keys_most: int) -> pb.RowBatch | None:
        """An answer for the first prefixes; None when that many keys of the first one are not enough."""
        request = asking.request

        def ask(state: TableState) -> Leading:
            wanted = asking.keys(state)
            return Leading.of(state, wanted.columns, wanted.buckets(state.table), request.after, prefixes)

        live = live_offsets.of_ranges(self._engine, request.table, ask, keys_most)
        state = live.view.named(request.table)
        if cut is not None:
            check_created(state, cut)
            reach.check(live.view, [state], cut)
        shape = self._shape(state, request, cut)
        candidates = live.question.candidates(state, live.ranges, cut)
        if candidates is None:
            return None
        located = shape.located(candidates.page.buckets, candidates.page.offsets)
        page = candidates.first(self._fitting(located, request))
        found = located.rows(len(page.offsets))
        return self._answer(found, shape, page.answered, page.next, live.view.lsn if cut is None else cut)

    def _shape(self, state: TableState, request: pb.LookupRequest, cut: int | None) -> AnswerShape:
        """The shape of the answer: in the current version, or in the version at the cut."""
        target = state.table if cut is None else state.versions.at(cut)
        return AnswerShape.of(state, target, _columns(list(request.columns), _source(state, request), target))

    def _fitting(self, located: Located, request: pb.LookupRequest) -> int:
        """The number of rows that fit into the answer; `Invalid` when all of them must fit and do not."""
        limits = self._engine.limits
        bytes_max = reads.sent_bytes(limits) if request.in_parts else limits.message_bytes
        count = located.fitting(bytes_max)
        if count < len(located.offsets) and not request.in_parts:
            raise Invalid(
                f"the rows of these keys take more than {bytes_max} bytes: ask for fewer keys or columns, or with a"
                " newer client, which takes the answer in parts"
            )
        return count

    def _answer(
        self, found: pa.RecordBatch, shape: AnswerShape, answered: int, following: bytes, lsn: int
    ) -> pb.RowBatch:
        answer = reads.message(found)
        if len(answer.rows) + _ANSWER_BYTES > self._engine.limits.message_bytes:
            raise row_limit.unsendable(found, shape.target, self._engine.limits.message_bytes)
        answer.schema_id = shape.target.schema_id
        answer.token = self._engine.view.token(lsn)
        answer.answered, answer.next = answered, following
        return answer


def check_created(state: TableState, lsn: int) -> None:
    """Refuse a cut that is older than the table."""
    if state.created_lsn > lsn:
        raise Invalid(f"table {state.table.name} did not exist at this position")


def _fits(batch: pa.RecordBatch, table: Table) -> bool:
    """Whether a batch is the whole key as the table has it: nothing to rename, cast or refuse."""
    if batch.schema.names != list(table.primary_key):
        return False
    wanted = (table.column(name).arrow.type for name in table.primary_key)
    return all(c.type == kind and not c.null_count for c, kind in zip(batch.columns, wanted, strict=True))


def _source(state: TableState, request: pb.LookupRequest) -> Table:
    """The version whose names the request uses."""
    return state.versions.numbered(request.schema_id) if request.HasField("schema_id") else state.table


def _leading(table: Table, given: pa.RecordBatch, batch: pa.RecordBatch) -> tuple[str, ...]:
    """The leading part of the primary key that these columns are, or `Invalid`."""
    key = ", ".join(table.primary_key)
    if given.num_columns != batch.num_columns or not given.num_columns:
        other = next((name for name in batch.schema.names if name not in given.schema.names), "")
        raise Invalid(
            f"table {table.name}: column {other!r} is not in the primary key ({key}): look up by all of its columns,"
            " or by the first ones"
        )
    names = table.primary_key[: given.num_columns]
    said = ", ".join(given.schema.names)
    if set(names) != set(given.schema.names):
        raise Invalid(
            f"table {table.name}: ({said}) is not a leading part of the primary key ({key}): look up by all of its"
            " columns or by the first ones, or scan with a condition"
        )
    if not set(table.bucket_key) <= set(names):
        raise Invalid(
            f"table {table.name}: ({said}) does not contain the bucket key ({', '.join(table.bucket_key)}), so its rows"
            f" are in all buckets: scan with a condition, or make a table with bucket_key=[{names[0]!r}]"
        )
    return names


def _columns(names: list[str], source: Table, target: Table) -> list[str]:
    """Names of columns in the request's version, or else in the answer's, as the answer has them."""
    if source.schema_id == target.schema_id or not names:
        return target.selected(names)
    ids = {column.name: column.id for column in (*target.columns, *source.columns)}
    known = {column.id: column.name for column in target.columns}
    for name in names:
        if name not in SYSTEM_TYPES and ids.get(name) not in known:
            check_present({ids.get(name, 0)}, source, target)
            target.column(name)
    return [name if name in SYSTEM_TYPES else known[ids[name]] for name in names]
