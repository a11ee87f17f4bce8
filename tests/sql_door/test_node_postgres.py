"""node-postgres through the Postgres port: types, parameters, cursors, streams, cancel, the pool, SQLSTATEs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from tests.support.node_postgres import outcomes
from tests.support.sql_door import EVERY, HOT, JSON, TIERED, Door, every_rows, order

AS_TEXT = ("int64", "uint32", "list<int64>")
"""Types whose integers node-postgres gives as texts, because a number of JavaScript has 53 bits."""


@pytest.fixture(scope="module")
def answers(door: Door) -> dict[str, dict[str, Any]]:
    """What client.js got."""
    return outcomes(door.dsn())


def value_in_javascript(kind: str, value: Any) -> Any:
    """A value as node-postgres parses it and JSON.stringify prints it."""
    if isinstance(value, list):
        return [value_in_javascript(kind, each) for each in value]
    if isinstance(value, bytes):
        return {"type": "Buffer", "data": list(value)}
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, dt.date):
        return f"{value}T00:00:00.000Z"
    if isinstance(value, dt.time | Decimal) or (kind in AS_TEXT and value is not None):
        return str(value)
    return value


def test_values_of_every_type_arrive(answers: dict[str, dict[str, Any]]) -> None:
    """In text; columns that Postgres has as jsonb are objects."""
    expected = []
    for number, row in enumerate(every_rows()):
        known = {"id": str(row.pop("id"))}
        for name, value in row.items():
            is_json = name in JSON and value is not None
            known[name] = JSON[name][number] if is_json else value_in_javascript(EVERY[name][0], value)
        expected.append(known)
    assert answers["every"] == {"value": expected}


def test_parameters_go_there_and_back(answers: dict[str, dict[str, Any]]) -> None:
    sent = [1, "ß\"'", True, "1970-01-01T00:00:00.000Z", {"a": [1]}, {"type": "Buffer", "data": [0, 255]}]
    assert answers["parameters"] == {"value": [[*sent, "1.50", ["a", None, 'c"d'], "12345678901"]]}
    assert answers["any"] == {"value": [["1"], ["2"]]}


def test_statements_with_names_several_statements_and_transactions(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["named"] == {"value": [order(number)["customer"] for number in (3, 4, 5)]}
    assert answers["several"] == {"value": [[{"a": 1}], [{"b": 2}]]}
    assert answers["transaction"] == {"value": [["100"]]}


def test_cursors_and_streams_take_rows_in_pieces(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["cursor"] == {"value": [3, 7]}
    assert answers["cursor closed early"] == {"value": [{"order_id": str(number)} for number in range(3)]}
    assert answers["stream"] == {"value": sum(range(TIERED + HOT))}


def test_errors_have_the_codes_of_postgres(answers: dict[str, dict[str, Any]], door: Door) -> None:
    codes = {"no table": "42P01", "no column": "42703", "syntax": "42601", "write": "25006"}
    assert {name: answers[name] for name in codes} == {name: {"code": code} for name, code in codes.items()}
    if door.guarded:
        assert answers["another password"] == {"code": "28P01"}


def test_a_timeout_and_a_cancel_end_a_query_and_the_session_goes_on(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["timeout"] == answers["cancel"] == {"code": "57014"}
    assert answers["afterwards"] == {"value": [[1]]}
    assert answers["pool"] == {"value": [order(number)["customer"] for number in (1, 2, 3, 4)]}
