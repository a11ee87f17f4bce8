"""The options of a Flight session: names, checks, and what they mean for a question. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.alteration import Requirement
from lakestore.model.times import position_text
from lakestore.v1 import flight_pb2 as pb
from lakestore_server.edge.flight.catalog_tables import CATALOG

AT, FRESHNESS, COMPLETE = "lakestore.at", "lakestore.require_freshness", "lakestore.require_complete_through"
NAMES = ("catalog", "schema", AT, FRESHNESS, COMPLETE)
VALUE_CHARS_MAX = 1_000
_Error = pb.SetSessionOptionsResult


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options that a session has set, as texts."""

    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def at(self) -> str:
        return self.values.get(AT, "")

    @property
    def require(self) -> Requirement | None:
        return Requirement.of(self.values.get(FRESHNESS), self.values.get(COMPLETE))

    @property
    def search_path(self) -> tuple[str, ...]:
        database = self.values.get("schema", "")
        return (database,) if database else ()

    def changed(self, asked: Mapping[str, Any]) -> tuple[SessionOptions, dict[str, Any]]:
        """The options after a request, and the number of the error for each option that it could not set."""
        values, refused = dict(self.values), {}
        for name, said in asked.items():
            if name not in NAMES:
                refused[name] = _Error.INVALID_NAME
                continue
            kind = said.WhichOneof("option_value")
            text = said.string_value if kind == "string_value" else ""
            if kind not in (None, "string_value") or not _is_valid(name, text):
                refused[name] = _Error.INVALID_VALUE
            elif text:
                values[name] = text
            else:
                values.pop(name, None)  # an option without a value goes back to its default
        return SessionOptions(values), refused


def _is_valid(name: str, text: str) -> bool:
    if not text:
        return True
    if len(text) > VALUE_CHARS_MAX:
        return False
    try:
        if name == "catalog":
            return text == CATALOG
        if name == AT:
            position_text(text)
        elif name == FRESHNESS:
            Requirement.of(text, None)
        elif name == COMPLETE:
            Requirement.of(None, text)
    except Invalid:
        return False
    return True
