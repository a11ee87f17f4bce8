"""Columns of the user and of the system, and the lake's partitioning and sort order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model import types
from lakestore.model.outside_values import INT64_MAX, excerpt
from lakestore.model.shapes import SECONDS_MAX
from lakestore.model.types import arrow_type

SYSTEM_PREFIX = "__"
PREV = "__prev"
"""Column of a keyed table's stored rows: the offset that a row supersedes."""
KEEP_PREFIX, AS_OF = "__keep_", "__as_of"
"""Columns used only to merge a row: whether it keeps a column, and the time at which it was due."""
LAKE_BUCKET, LAKE_OFFSET, LAKE_TIMESTAMP = "__bucket", "__offset", "__timestamp"
LAKE_COLUMNS = (LAKE_BUCKET, LAKE_OFFSET, LAKE_TIMESTAMP)
SYSTEM_TYPES: dict[str, pa.DataType] = {
    "__change": pa.string(),
    "__bucket": pa.int32(),
    "__offset": pa.int64(),
    "__timestamp": pa.timestamp("us", tz="UTC"),
}
_TRANSFORM = re.compile(r"(?:(identity|year|month|day|hour)\((\w+)\)|(bucket|truncate)\(([0-9]{1,9}),\s*(\w+)\)|(\w+))")
_SORT = re.compile(r"(\w+)(?:\s+(asc|desc))?", re.IGNORECASE)
_FRESHNESS = re.compile(r"([0-9]{1,18})\s*(s|m|h)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}
LAKE_OPTIONS = (
    "freshness",
    "partition_by",
    "sort_by",
    "format_version",
    "target_file_bytes",
    "snapshots",
    "snapshot_seconds",
    "catalog",
    "upkeep_percent",
    "upkeep_files",
    "committers",
    "z_order_by",
)
LAYOUT = ("partition_by", "sort_by", "z_order_by")
"""Options that say in which files and in which order the lake's rows are."""
OWN_CATALOG = "own"
"""The name of the server's own catalog."""
CATALOG_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
OURS_ONLY, WITH_MAINTENANCE, OPEN = "ours_only", "ours+maintenance", "open"
"""Policies for commits of other engines to a lake table."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    id: int
    """Permanent; also the field id in the lake."""
    name: str
    type: str
    required: bool = False
    nested: tuple[int, ...] = ()
    """Permanent ids of the fields in a nested type, depth first."""
    default: Any = None
    """Value for rows that do not name the column, in the JSON of `lakestore.model.defaults`."""
    initial: Any = None
    """Value in rows older than the column. Fixed when the column is added."""

    @cached_property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), nullable=not self.required)

    def as_dict(self) -> dict[str, Any]:
        plain = {"id": self.id, "name": self.name, "type": self.type, "required": self.required}
        said = {"nested": list(self.nested) or None, "default": self.default, "initial": self.initial}
        return plain | {name: value for name, value in said.items() if value is not None}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Column:
        """Parse the output of `as_dict`. Older releases stored other values for `required`."""
        said = {"nested": tuple(data.get("nested", ())), "required": bool(data.get("required", False))}
        return Column(**{**data, **said})


@dataclass(frozen=True, slots=True)
class OldName:
    """A name that a column had before a rename."""

    name: str
    id: int
    """The column's id."""
    until_us: int
    """Time at which the name ends, in microseconds since 1970."""

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "id": self.id, "until_us": self.until_us}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of the lake's partitioning, such as `day(created_at)` or `bucket(16, id)`."""

    transform: str
    """Iceberg's transform: identity, year, month, day, hour, bucket[n], truncate[n]."""
    column: str


@dataclass(frozen=True, slots=True)
class SortField:
    """One column of the lake's sort order."""

    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """A table's options in the lake."""

    freshness: str = "1m"
    """Age of the tiered state that triggers a round, `10s` … `1h`."""
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    format_version: int = 2
    """2 (position delete files) or 3 (deletion vectors)."""
    target_file_bytes: int = 128 << 20
    snapshots: int = 100
    """Most snapshots of the lake's main, at any age. Leased snapshots stay."""
    snapshot_seconds: int = 3600
    """Age at which a snapshot outside the newest 20 is expired."""
    catalog: str = ""
    """The catalog in which the lake table lives, by its name in the server's settings. Empty means the server's default
    when the table is created, and the server's own catalog afterwards."""
    upkeep_percent: int = 100
    """Most time of the tierer that compactions of this table may take."""
    upkeep_files: int = 10_000
    """Files that wait for compaction above which rounds are slowed down."""
    committers: str = WITH_MAINTENANCE
    """The policy for commits of other engines: `ours_only`, or `ours+maintenance`, which lets them maintain files."""
    adopted: bool = False
    """True if files of another engine are in the lake: they lack our columns, so these are optional."""
    z_order_by: tuple[str, ...] = ()
    """Columns along whose Z-curve a compaction orders the rows. Not together with `sort_by`."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "freshness": self.freshness,
            "partition_by": list(self.partition_by),
            "sort_by": list(self.sort_by),
            "format_version": self.format_version,
            "target_file_bytes": self.target_file_bytes,
            **{name: getattr(self, name) for name in _SAID_IF_SET if getattr(self, name) != getattr(_USUAL, name)},
            **({"z_order_by": list(self.z_order_by)} if self.z_order_by else {}),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LakeOptions:
        """Parse the output of `as_dict`. Wrong types that older releases accepted become the default."""
        usual, size, freshness = _USUAL, data.get("target_file_bytes"), data.get("freshness")
        return LakeOptions(
            str(freshness) if 1 <= _seconds(freshness) <= SECONDS_MAX else usual.freshness,
            tuple(data.get("partition_by", ())),
            tuple(data.get("sort_by", ())),
            int(data.get("format_version", usual.format_version)),
            size if type(size) is int and 1 <= size <= INT64_MAX else usual.target_file_bytes,
            **{name: data[name] for name in _SAID_IF_SET if name in data},
            z_order_by=tuple(data.get("z_order_by", ())),
        )

    @property
    def freshness_seconds(self) -> int:
        seconds = _seconds(self.freshness)
        if seconds < 0:
            raise Invalid(f"freshness {excerpt(self.freshness)} is not a duration such as '10s', '5m' or '1h'")
        return seconds

    def partition_fields(self) -> tuple[PartitionField, ...]:
        return tuple(_partition_field(text) for text in self.partition_by)

    def sort_fields(self) -> tuple[SortField, ...]:
        return tuple(_sort_field(text) for text in self.sort_by)


_USUAL = LakeOptions()
_SAID_IF_SET = ("snapshots", "snapshot_seconds", "catalog", "upkeep_percent", "upkeep_files", "committers", "adopted")
"""Options of later releases. Omitted at their defaults, so stored definitions do not change."""


def _seconds(freshness: Any) -> int:
    """A duration in seconds; -1 if it is none."""
    match = _FRESHNESS.fullmatch(freshness) if type(freshness) is str else None
    return int(match[1]) * _UNIT_SECONDS[match[2]] if match else -1


def _partition_field(text: str) -> PartitionField:
    match = _TRANSFORM.fullmatch(text.strip())
    if not match:
        raise Invalid(
            f"partition field {excerpt(text)} is not identity, bucket, truncate, year, month, day or hour of a column"
        )
    if match[1]:
        return PartitionField(match[1], match[2])
    if match[3]:
        return PartitionField(f"{match[3]}[{match[4]}]", match[5])
    return PartitionField("identity", match[6])


def _sort_field(text: str) -> SortField:
    match = _SORT.fullmatch(text.strip())
    if not match:
        raise Invalid(f"sort field {excerpt(text)} is not 'column', 'column asc' or 'column desc'")
    return SortField(match[1], (match[2] or "").lower() == "desc")


def assign_ids(columns: Iterable[Column], last: int = 0) -> tuple[Column, ...]:
    """Assign ids above `last`: first to the columns, then to the fields inside them."""
    named = [replace(column, id=number) for number, column in enumerate(columns, start=last + 1)]
    last += len(named)
    done: list[Column] = []
    for column in named:
        count = types.nested_count(column.type)
        done.append(replace(column, nested=tuple(range(last + 1, last + count + 1))))
        last += count
    return tuple(done)


def max_id(columns: tuple[Column, ...]) -> int:
    """Highest id of the columns and the fields inside them."""
    return max((number for column in columns for number in (column.id, *column.nested)), default=0)


def lake_options(options: dict[str, Any]) -> LakeOptions:
    """Parse the `lake={…}` of `create_table`. Unknown names are refused."""
    for name in options:
        if name not in LAKE_OPTIONS:
            raise Invalid(f"lake option {name!r} is not known; known are {', '.join(LAKE_OPTIONS)}")
    checked = dict(options)
    for name in LAYOUT:
        if name in checked:
            checked[name] = layout_texts(name, checked[name])
    return replace(LakeOptions(), **checked)


def layout_texts(name: str, value: Any) -> tuple[str, ...]:
    """The value of an option of `LAYOUT`: a text or a list of texts."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise Invalid(f"lake option {name!r} is a list of texts, not {excerpt(value)}")
    return tuple(texts)


LAKE_FIELD_IDS = {LAKE_BUCKET: 1_000_001, LAKE_OFFSET: 1_000_002, LAKE_TIMESTAMP: 1_000_003}
"""Far above user column ids, so they never collide."""
