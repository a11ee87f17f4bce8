"""Look-ups: the rows of whole keys, or of leading parts of keys, now or at a cut.

An answer holds what fits into it; a client that takes it in parts asks for the rest at the same cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, Unavailable
from lakestore.limits import Limits
from lakestore.model.columns import LAKE_BUCKET, LAKE_TIMESTAMP, SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows import ipc, keys
from lakestore.rows.ipc import STREAM_END, crc32c
from lakestore.rows.one_key import KeyCode
from lakestore.rows.projection import check_present, rename_columns
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import request
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery
from lakestore_server.index.entry import FLAG, PREFIX_BYTES, table_prefix
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys, encoded
from lakestore_server.read import lookup_at, plan, readable_from
from lakestore_server.read import rows as reads
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.lookup_prefix import GROUP_KEYS_MAX, PAGE_KEYS, PREFIX_KEYS_MIN, PREFIXES_MAX, Leading
from lakestore_server.read.positions import lsn_at, parse_token, reached
from lakestore_server.state import swaps
from lakestore_server.state.bucket_log import FetchedRows, Pick, fetched, in_order
from lakestore_server.state.chunk import CHANGE
from lakestore_server.state.view import TableState, View, stored_schema


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The version and the columns of an answer."""

    state: TableState
    target: Table
    """The version in which the rows are shown."""
    columns: Sequence[str]
    """Names of columns in this version, including system columns."""
    stored: Callable[[int], list[str]]
    """Schema version to the stored columns that the shown ones need."""

    @property
    def is_change_shown(self) -> bool:
        return "__change" in self.columns

    def wanted(self, version: int) -> list[str]:
        """The stored columns to read of a version; at least one, which gives the number of rows."""
        stored = self.stored(version)
        return [CHANGE, *stored] if self.is_change_shown or not stored else stored

    @staticmethod
    def from_columns(state: TableState, target: Table, columns: Sequence[str]) -> AnswerShape:
        user = [name for name in columns if name not in SYSTEM_TYPES]
        stored = state.versions.stored_names(target, user) if user else lambda _: []
        return AnswerShape(state, target, columns, stored)

    def located(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> LocatedRows:
        return LocatedRows(self, offsets, list(self._picks(buckets, offsets)))

    def _picks(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Iterator[Pick]:
        for bucket in np.unique(buckets) if len(buckets) != 1 else buckets:
            here = np.flatnonzero(buckets == bucket)
            for places, piece, rows in self.state.logs[int(bucket)].located(offsets[here]):
                yield Pick(int(bucket), piece, here[places], rows)


class LocatedRows:
    """Rows that were located; as many are read as an answer holds."""

    def __init__(self, shape: AnswerShape, offsets: Ints, picks: Sequence[Pick]) -> None:
        self._shape, self.offsets, self._picks = shape, offsets, picks

    @cached_property
    def _every(self) -> Sequence[FetchedRows]:
        return list(self._fetched(self._picks))

    def _fetched(self, picks: Sequence[Pick]) -> Iterator[FetchedRows]:
        """The rows of these picks, grouped by version, and by bucket if the answer shows it."""
        alike: dict[tuple[int, int], list[Pick]] = {}
        by_bucket = LAKE_BUCKET in self._shape.columns
        for pick in picks:
            alike.setdefault((pick.piece.schema_id, pick.bucket if by_bucket else 0), []).append(pick)
        for (version, _), same in alike.items():
            yield from fetched(same, self._shape.wanted(version))

    def fitting(self, bytes_max: int) -> int:
        """The number of first rows that take at most `bytes_max` together; at least one."""
        if len(self.offsets) <= 1:
            return len(self.offsets)
        sizes = np.empty(len(self.offsets), dtype=np.int64)
        for each in self._every:
            sizes[_places(each.picks)] = each.sizes()
        return max(int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")), 1)

    def rows(self, count: int) -> pa.RecordBatch:
        every = self._every if count == len(self.offsets) else list(self._fetched(list(_first(self._picks, count))))
        if not every:
            fields = self._shape.target.read_schema(list(self._shape.columns))
            return pa.RecordBatch.from_pylist([], schema=pa.schema([field.with_nullable(True) for field in fields]))
        shown = [self._shown(each) for each in every]
        places = _places([pick for each in every for pick in each.picks])
        return in_order(shown[0] if len(shown) == 1 else pa.concat_batches(shown), places)

    def _shown(self, fetched: FetchedRows) -> pa.RecordBatch:
        shape, picks = self._shape, fetched.picks
        batch, places = fetched.batch(), _places(picks)
        times = np.zeros(len(places), dtype=np.int64)
        if LAKE_TIMESTAMP in shape.columns:
            logs = shape.state.logs
            times = np.concatenate([logs[pick.bucket].times_at(self.offsets[pick.places]) for pick in picks])
        version = picks[0].piece.schema_id
        change = batch.column(0).to_numpy() if shape.is_change_shown else np.zeros(len(places), dtype=np.int8)
        rows = reads.Rows(batch, self.offsets[places], times, change, version)
        return reads.project(
            shape.state.versions.projection(version, shape.target), rows, shape.columns, picks[0].bucket
        )


def _places(picks: Sequence[Pick]) -> Ints:
    return picks[0].places if len(picks) == 1 else np.concatenate([pick.places for pick in picks])


def _first(picks: Sequence[Pick], count: int) -> Iterator[Pick]:
    for pick in picks:
        kept = pick.places < count
        if kept.any():
            yield pick.among(kept)


FORMS_MAX = 1_024
"""Tables, and column lists of one table, whose forms are cached."""
KEY_BYTES_MAX = keys.WHOLE_BYTES_MAX - PREFIX_BYTES
"""Longer keys are hashed in the index and compared with the rows."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one version for one list of columns."""

    places: list[int]
    """Positions of the columns in stored batches."""
    schema: pa.Schema
    head: bytes
    """The schema's message."""
    nothing: bytes
    """The answer for a missing key."""
    nothing_crc: int
    no_row: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class KeyForm:
    """One version of a table in the form for look-ups of one key."""

    table: Table
    code: KeyCode | None
    prefix: bytes
    number_width: int | None
    """Bytes of keys that are numbers in the index."""
    answers: dict[tuple[str, ...], _Answers] = field(default_factory=dict)

    @staticmethod
    def from_table(table: Table) -> KeyForm:
        kinds = [table.column(name).arrow.type for name in table.primary_key]
        width = keys.number_width(kinds) if kinds else None
        return KeyForm(table, KeyCode.of(table), table_prefix(table.number), width)

    def coded(self) -> KeyCode:
        """The code of the table's keys, or `Invalid`."""
        if self.code is None:
            raise Invalid(f"keys of table {self.table.name} are sent as rows, in `keys`: `key` takes numbers and texts")
        return self.code

    def batch(self, key: bytes) -> pa.RecordBatch:
        """The key as a row, or `Invalid`."""
        code = self.coded()
        return code.batch(code.split(key))

    def index_keys(self, key: bytes) -> IndexKeys:
        if self.number_width is None:
            return ByteKeys((self.prefix + key,))
        number = np.array((int.from_bytes(key, "big"),), dtype=np.uint64)
        return NumberKeys(self.prefix, self.number_width, number)

    def answered(self, columns: Sequence[str]) -> _Answers | None:
        """The answers for these columns (by default all); None for system columns."""
        asked = tuple(columns)
        found = self.answers.get(asked)
        if found is None:
            found = self._made(asked)
            if found is not None and len(self.answers) < FORMS_MAX:
                self.answers[asked] = found
        return found

    def _made(self, columns: tuple[str, ...]) -> _Answers | None:
        if not SYSTEM_TYPES.keys().isdisjoint(columns):
            return None
        names = self.table.selected(columns)
        stored = stored_schema(self.table)
        places = [stored.get_field_index(name) for name in names]
        schema = pa.schema([pa.field(name, stored.field(at).type) for name, at in zip(names, places, strict=True)])
        head = bytes(schema.serialize())
        none = pa.RecordBatch.from_pylist([], schema=schema)
        nothing = b"".join((head, none.serialize(), STREAM_END))
        return _Answers(places, schema, head, nothing, crc32c(nothing), none)


class KeyForms:
    """The forms of recently used tables. Thread-safe."""

    def __init__(self) -> None:
        self._forms: dict[str, KeyForm] = {}

    def form_of(self, table: Table) -> KeyForm:
        """The form of a table's version."""
        form = self._forms.get(table.uuid)
        if form is None or form.table is not table:
            if len(self._forms) >= FORMS_MAX:
                self._forms = {}
            form = self._forms[table.uuid] = KeyForm.from_table(table)
        return form


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The row of one key at the newest commit."""

    view: View
    table: Table
    answers: _Answers
    stored: pa.RecordBatch | None = None
    """The batch with the row; None for a missing key."""
    place: int = 0
    """The row's place in the batch."""

    @property
    def schema(self) -> pa.Schema:
        """The columns in stored types; the same object for every row of a version."""
        return self.answers.schema

    def batch(self) -> pa.RecordBatch:
        """The row, or no row, in stored types."""
        if self.stored is None:
            return self.answers.no_row
        return self.stored.select(self.answers.places).slice(self.place, 1)

    def values(self) -> list[pa.Scalar]:
        """The values of the row, in half the time of `batch`."""
        stored, place = self.stored, self.place
        return [] if stored is None else [stored.column(at)[place] for at in self.answers.places]

    def message(self, bytes_max: int) -> pb.RowBatch | None:
        """The row as an answer; None if it takes more than so many bytes."""
        answers = self.answers
        data, crc = answers.nothing, answers.nothing_crc
        if self.stored is not None:
            data = b"".join((answers.head, self.batch().serialize(), STREAM_END))
            if len(data) > bytes_max:
                return None
            crc = crc32c(data)
        return pb.RowBatch(rows=data, crc32c=crc, schema_id=self.table.schema_id, token=self.view.token(), answered=1)


def row_of(engine: Engine, form_of: Callable[[Table], KeyForm], request: pb.LookupRequest) -> KeyRow | None:
    """The row of a request for one whole key; None if it needs the general path."""
    key, table = request.key, engine.view.meant(request.table, request.table_uuid).table
    is_older = request.HasField("schema_id") and request.schema_id != table.schema_id
    if request.at or is_older or len(key) > KEY_BYTES_MAX:
        return None
    form = form_of(table)
    code, answers = form.coded(), form.answered(request.columns)
    if answers is None:
        return None
    bucket = code.bucket(key, code.split(key))
    found = _live_offset(engine, table, form.index_keys(key))
    if found is None:
        return None
    view, offset = found
    if offset < 0:
        return KeyRow(view, table, answers)
    piece, row = view.by_uuid(table.uuid).logs[bucket].place_of(offset)
    if piece.schema_id != table.schema_id:
        return None
    stored = piece.load_rows(np.array((row,)), None)
    return KeyRow(view, table, answers, stored, row)


def _live_offset(engine: Engine, table: Table, wanted: IndexKeys) -> tuple[View, int] | None:
    """(view, the key's live offset or a negative number) at one moment; None if the table or the index changed."""
    index = engine.index
    with index.lock:
        view = engine.view
        reading = index.begin(wanted)
    held = view.tables.get(table.uuid)
    if held is None or held.table is not table:
        return None
    try:
        value = int(index.finish(reading)[0])
    except Unavailable:
        return None
    return view, value if value < FLAG else -1


Ints = npt.NDArray[np.int64]
_ANSWER_BYTES = 1 << 10
"""Upper bound of an answer's bytes besides its rows: token, prefix and frames."""


@dataclass(frozen=True, slots=True)
class LookupKeys:
    """The keys of a request, in the table's names and types."""

    columns: list[pa.Array]
    """The columns of the primary key, or the first of them, in the key's order."""
    bucket_columns: list[pa.Array]
    is_whole: bool

    @staticmethod
    def from_request(state: TableState, request: pb.LookupRequest, batch: pa.RecordBatch, limits: Limits) -> LookupKeys:
        """The keys of a request, conformed to the current version; `Invalid` if they are no leading part of the key."""
        table, source = state.table, _source(state, request)
        if not table.keyed:
            raise Invalid(f"table {table.name} has no primary key to look up")
        if source.schema_id == table.schema_id and _fits(batch, table):
            columns = dict(zip(table.primary_key, batch.columns, strict=True))
            return LookupKeys(batch.columns, [columns[name] for name in table.bucket_key], True)
        named = [name for name in source.primary_key if name in batch.schema.names]
        given = rename_columns(batch.select(named), source, table)
        is_whole = len(named) == len(table.primary_key)
        names = table.primary_key if is_whole else _leading(table, given, batch)
        conformed = ipc.conform(given, table, keys_only=True, limits=limits, only=names)
        columns = dict(zip(names, conformed.columns, strict=True))
        in_bucket_key = [columns[name] for name in table.bucket_key]
        return LookupKeys(conformed.columns, in_bucket_key, is_whole)

    def buckets(self, table: Table) -> npt.NDArray[np.int32]:
        return keys.buckets(self.bucket_columns, table.buckets)


class _RequestedKeys:
    """A request, and its keys conformed to the table's present version."""

    def __init__(self, request: pb.LookupRequest, batch: pa.RecordBatch, limits: Limits, uuid: str) -> None:
        """`uuid` is the table's if it must be checked; empty for a table of the past, which may have another one."""
        self.request, self.batch, self._limits, self._uuid = request, batch, limits, uuid
        self._table: Table | None = None
        self._keys: LookupKeys | None = None

    def keys(self, state: TableState) -> LookupKeys:
        if self._keys is None or self._table is not state.table:
            meant = state.meant(self._uuid)
            self._table, self._keys = (
                state.table,
                LookupKeys.from_request(meant, self.request, self.batch, self._limits),
            )
        return self._keys


class Lookups:
    """Rows by key. Thread-safe."""

    def __init__(self, engine: Engine, completeness: Completeness) -> None:
        self._engine, self._completeness = engine, completeness
        self._forms = KeyForms()

    def lookup(self, request: pb.LookupRequest) -> pb.RowBatch:
        """The rows of many keys, in the order of the keys; missing keys give no row."""
        engine = self._engine
        if request.at_least:
            reached(engine, parse_token(request.at_least, engine).lsn)
        if request.HasField("require"):
            at = lsn_at(engine, request.at, [request.table]) if request.at else None
            self._completeness.cut([request.table], at, request.require)
        if request.key:
            row = row_of(engine, self._forms.form_of, request)
            answer = row.message(engine.limits.message_bytes // 2) if row is not None else None
            return answer or self._asked(request, self._one_key(request))
        return self._asked(request, ipc.decode(request.keys, limits=engine.limits))

    def row(self, request: pb.LookupRequest) -> KeyRow | None:
        """The row of a request for one whole key, not encoded; None if only `lookup` answers the request."""
        return row_of(self._engine, self._forms.form_of, request)

    def _one_key(self, request: pb.LookupRequest) -> pa.RecordBatch:
        source = _source(self._engine.view.meant(request.table, request.table_uuid), request)
        return KeyForm.from_table(source).batch(request.key)

    def _asked(self, request: pb.LookupRequest, wanted: pa.RecordBatch) -> pb.RowBatch:
        engine = self._engine
        cut = lsn_at(engine, request.at, [request.table]) if request.at else None
        if cut is not None:
            reached(engine, cut)
        state = engine.view.meant(request.table, request.table_uuid)
        asking = _RequestedKeys(request, wanted, engine.limits, request.table_uuid if cut is None else "")
        is_whole = asking.keys(state if cut is None else swaps.state_at(engine.view, state, cut)).is_whole
        return (self._whole if is_whole else self._leading)(asking, cut)

    def _whole(self, asking: _RequestedKeys, cut: int | None) -> pb.RowBatch:
        def encode(state: TableState) -> KeyQuery:
            columns = asking.keys(state).columns
            return KeyQuery(encoded(columns, table_prefix(state.table.number)), lambda: columns)

        view, offsets = plan.of_keys(self._engine, asking.request.table, encode, cut=cut)
        state = view.named(asking.request.table)
        if cut is not None:
            state = swaps.state_at(view, state, cut)
        wanted = asking.keys(state)
        if cut is not None:
            check_created(state, cut)
            readable_from.check_readable(view, [state], cut)
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
        """An answer for the first prefixes; None if `keys_most` keys of the first one are not enough."""
        request = asking.request

        def ask(state: TableState) -> Leading:
            wanted = asking.keys(state)
            return Leading.from_columns(state, wanted.columns, wanted.buckets(state.table), request.after, prefixes)

        live = plan.of_ranges(self._engine, request.table, ask, keys_most, cut)
        state = swaps.state_at(live.view, live.view.named(request.table), cut)
        if cut is not None:
            check_created(state, cut)
            readable_from.check_readable(live.view, [state], cut)
        shape = self._shape(state, request, cut)
        candidates = live.question.candidates(state, live.ranges, cut)
        if candidates is None:
            return None
        located = shape.located(candidates.page.buckets, candidates.page.offsets)
        page = candidates.first(self._fitting(located, request))
        found = located.rows(len(page.offsets))
        return self._answer(found, shape, page.answered, page.next, live.view.lsn if cut is None else cut)

    def _shape(self, state: TableState, request: pb.LookupRequest, cut: int | None) -> AnswerShape:
        target = state.table if cut is None else state.versions.at(cut)
        return AnswerShape.from_columns(state, target, _columns(list(request.columns), _source(state, request), target))

    def _fitting(self, located: LocatedRows, request: pb.LookupRequest) -> int:
        """The number of rows that fit into the answer; `Invalid` if all must fit and do not."""
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
            raise request.unsendable(found, shape.target, self._engine.limits.message_bytes)
        answer.schema_id = shape.target.schema_id
        answer.token = self._engine.view.token(lsn)
        answer.answered, answer.next = answered, following
        return answer


def check_created(state: TableState, lsn: int) -> None:
    """Refuse a cut that is older than the table."""
    if state.created_lsn > lsn:
        raise Invalid(f"table {state.table.name} did not exist at this position")


def _fits(batch: pa.RecordBatch, table: Table) -> bool:
    if batch.schema.names != list(table.primary_key):
        return False
    wanted = (table.column(name).arrow.type for name in table.primary_key)
    return all(c.type == kind and not c.null_count for c, kind in zip(batch.columns, wanted, strict=True))


def _source(state: TableState, request: pb.LookupRequest) -> Table:
    """The version whose names the request uses."""
    return state.versions.numbered(request.schema_id) if request.HasField("schema_id") else state.table


def _leading(table: Table, given: pa.RecordBatch, batch: pa.RecordBatch) -> tuple[str, ...]:
    """The leading part of the primary key with these columns, or `Invalid`."""
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
    """Names of columns in the request's version, or else in the answer's, in the answer's names."""
    if source.schema_id == target.schema_id or not names:
        return target.selected(names)
    ids = {column.name: column.id for column in (*target.columns, *source.columns)}
    known = {column.id: column.name for column in target.columns}
    for name in names:
        if name not in SYSTEM_TYPES and ids.get(name) not in known:
            check_present({ids.get(name, 0)}, source, target)
            target.column(name)
    return [name if name in SYSTEM_TYPES else known[ids[name]] for name in names]
