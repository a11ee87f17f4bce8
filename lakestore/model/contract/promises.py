"""The promises of a contract (`slaProperties`) and the budget of its upkeep (`lakestore.budget`).

- Lakestore measures freshness (also called latency), completeness and availability. Retention is kept by definition: a
  table whose rows expire sooner is refused.
- A promise whose `element` names other tables is not this table's. Other properties are for readers, not measured.
- If a promise stands there twice, the stricter one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakestore.errors import Invalid
from lakestore.model.contract.document import Entry
from lakestore.model.outside_values import excerpt

if TYPE_CHECKING:
    from lakestore.model.contract.contract import Contract
    from lakestore.model.table import Table

BUDGET = "lakestore.budget"
FRESHNESS, COMPLETENESS, AVAILABILITY, RETENTION = "freshness", "completeness", "availability", "retention"
_KINDS = {
    "freshness": FRESHNESS,
    "latency": FRESHNESS,
    "completeness": COMPLETENESS,
    "availability": AVAILABILITY,
    "retention": RETENTION,
}
MEASURED = (FRESHNESS, COMPLETENESS, AVAILABILITY)
"""The promises that are measured each minute."""
SECONDS, PERCENT = "s", "percent"
_DAY = 86_400
_UNITS = {
    "ms millisecond milliseconds": 0.001,
    "s sec secs second seconds": 1,
    "m min mins minute minutes": 60,
    "h hr hrs hour hours": 3_600,
    "d day days": _DAY,
    "w week weeks": 7 * _DAY,
    "mo month months": 30 * _DAY,
    "y yr year years": 365 * _DAY,
}
_SECONDS = {unit: factor for units, factor in _UNITS.items() for unit in units.split()}
_PERCENT = ("percent", "%", "pct")
SECONDS_MAX = 1_000 * 365 * _DAY


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise to the readers of a table."""

    kind: str
    """freshness, completeness, availability or retention."""
    value: float
    """Seconds; percent of the time for availability."""
    line: int

    @property
    def unit(self) -> str:
        return PERCENT if self.kind == AVAILABILITY else SECONDS

    @property
    def wants_more(self) -> bool:
        """Whether a larger value promises more."""
        return self.kind in (AVAILABILITY, RETENTION)

    def is_met(self, measured: float | None) -> bool | None:
        """Whether a measured value keeps the promise; None if nothing could be measured."""
        if measured is None:
            return None
        return measured >= self.value if self.wants_more else measured <= self.value


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a lake table's upkeep; None: the table's own option, or no bound."""

    files: int | None = None
    """Files that may wait for compaction."""
    delete_ratio: float | None = None
    """Share of the rows in data files that may be deleted rows."""
    snapshot_age_seconds: int | None = None
    """Age up to which snapshots may stay."""
    percent: int | None = None
    """Share of the time that compactions may take."""


def promises_of(root: Entry, entry: Entry) -> tuple[Promise, ...]:
    """The promises of a table, by kind. Raises `Invalid` with the line of a value or unit that cannot be read."""
    found: dict[str, Promise] = {}
    for said in root.listed("slaProperties"):
        kind = _KINDS.get(said.text("property"))
        if kind is None or not _is_about(said, entry):
            continue
        promise = Promise(kind, _value(said, kind), said.line)
        other = found.get(kind)
        if other is None or (promise.value > other.value) == promise.wants_more:
            found[kind] = promise
    return tuple(found[kind] for kind in dict.fromkeys(_KINDS.values()) if kind in found)


def unmeasured(root: Entry) -> list[Entry]:
    """The entries of `slaProperties` that Lakestore neither measures nor keeps."""
    return [said for said in root.listed("slaProperties") if said.text("property") not in _KINDS]


def _is_about(said: Entry, entry: Entry) -> bool:
    elements = [element.strip() for element in said.text("element").split(",") if element.strip()]
    names = [name for name in (entry.text("name"), entry.text("physicalName")) if name]
    return not elements or any(each == name or each.startswith(f"{name}.") for each in elements for name in names)


def _value(said: Entry, kind: str) -> float:
    value, unit = said.field("value"), said.text("unit").strip().lower()
    if value is None:
        raise said.error("has no value")
    text = str(value.value).strip()
    if text.endswith("%"):
        text, unit = text[:-1], unit or PERCENT
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if isinstance(value.value, bool) or not 0 <= number < SECONDS_MAX:
        raise value.error(f"is a number from 0 up, not {excerpt(value.value)}")
    if kind == AVAILABILITY:
        if unit not in ("", *_PERCENT) or number > 100:
            raise said.error(f"is a percentage up to 100, with unit percent, not {excerpt(f'{text} {unit}')}")
        return number
    if unit not in _SECONDS:
        known = ", ".join(units.split()[0] for units in _UNITS)
        advice = " (how old the newest data may be)" if unit in _PERCENT else ""
        raise said.error(f"has the unit {excerpt(unit)}, and {kind} is a time{advice}: use one of {known}")
    return float(number * _SECONDS[unit])


def budget_of(properties: dict[str, Entry]) -> Budget:
    """The budget of a table. Raises `Invalid` with the line of a wrong value."""
    said = properties.get(BUDGET)
    if said is None:
        return Budget()
    said.check_keys("files", "deleteRatio", "snapshotAge", "percent")
    age = said.field("snapshotAge")
    files, percent = _whole(said, "files", 1 << 40), _whole(said, "percent", 100)
    ratio = said.field("deleteRatio")
    if ratio is not None and (isinstance(ratio.value, bool) or not _is_share(ratio.value)):
        raise ratio.error(f"is a share above 0 and up to 1, not {excerpt(ratio.value)}")
    return Budget(files, None if ratio is None else float(ratio.value), _span(age) if age else None, percent)


def _span(said: Entry) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", str(said.value))
    if match is None:
        raise said.error(f"is a span of time such as '30m', '12h' or '7d', not {excerpt(said.value)}")
    return int(int(match[1]) * _SECONDS[match[2]])


def upkeep_budget(table: Table) -> Budget:
    """The budget by which a table is kept: the contract's, or else the options of its lake."""
    said = table.contract.budget if table.contract else Budget()
    files, percent = said.files or table.lake.upkeep_files, said.percent or table.lake.upkeep_percent
    return replace(said, files=files, percent=percent)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value <= 1


def _whole(said: Entry, name: str, most: int) -> int | None:
    found = said.field(name)
    if found is None:
        return None
    if type(found.value) is not int or not 1 <= found.value <= most:
        raise found.error(f"is a whole number from 1 to {most:,}, not {excerpt(found.value)}")
    return found.value


def check(contract: Contract, table: Table) -> None:
    """Raise `Invalid` for a promise that the table's definition breaks."""
    _ = contract.budget
    for promise in contract.promises:
        if promise.kind == RETENTION and table.ttl is not None and table.ttl.seconds < promise.value:
            raise Invalid(
                f"line {promise.line}: the contract promises to keep rows for {promise.value / _DAY:g} days, and rows"
                f" of table {table.name} expire after {table.ttl}: change one of them"
            )
