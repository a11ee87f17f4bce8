"""Requests for SQL views, as engines send them to the catalog."""

from __future__ import annotations

from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


def version(number: int, schema_id: int = -1, /, **sql: str) -> dict[str, Any]:
    """A view's version with a SQL text for each dialect."""
    return {
        "version-id": number,
        "schema-id": schema_id,
        "timestamp-ms": 1_700_000_000_000 + number,
        "summary": {"engine-name": "a test"},
        "default-namespace": ["db"],
        "representations": [{"type": "sql", "dialect": dialect, "sql": text} for dialect, text in sql.items()],
    }


def view_request(name: str, /, **sql: str) -> dict[str, Any]:
    """The body that creates a view."""
    return {"name": name, "schema": SCHEMA, "view-version": version(1, 0, **sql), "properties": {}}


def replacement(number: int, /, **sql: str) -> list[dict[str, Any]]:
    """The updates that make another version current."""
    return [
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "add-view-version", "view-version": version(number, **sql)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
