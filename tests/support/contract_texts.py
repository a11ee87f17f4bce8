"""Documents of contracts for tests: one table `orders` with some columns and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def on_violation(action: Any) -> list[dict[str, Any]]:
    """The custom property that says what happens to rows which break a rule."""
    return [{"property": "lakestore.onViolation", "value": action}]


def column(name: str, action: Any = None, **fields: Any) -> dict[str, Any]:
    """A property of a table."""
    return {"name": name, **fields, **({"customProperties": on_violation(action)} if action else {})}


def no_rows(where: str, name: str = "sql", action: str = "") -> dict[str, Any]:
    """A quality check that no row may meet a condition."""
    check = {"type": "sql", "id": name, "query": f"SELECT COUNT(*) FROM {{object}} WHERE {where}", "mustBe": 0}
    return {**check, **({"customProperties": on_violation(action)} if action else {})}


def document(
    columns: Sequence[Mapping[str, Any]],
    action: str = "",
    quality: Sequence[Mapping[str, Any]] = (),
    name: str = "orders",
) -> str:
    """A contract of one table; JSON is YAML."""
    table = {"name": name, "properties": list(columns), "quality": list(quality)}
    if action:
        table["customProperties"] = on_violation(action)
    head = {"apiVersion": "v3.2.0", "kind": "DataContract", "id": "x", "version": "1.0.0", "status": "active"}
    return json.dumps({**head, "schema": [table]}, indent=1, ensure_ascii=False)
