"""The gate: a verdict on a commit to one of our tables, from old and new metadata and the ledger's knowledge. Pure.

The rules look at the difference of the metadata, not at the request.

- Main moves only over our tier commits and over `replace` snapshots that keep the live rows, one after the other.
- A snapshot may expire unless main, a pin or a lease holds it.
- Other branches and tags, statistics and most properties are free. `lakestore` commands change schema, layout and
  place.
- A refusal is 403, because a retry would not help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from lakestore.errors import Fenced
from lakestore.model.columns import OURS_ONLY
from lakestore.model.table import Table
from lakestore_server.catalog import foreign_commits, locations, metadata, our_tables, schemas
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import TierRecord
from lakestore_server.state.chunk import Position

TIER_TAG = "lakestore-tier"
PIN_PREFIX = "lakestore-pin-"
TIER_POINT, TIER_FROM = "lakestore.tier-point", "lakestore.tier-from"
EPOCH, LSN, LIVE_SUM = "lakestore.epoch", "lakestore.lsn", "lakestore.live-sum"
SCHEMA_ID = "lakestore.schema-id"
NUMBERED_ON = "lakestore.numbered-on"
ERASURE = "lakestore.erasure"
"""In the tier commit that deletes the rows of an erasure from a log table: its id."""
SOURCE = "source-snapshot-id"
"""Iceberg's key for the snapshot from which a landing took its files."""
_TIER_OPERATIONS = ("append", "overwrite", "delete")
_FIXED = {
    "table-uuid": "lake.drop_table",
    "format-version": "lakestore apply",
    "location": "lakestore apply",
    "encryption-keys": "lakestore apply",
}


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The ledger's knowledge of a table, read before the verdict."""

    records: Mapping[int, TierRecord]
    epoch: int
    """Epoch of the current tierer."""
    pinned: frozenset[int]
    """Snapshots held by leases."""
    live_sums_at: Callable[[tuple[int, ...]], tuple[int, ...] | None]
    """Live sums at a tier point; None unless it is a commit end."""
    live_rows_at: Callable[[tuple[int, ...]], int | None]
    """Number of live rows at a tier point; None unless it is a commit end."""
    versions: Mapping[int, Table]
    is_settled: bool = False
    """Whether the commits are made already, in an outside catalog. Then no epoch fences them, and properties and tags
    are as they are there."""
    is_foreign: bool = False
    """Whether another engine sends the commit, and not the tierer."""
    erasure: str = ""
    """The id of the erasure whose rows the lake of a log table must lose now."""
    erased: tuple[Position, ...] = ()
    """By bucket: the sum and number of these rows."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The changes of tier records to journal with the pointer move."""

    tiers: tuple[TierRecord, ...] = ()
    forget: tuple[int, ...] = ()
    moves_main: bool = False
    erasure: str = ""
    """The erasure whose rows a log table loses by the commit."""


def landing(updates: Iterable[Json], versions: Mapping[int, Table]) -> Table | None:
    """The version that a tier commit brings into the lake; None for other commits."""
    for update in updates:
        if update.get("action") == "add-snapshot":
            snapshot = update.get("snapshot")
            summary = snapshot.get("summary") if isinstance(snapshot, dict) else None
            text = str(summary.get(SCHEMA_ID, "")) if isinstance(summary, dict) and TIER_POINT in summary else ""
            if text.isascii() and text.isdecimal():
                return versions.get(int(text))
    return None


def staged_for(old: Json, new: Json, known: Knowledge) -> set[int]:
    """Staged snapshots whose files landed in main with this commit and that no ref or lease holds."""
    kept = {ref["snapshot-id"] for ref in new["refs"].values()} | known.pinned | known.records.keys()
    main = {snapshot["snapshot-id"] for snapshot in metadata.ancestry(new, metadata.main_of(new))}
    gone: set[int] = set()
    for landed in _landed(old, new):
        source = str((landed.get("summary") or {}).get(SOURCE, ""))
        if _is_tier(landed) and source.isascii() and source.isdecimal():
            for snapshot in metadata.ancestry(new, int(source)):
                if snapshot["snapshot-id"] in kept | main:
                    break
                gone.add(snapshot["snapshot-id"])
    return gone


def judge(table: Table, old: Json, new: Json, known: Knowledge) -> Verdict:
    """The verdict on a commit that turns `old` into `new`; or `Forbidden` or `Fenced`."""
    if known.is_foreign:
        table.refuse_change()
        foreign_commits.check_policy(table, old, new)
    if table.is_adopting:
        raise Forbidden(f"table {table.name} takes the rows of an adoption and is not tiered")
    tiers = _main_moves(table, old, new, known)
    landed = _landed(old, new)
    tiered = any(_is_tier(snapshot) for snapshot in landed)
    _check_fixed(table, old, new)
    _check_layout(table, old, new, tiers, known)
    _check_version(table, old, new, tiers, known)
    if not known.is_settled:
        _check_properties(table, old, new, tiered, known)
        _check_refs(table, old, new, tiered or (not known.is_foreign and _tags_main(old, new)))
    forget = _check_expiry(table, old, new, known)
    gone = set(forget)
    return Verdict(
        tiers=tuple(record for record in tiers if record.snapshot_id not in gone),
        forget=forget,
        moves_main=metadata.main_of(old) != metadata.main_of(new),
        erasure=next((known.erasure for each in landed if _erases(each, known)), ""),
    )


def _is_tier(snapshot: Json) -> bool:
    return TIER_POINT in (snapshot.get("summary") or {})


def _erases(snapshot: Json, known: Knowledge) -> bool:
    """Whether a tier commit deletes the rows of the erasure that waits for it."""
    said = (snapshot.get("summary") or {}).get(ERASURE)
    return bool(known.erasure) and said == known.erasure and _is_tier(snapshot)


def _landed(old: Json, new: Json) -> list[Json]:
    """Snapshots from old main (excluded) to new main, oldest first; empty unless new main descends from old main."""
    start = metadata.main_of(old)
    above = takewhile(lambda each: each["snapshot-id"] != start, metadata.ancestry(new, metadata.main_of(new)))
    path = list(above)
    return path[::-1] if path and path[-1].get("parent-snapshot-id") == start else []


def _main_moves(table: Table, old: Json, new: Json, known: Knowledge) -> list[TierRecord]:
    start, end = metadata.main_of(old), metadata.main_of(new)
    if start == end:
        return []
    if end is None:
        raise Forbidden(
            f"branch main of {table.name} cannot be removed; drop the table with `lake.drop_table('{table.name}')`"
        )
    current = known.records.get(start) if start is not None else None
    if end in metadata.snapshot_ids(old):
        _check_jump(table, current, known.records.get(end))
        return []
    return _climb(table, old, new, current, known)


def _check_jump(table: Table, current: TierRecord | None, wanted: TierRecord | None) -> None:
    if wanted is None:
        raise Forbidden(
            f"main of {table.name} cannot move to a snapshot that Lakestore did not tier; "
            "write rows through Lakestore, or run the compaction on main"
        )
    if current is not None and any(a < b for a, b in zip(wanted.tier_point, current.tier_point, strict=True)):
        raise Forbidden(
            f"main of {table.name} cannot go back below its tier point; read the old state with `lake.at(token).sql(…)`"
        )


def _climb(table: Table, old: Json, new: Json, current: TierRecord | None, known: Knowledge) -> list[TierRecord]:
    path = _landed(old, new)
    had = metadata.snapshot_ids(old)
    # A snapshot that was already there on a branch was judged by the looser rules of branches.
    if not path or any(snapshot["snapshot-id"] in had for snapshot in path):
        raise Forbidden(
            f"main of {table.name} takes only snapshots made directly upon it; "
            "rows of a branch are written through Lakestore"
        )
    records: list[TierRecord] = []
    below = metadata.snapshot_of(old, metadata.main_of(old))
    for snapshot in path:
        current = _record(table, new, below, snapshot, current, known)
        records.append(current)
        below = snapshot
    return records


def _record(
    table: Table, new: Json, below: Json | None, snapshot: Json, current: TierRecord | None, known: Knowledge
) -> TierRecord:
    """The tier record of one new snapshot of main, directly on top of `below`. A tier commit brings its own record,
    which is compared with the log. A `replace` keeps the live rows and inherits the record below; if it changed rows,
    the next tier commit would start from a state that no log has."""
    operation = (snapshot.get("summary") or {}).get("operation")
    if _is_tier(snapshot) and operation in _TIER_OPERATIONS:
        return _tier_record(table, snapshot, current, known)
    if operation == "replace" and below is not None and current is not None:
        if table.lake.adopted and not current.is_numbered and not _is_tier(snapshot):
            _check_numbers_stay(table, snapshot)
        live = current.live_rows if current.live_rows is not None else known.live_rows_at(current.tier_point)
        if table.lake.committers == OURS_ONLY and not _is_tier(snapshot):
            raise Forbidden(f"a rewrite of {table.name} has no tier point, and lake.committers is {OURS_ONLY}")
        _check_kept(table, new, (below, snapshot), live)
        if not _is_tier(snapshot):
            return replace(current, snapshot_id=snapshot["snapshot-id"])
        own = _tier_record(table, snapshot, current, known)
        _check_stands(table, own, current)
        return replace(current, snapshot_id=own.snapshot_id, is_numbered=own.is_numbered)
    raise Forbidden(foreign_commits.row_sentence(table, snapshot))


def _check_numbers_stay(table: Table, snapshot: Json) -> None:
    """Refuse another engine's rewrite of data files: it would write rows of adopted files without their numbers."""
    summary = snapshot["summary"]
    if any(str(summary.get(key, "0")) != "0" for key in ("added-data-files", "deleted-data-files")):
        raise Forbidden(
            f"data files of {table.name} were adopted and have no columns for row numbers, so another engine cannot"
            " rewrite them until `lakestore tier` has compacted the last one; manifests and position deletes may be"
            " rewritten"
        )


def _numbers(table: Table, summary: Json, key: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(text) for text in json.loads(summary[key]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Forbidden(f"the tier commit to {table.name} has no readable {key} in its summary") from error
    if len(numbers) != table.buckets:
        raise Forbidden(f"{key} of a tier commit to {table.name} names {len(numbers)} buckets, not {table.buckets}")
    return numbers


def _tier_record(table: Table, snapshot: Json, current: TierRecord | None, known: Knowledge) -> TierRecord:
    summary = snapshot["summary"]
    try:
        epoch, lsn, schema_id = int(summary[EPOCH]), int(summary[LSN]), int(summary[SCHEMA_ID])
    except (KeyError, ValueError) as error:
        wanted = f"{EPOCH}, {LSN} and {SCHEMA_ID}"
        raise Forbidden(f"the tier commit to {table.name} has no readable {wanted} in its summary") from error
    if epoch != known.epoch and not known.is_settled:
        raise Fenced(f"the tierer of epoch {epoch} was replaced by epoch {known.epoch}: stop it")
    # Two tierers, or one that was paused, start from the same point: the second finds main moved.
    start, point = _numbers(table, summary, TIER_FROM), _numbers(table, summary, TIER_POINT)
    stands = current.tier_point if current else (0,) * table.buckets
    if start != stands:
        raise Fenced(f"a tier commit to {table.name} starts at {list(start)}, main is at {list(stands)}: plan again")
    if any(a > b for a, b in zip(start, point, strict=True)):
        raise Forbidden(f"a tier commit to {table.name} ends below its start {list(start)}")
    # The sums prove that lake and log hold the same live rows: a tierer that lost or doubled a row is refused.
    sums, wanted_sums, live = _numbers(table, summary, LIVE_SUM), known.live_sums_at(point), known.live_rows_at(point)
    if _erases(snapshot, known) and wanted_sums is not None and live is not None:
        pairs = zip(wanted_sums, known.erased, strict=True)
        wanted_sums = tuple((total - gone.live_sum) % (1 << 64) for total, gone in pairs)
        live -= sum(gone.live_rows for gone in known.erased)
    if sums != wanted_sums:
        raise Forbidden(
            f"a tier commit to {table.name} at {list(point)} has other live rows than the log; "
            f"run `lakestore verify {table.name}`"
        )
    if schema_id not in known.versions or (current is not None and schema_id < current.schema_id):
        raise Forbidden(f"a tier commit to {table.name} is of version {schema_id} of its schema, which is not known")
    numbered = is_numbered(snapshot, current)
    return TierRecord(snapshot["snapshot-id"], point, sums, lsn, known.epoch, live, schema_id, numbered)


def is_numbered(snapshot: Json, below: TierRecord | None) -> bool:
    """Whether no adopted file is left behind one of our commits. It says so itself, for the snapshot that it was made
    on; and a commit adds none."""
    on = snapshot["summary"].get(NUMBERED_ON)
    said = on is not None and on == str(snapshot.get("parent-snapshot-id"))
    return said or (below is not None and below.is_numbered)


def _check_stands(table: Table, record: TierRecord, current: TierRecord) -> None:
    """Fence our compaction if it was made for another state than main's: rows have died since that it does not know."""
    if record.tier_point != current.tier_point:
        raise Fenced(
            f"a compaction of {table.name} is for tier point {list(record.tier_point)}, "
            f"but main is at {list(current.tier_point)}: plan again"
        )


def _count(table: Table, snapshot: Json, key: str, *, default: str | None = None) -> int:
    try:
        return int(snapshot["summary"].get(key, default))
    except (KeyError, TypeError, ValueError) as error:
        raise Forbidden(f"snapshot {snapshot['snapshot-id']} of {table.name} does not say its {key}") from error


def _deletes(table: Table, snapshot: Json) -> int:
    return _count(table, snapshot, "total-position-deletes")


def _check_kept(table: Table, new: Json, step: tuple[Json, Json], live: int | None) -> None:
    """Refuse a rewrite that visibly loses rows or revives dead ones. Iceberg's v2 compaction drops dead rows but leaves
    their delete file to be cleaned later. So rows may go without deletes (never more than were dead), and later deletes
    without rows (never so many that dead rows revive). The number of dead rows follows from the live rows, or else from
    the kept history."""
    below, snapshot = step
    had, before = _count(table, below, "total-records"), _deletes(table, below)
    rows, deletes = had - _count(table, snapshot, "total-records"), before - _deletes(table, snapshot)
    equality = [_count(table, each, "total-equality-deletes", default="0") for each in step]
    dead, dangling = (had - live, before - (had - live)) if live is not None else (before, _dangling(table, new, below))
    kept = 0 <= rows <= dead and deletes <= rows + dangling
    if live is None:
        kept = rows == deletes or 0 <= deletes <= rows <= dead or 0 <= rows <= deletes <= rows + dangling
    if equality[0] != equality[1] or not kept:
        raise Forbidden(
            f"a rewrite of {table.name} must keep the live rows, but it takes {rows} rows "
            f"and {deletes} position deletes away; "
            f"leave compaction to `lakestore tier`"
        )


def _dangling(table: Table, new: Json, snapshot: Json) -> int:
    """Position deletes without a row that rewrites up to this snapshot left, as far as history is kept."""
    total = 0
    for each in metadata.ancestry(new, snapshot["snapshot-id"]):
        if (each.get("summary") or {}).get("operation") == "replace":
            rows = _change(table, each, "deleted-records", "added-records")
            total += rows - _change(table, each, "removed-position-deletes", "added-position-deletes")
    return max(0, total)


def _change(table: Table, snapshot: Json, gone: str, come: str) -> int:
    return _count(table, snapshot, gone, default="0") - _count(table, snapshot, come, default="0")


def _check_fixed(table: Table, old: Json, new: Json) -> None:
    for key, command in _FIXED.items():
        if (old.get(key) or None) != (new.get(key) or None):
            raise Forbidden(f"the {key} of {table.name} is fixed; use `{command}` instead")


def _check_layout(table: Table, old: Json, new: Json, tiers: Sequence[TierRecord], known: Knowledge) -> None:
    had = {schema["schema-id"] for schema in old["schemas"]}
    ours = [our_tables.schema_of(version) for version in known.versions.values()]
    for schema in new["schemas"]:
        if schema["schema-id"] not in had and not any(schemas.same_schema(schema, one) for one in ours):
            raise Forbidden(f"columns of {table.name} are changed with `lakestore apply -f tables.yaml`")
    stands = known.versions.get(tiers[-1].schema_id if tiers else schema_id_of(old, known.records), table)
    for key, items, number, is_ours, what, option in (
        ("default-spec-id", "partition-specs", "spec-id", our_tables.has_spec, "partitioning", "partition_by"),
        ("default-sort-order-id", "sort-orders", "order-id", our_tables.has_order, "sort order", "sort_by"),
    ):
        before = {item[number] for item in old[items]}
        added = [item for item in new[items] if item[number] not in before]
        default = next(item for item in new[items] if item[number] == new[key])
        known_to_us = all(any(is_ours(version, item) for version in known.versions.values()) for item in added)
        if not known_to_us or (old[key] != new[key] and not is_ours(stands, default)):
            raise Forbidden(
                f"the lake {what} of {table.name} is changed with `lakestore alter {table.name} --set"
                f" 'lake.{option}=[…]'` or `lakestore apply -f tables.yaml`"
            )


def _check_version(table: Table, old: Json, new: Json, tiers: Sequence[TierRecord], known: Knowledge) -> None:
    current, had = new["current-schema-id"], schema_id_of(old, known.records)
    stands = tiers[-1].schema_id if tiers else had
    landed = [snapshot for snapshot in _landed(old, new) if _is_tier(snapshot)]
    if any(snapshot.get("schema-id") != current for snapshot in landed):
        raise Forbidden(f"a tier commit to {table.name} was made with another schema than its files: plan again")
    if current == old["current-schema-id"] and stands == had:
        return
    schema = next(schema for schema in new["schemas"] if schema["schema-id"] == current)
    if stands not in known.versions or not schemas.same_schema(schema, our_tables.schema_of(known.versions[stands])):
        raise Forbidden(f"columns of {table.name} are changed with `lakestore apply -f tables.yaml`")


def schema_id_of(doc: Json, records: Mapping[int, TierRecord]) -> int:
    """The version of the lake table: the first until a tier commit brings another."""
    record = records.get(metadata.main_of(doc) or 0)
    return record.schema_id if record else 0


def _check_properties(table: Table, old: Json, new: Json, tiered: bool, known: Knowledge) -> None:
    before, after = old["properties"], new["properties"]
    ours = [our_tables.properties_of(version) for version in (table, *known.versions.values())]
    for key in before.keys() | after.keys():
        value = after.get(key)
        if before.get(key) == value or any(key in each and each[key] == value for each in ours):
            continue
        if key.startswith("lakestore."):
            if tiered and key != our_tables.UUID_PROPERTY:
                continue
            raise Forbidden(f"property {key} of {table.name} is Lakestore's own; use `lakestore apply -f tables.yaml`")
        if value is None and key not in ours[0]:
            continue  # set before the list existed
        if not locations.is_shared(key):
            raise Forbidden(
                f"property {key} of {table.name} cannot be set: how and where its files are written is Lakestore's"
                " (`lakestore apply -f tables.yaml`); comment, names without a dot and user.… are free"
            )
    if after != before:
        locations.check_size(after, f"table {table.name}")


def _tags_main(old: Json, new: Json) -> bool:
    """Whether a commit only moves the tier tag to main's snapshot, as the tierer does after a rewrite of manifests."""
    main, tag = metadata.main_of(old), new["refs"].get(TIER_TAG) or {}
    others = [{name: ref for name, ref in doc["refs"].items() if name != TIER_TAG} for doc in (old, new)]
    return tag.get("snapshot-id") == main == metadata.main_of(new) and others[0] == others[1]


def _check_refs(table: Table, old: Json, new: Json, tiered: bool) -> None:
    if tiered:
        return
    before, after = old["refs"], new["refs"]
    for name in before.keys() | after.keys():
        if (name == TIER_TAG or name.startswith(PIN_PREFIX)) and before.get(name) != after.get(name):
            raise Forbidden(
                f"tag {name} of {table.name} is Lakestore's own and moves with its tier commits; "
                "`lakestore tier` sets and removes it"
            )


def _check_expiry(table: Table, old: Json, new: Json, known: Knowledge) -> tuple[int, ...]:
    gone = metadata.snapshot_ids(old) - metadata.snapshot_ids(new)
    held = gone & known.pinned
    if held:
        raise Forbidden(
            f"snapshot {min(held)} of {table.name} is being read and cannot expire now; "
            "leave expiry to `lakestore tier`, or try again when the read is done"
        )
    for name, ref in old["refs"].items():
        if ref["snapshot-id"] in gone and name.startswith(PIN_PREFIX):
            raise Forbidden(f"snapshot {ref['snapshot-id']} of {table.name} is pinned by tag {name} and cannot expire")
    if metadata.main_of(old) in gone and metadata.main_of(new) == metadata.main_of(old):
        raise Forbidden(f"the current snapshot of {table.name} cannot expire")
    return tuple(sorted(gone & known.records.keys()))
