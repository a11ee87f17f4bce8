"""Commit records and checkpoints of random content, and one table that samples of them are of."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st

from lakestore.model.table import define
from lakestore.model.token import Place
from lakestore_server.files.checkpoint import Checkpoint, DroppedEntry, TableEntry
from lakestore_server.files.segment_files import SegmentFile
from lakestore_server.state.catalog_change import (
    CatalogChange,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
    TierRecord,
)
from lakestore_server.state.chunk import Position
from lakestore_server.state.commit_record import (
    Answer,
    ChangeResult,
    CommitRecord,
    KeySlot,
    LogStart,
    ProducerCommit,
    ProducerDrop,
    RegistersDrop,
    RegistersMove,
    RegistersOpen,
    Rename,
    RowsPart,
    Shelving,
    TiererClaim,
    Truncation,
    Undrop,
)
from lakestore_server.state.producers import FrozenProducers, ProducerState
from lakestore_server.state.registers import Register
from lakestore_server.state.rescale import CopyKind, FormerTable, Rescale, RescaleEnd, Swap
from lakestore_server.state.state import Origin
from lakestore_server.state.subscription import (
    Mark,
    MovedMark,
    Refusal,
    Subscription,
    SubscriptionDrop,
    SubscriptionMove,
)
from lakestore_server.state.view import Versions

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
TABLE = replace(
    define(
        "shop.orders", pa.schema([pa.field("id", pa.int64(), False), SCHEMA.field(1)]), primary_key=["id"], buckets=2
    ),
    uuid="u-1",
    number=7,
)
DEFINITION_TEXT = (
    '{"name":"shop.orders","columns":[{"id":1,"name":"id","type":"int64","required":true},'
    '{"id":2,"name":"note","type":"string","required":false}],"primary_key":["id"],"buckets":2,"bucket_key":["id"],'
    '"merge":"upsert","lake":{"freshness":"1m","partition_by":[],"sort_by":[],"format_version":2,'
    '"target_file_bytes":134217728},"uuid":"u-1","number":7,'
)
"""The JSON of TABLE up to its schema version, as earlier releases wrote it."""

NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 2**53)
SUMS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 5)


def tuples(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


BATCHES = st.lists(st.tuples(COUNTS, st.none() | NAMES), max_size=4).map(
    lambda rows: pa.record_batch([[id_ for id_, _ in rows], [note for _, note in rows]], schema=SCHEMA)
)
SLOTS = st.lists(st.builds(KeySlot, COUNTS, COUNTS, is_link=st.booleans()), max_size=3)
PARTS = st.builds(RowsPart, NAMES, SMALL, COUNTS, BATCHES, SUMS, COUNTS, SMALL, SLOTS)
RESULTS = st.builds(ChangeResult, NAMES, *[COUNTS] * 4, SMALL, *[st.just(0) | COUNTS] * 3)
PRODUCERS = st.one_of(
    st.builds(ProducerCommit, NAMES, COUNTS, COUNTS, tuples(RESULTS), NAMES, NAMES, st.booleans()),
    st.builds(ProducerDrop, NAMES),
)
TABLES = st.builds(
    lambda uuid, number, schema_id, deletes: replace(
        TABLE, uuid=uuid, number=number, schema_id=schema_id, deletes=deletes
    ),
    NAMES,
    COUNTS,
    SMALL,
    st.sampled_from(["allow", "ignore", "refuse"]),
)
POINTERS = st.builds(Pointer, NAMES, NAMES)
TIERS = st.builds(
    TierRecord, SUMS, tuples(COUNTS), tuples(SUMS), COUNTS, COUNTS, st.none() | COUNTS, SMALL, st.booleans()
)
STEPS = st.one_of(
    st.builds(SetPointer, NAMES, NAMES, st.none() | NAMES, POINTERS, tuples(TIERS), tuples(COUNTS)),
    st.builds(DropPointer, NAMES, NAMES),
    st.builds(SetNamespace, NAMES, st.dictionaries(NAMES, NAMES, max_size=2)),
    st.builds(DropNamespace, NAMES),
)
MARKS = st.builds(Mark, COUNTS, st.just(-1) | COUNTS, COUNTS, COUNTS)
REFUSALS = st.builds(Refusal, SMALL, SMALL, COUNTS, COUNTS)
ROW_OF_MARKS = st.lists(MARKS, min_size=1, max_size=3).map(tuple)
WHOLE_SUBSCRIPTIONS = st.builds(
    Subscription,
    NAMES,
    tuples(NAMES),
    COUNTS,
    st.none() | st.builds(Place, NAMES, SMALL, COUNTS),
    COUNTS,
    COUNTS,
    tuples(ROW_OF_MARKS),
    tuples(REFUSALS),
)
SUBSCRIPTIONS = st.one_of(
    WHOLE_SUBSCRIPTIONS,
    st.builds(SubscriptionMove, NAMES, COUNTS, tuples(st.builds(MovedMark, SMALL, SMALL, MARKS)), tuples(REFUSALS)),
    st.builds(SubscriptionDrop, NAMES),
)
REGISTERS = st.one_of(
    st.builds(RegistersOpen, tuples(NAMES), COUNTS, NAMES),
    st.builds(RegistersMove, tuples(NAMES), tuples(NAMES), COUNTS),
    st.builds(RegistersDrop, tuples(NAMES)),
)
RESCALES = st.builds(Rescale, NAMES, NAMES, tuples(COUNTS), tuples(COUNTS), st.sampled_from(CopyKind))
FORMER = tuples(st.builds(FormerTable, NAMES, COUNTS, COUNTS, st.booleans()))
RECORDS = st.builds(
    CommitRecord,
    COUNTS,
    COUNTS,
    st.lists(PARTS, max_size=3),
    st.lists(PRODUCERS, max_size=2),
    st.lists(TABLES, max_size=2),
    st.lists(TABLES, max_size=2),
    st.lists(NAMES, max_size=2),
    st.lists(st.builds(CatalogChange, tuples(STEPS), NAMES), max_size=2),
    st.none() | st.builds(TiererClaim, COUNTS, NAMES),
    st.lists(st.builds(LogStart, NAMES, COUNTS), max_size=2),
    st.lists(SUBSCRIPTIONS, max_size=3),
    registers=st.lists(REGISTERS, max_size=3),
    rename=st.lists(st.builds(Rename, NAMES, NAMES), max_size=2),
    truncate=st.lists(st.builds(Truncation, NAMES, COUNTS), max_size=2),
    shelve=st.lists(st.builds(Shelving, NAMES, COUNTS), max_size=2),
    undrop=st.lists(st.builds(Undrop, NAMES, NAMES), max_size=2),
    rescale=st.lists(st.one_of(RESCALES, st.builds(RescaleEnd, NAMES)), max_size=2),
    swap=st.lists(st.builds(Swap, NAMES, NAMES, COUNTS, st.booleans()), max_size=2),
)

SEGMENT_FILES = st.builds(SegmentFile, NAMES, COUNTS)
POSITIONS = st.builds(Position, COUNTS, SUMS, COUNTS, COUNTS, COUNTS)
VERSIONS = st.lists(st.tuples(COUNTS, TABLES), min_size=1, max_size=2).map(
    lambda held: Versions(tuple(lsn for lsn, _ in held), tuple(table for _, table in held))
)
BUCKETS = st.lists(st.tuples(tuples(SEGMENT_FILES), POSITIONS), min_size=1, max_size=3)
ENTRIES = st.builds(
    lambda versions, lsn, time_us, tiers, buckets, truncated, former: TableEntry(
        versions,
        lsn,
        time_us,
        tiers,
        tuple(files for files, _ in buckets),
        tuple(base for _, base in buckets),
        truncated,
        former,
    ),
    VERSIONS,
    COUNTS,
    COUNTS,
    tuples(TIERS),
    BUCKETS,
    COUNTS,
    FORMER,
)
ANSWERS = st.dictionaries(COUNTS, st.builds(Answer, COUNTS, tuples(RESULTS)), max_size=2)
CHECKPOINTS = st.builds(
    Checkpoint,
    NAMES,
    st.none() | st.builds(Origin, NAMES, COUNTS, COUNTS),
    COUNTS,
    COUNTS,
    COUNTS,
    st.builds(
        FrozenProducers,
        st.dictionaries(
            NAMES,
            st.builds(
                ProducerState, COUNTS, COUNTS, NAMES, ANSWERS, NAMES, st.booleans(), COUNTS, COUNTS.map(lambda n: n + 1)
            ),
            max_size=2,
        ),
        st.dictionaries(NAMES, COUNTS, max_size=2),
    ),
    st.builds(TiererClaim, COUNTS, NAMES),
    tuples(NAMES),
    st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=2), max_size=2),
    st.dictionaries(st.tuples(NAMES, NAMES), POINTERS, max_size=2),
    tuples(WHOLE_SUBSCRIPTIONS),
    tuples(ENTRIES),
    rescales=tuples(RESCALES),
    dropped=tuples(st.builds(DroppedEntry, ENTRIES, COUNTS, COUNTS, COUNTS)),
    registers=st.dictionaries(NAMES, st.builds(Register, COUNTS, NAMES, NAMES, COUNTS, COUNTS), max_size=3),
)
