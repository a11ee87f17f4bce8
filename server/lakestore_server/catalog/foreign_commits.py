"""Classes of commits that other engines send to our tables, and the sentences that refuse them. Pure.

A commit that came under a version's name (`orders$3`) is the tierer's. A commit under the plain name is another
engine's. A table's option `lake.committers` says which classes the gate lets other engines commit.

| class | `ours_only` | `ours+maintenance` |
|---|---|---|
| append, delete, overwrite, rollback, schema, partitioning, sort order | refused | refused |
| rewrite | refused | adopted if the live rows stay |
| expiry, branch, tag, property, statistics | refused | adopted, unless Lakestore needs what they take |
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from lakestore.model.columns import OURS_ONLY, WITH_MAINTENANCE
from lakestore.model.table import Table
from lakestore_server.catalog import metadata
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.schemas import Json


class CommitClass(Enum):
    """A kind of change by another engine, in the words of a sentence."""

    APPEND = "append"
    DELETE = "delete"
    OVERWRITE = "overwrite"
    REWRITE = "rewrite of files"
    ROLLBACK = "rollback"
    BRANCH = "branch"
    TAG = "tag"
    SCHEMA = "change of columns"
    PARTITIONING = "change of partitioning"
    SORT_ORDER = "change of the sort order"
    EXPIRY = "snapshot expiry"
    PROPERTY = "change of properties"
    STATISTICS = "change of statistics"


_MAINTENANCE = {
    CommitClass.REWRITE: "`lakestore tier` compacts the table",
    CommitClass.EXPIRY: "`lakestore tier` expires its snapshots",
    CommitClass.BRANCH: "read a state of before with `lake.at(token)`",
    CommitClass.TAG: "read a state of before with `lake.at(token)`",
    CommitClass.PROPERTY: "its options are set with `lakestore alter`",
    CommitClass.STATISTICS: "Lakestore reads none",
}
"""Classes that `ours+maintenance` lets other engines commit, each with the way that `ours_only` leaves."""
_OPERATIONS = {
    "append": CommitClass.APPEND,
    "delete": CommitClass.DELETE,
    "overwrite": CommitClass.OVERWRITE,
    "replace": CommitClass.REWRITE,
}
_DONE = {"append": "written", "delete": "deleted", "overwrite": "changed"}
_STATISTICS = ("statistics", "partition-statistics")


def classes_of(old: Json, new: Json) -> list[CommitClass]:
    """The classes of a commit that turns `old` into `new`, the changes of rows first."""
    return list(dict.fromkeys(_classes(old, new)))


def _classes(old: Json, new: Json) -> Iterator[CommitClass]:
    had, start, end = metadata.snapshot_ids(old), metadata.main_of(old), metadata.main_of(new)
    if start != end:
        if end is None or end in had:
            yield CommitClass.ROLLBACK
        for snapshot in metadata.ancestry(new, end):
            if snapshot["snapshot-id"] in had:
                break
            yield _OPERATIONS.get(str((snapshot.get("summary") or {}).get("operation")), CommitClass.OVERWRITE)
    for key, kind in (
        ("schemas", CommitClass.SCHEMA),
        ("current-schema-id", CommitClass.SCHEMA),
        ("partition-specs", CommitClass.PARTITIONING),
        ("default-spec-id", CommitClass.PARTITIONING),
        ("sort-orders", CommitClass.SORT_ORDER),
        ("default-sort-order-id", CommitClass.SORT_ORDER),
    ):
        if old[key] != new[key]:
            yield kind
    yield from _of_refs(old["refs"], new["refs"])
    if had - metadata.snapshot_ids(new):
        yield CommitClass.EXPIRY
    if old["properties"] != new["properties"]:
        yield CommitClass.PROPERTY
    if any((old.get(key) or []) != (new.get(key) or []) for key in _STATISTICS):
        yield CommitClass.STATISTICS


def _of_refs(old: Json, new: Json) -> Iterator[CommitClass]:
    for name in sorted(old.keys() | new.keys()):
        if name != metadata.MAIN and old.get(name) != new.get(name):
            kind = (new.get(name) or old[name])["type"]
            yield CommitClass.TAG if kind == "tag" else CommitClass.BRANCH


def check_policy(table: Table, old: Json, new: Json) -> None:
    """`Forbidden` for another engine's commit if the table takes only Lakestore's. The gate refuses the classes that no
    policy lets in, with sentences of its own."""
    if table.lake.committers != OURS_ONLY:
        return
    found = classes_of(old, new)
    for kind in found:
        if kind in _MAINTENANCE and found[0] in _MAINTENANCE:
            raise Forbidden(
                f"{table.name} takes no {kind.value} of other engines (lake.committers={OURS_ONLY}):"
                f" {_MAINTENANCE[kind]}; `lakestore alter {table.name} --set lake.committers={WITH_MAINTENANCE}`"
                " lets other engines maintain it"
            )


def row_sentence(table: Table, snapshot: Json) -> str:
    """Why a snapshot with other rows is refused, with the way that its engine has instead."""
    summary = snapshot.get("summary") or {}
    operation = str(summary.get("operation") or "commit")
    done = _DONE.get(operation, "written")
    if summary.get("engine-name") == "spark" or "spark.app.id" in summary:
        mode = {"append": "append", "delete": "delete"}.get(operation, "upsert")
        mode = mode if table.keyed else "append"
        way = (
            f'`rows.write.format("lakestore").mode("{mode}").option("table", "{table.name}").save()`, with the rows'
            + (" or keys" if mode == "delete" else "")
        )
    else:
        command = "lakestore delete" if operation == "delete" and table.keyed else "lakestore write"
        way = f"`{command} {table.name} …` or a client's writer"
    return f"rows of {table.name} are {done} through Lakestore: use {way} instead of an Iceberg {operation}"
