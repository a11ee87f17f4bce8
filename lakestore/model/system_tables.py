"""The system tables: decisions, promises and progress of tables with a contract, in database `lakestore`.

- Only the server makes, writes and changes them (`Table.refuse_change`). Whoever has the right reads them, at any cut.
- They have one bucket, so a commit adds their rows without a look at keys.
- Their lake is in the server's own catalog, whatever catalog other tables tier to.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from lakestore.model.columns import OWN_CATALOG
from lakestore.model.names import SYSTEM_DATABASE
from lakestore.model.table import Table, define

AUDIT = f"{SYSTEM_DATABASE}.audit"
"""Decisions about contracts: one row for each, written in the commit that it is about."""
SLA = f"{SYSTEM_DATABASE}.sla"
"""Promises as measured: one row for each minute and promise."""
PROGRESS = f"{SYSTEM_DATABASE}.progress"
"""The feeds of tables with a contract: one row for each, with the time up to which it is complete."""
PROPOSALS = f"{SYSTEM_DATABASE}.proposals"
"""Alterations that wait for a decision, and the decided ones."""
_TIME = pa.timestamp("us", tz="UTC")
_LAKE = {"freshness": "5m", "catalog": OWN_CATALOG}


@cache
def system_tables() -> tuple[Table, ...]:
    """The definitions of all system tables, without what the server assigns."""
    return (
        _log(
            AUDIT,
            _texts("principal", "table", "table_uuid", "action", "what", "why", "outcome"),
            time="at",
            rest=[("version", pa.int64())],
            lake={"sort_by": ["at"]},
        ),
        _log(
            SLA,
            _texts("table", "promise"),
            time="minute",
            rest=[("promised", pa.float64()), ("measured", pa.float64()), ("met", pa.bool_()), ("unit", pa.string())],
            lake={"partition_by": ["month(minute)"]},
        ),
        define(
            PROPOSALS,
            pa.schema(
                [
                    *_texts("id", "table_uuid", "table", "bridge", "topic", "change", "steps", "state", "proposed_by"),
                    *_texts("decided_by", "why"),
                    pa.field("proposed_at", _TIME, nullable=False),
                    pa.field("decided_at", _TIME),
                ]
            ),
            primary_key=["id"],
            buckets=1,
            lake=_LAKE,
        ),
        define(
            PROGRESS,
            pa.schema(
                [
                    *_texts("table", "feed"),
                    pa.field("complete_through", _TIME),
                    pa.field("held_back_by", pa.string()),
                    pa.field("since", _TIME),
                ]
            ),
            primary_key=["table", "feed"],
            buckets=1,
            skip_unchanged=True,
            retention="1d",
            lake=_LAKE,
        ),
    )


def _texts(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string(), nullable=False) for name in names]


def _log(
    name: str, columns: list[pa.Field], *, time: str, rest: list[tuple[str, pa.DataType]], lake: dict[str, Any]
) -> Table:
    schema = pa.schema([pa.field(time, _TIME, nullable=False), *columns, *(pa.field(*each) for each in rest)])
    return define(name, schema, buckets=1, retention="7d", lake={**_LAKE, **lake})
