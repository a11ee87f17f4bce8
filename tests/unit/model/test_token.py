"""Tokens: three positions, one text each, which never changes."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from lakestore.errors import Invalid
from lakestore.model.times import micros_of
from lakestore.model.token import (
    LogPosition,
    Part,
    Place,
    SharedPosition,
    SnapshotPosition,
    Token,
    parts_of,
    place_of,
    position_of,
)

GOLDEN: dict[str, Token] = {
    "tTnxY1sidDEiLDVd": LogPosition("t1", 5),
    "XWLgy1sidDEiLDUsWyJhIiwiYiJdXQ": LogPosition("t1", 5, ("a", "b")),
    "grwB81sieCIsNyxbInQiXSxbInQiLDEsOV1d": SnapshotPosition("x", 7, ("t",), Place("t", 1, 9)),
    "VFSYIlsieCIsMCxbInQiLCJ1Il0sbnVsbCxbWzEsMyw0LDksLTEsMF0sWzAsMCwxLDIsNzcsNF1dXQ": SharedPosition(
        "x", 0, ("t", "u"), (Part(1, 3, 4, 9), Part(0, 0, 1, 2, 77, 4))
    ),
    "Pi_iXFsieCIsMCxbXSxudWxsLFtdXQ": SharedPosition("x", 0, (), ()),
}
"""Texts that clients and consumers keep, and what they mean for ever."""


@pytest.mark.parametrize(("text", "position"), GOLDEN.items(), ids=lambda value: type(value).__name__)
def test_the_text_of_a_position_is_golden(text: str, position: Token) -> None:
    assert str(position) == text
    assert position_of(text) == position


def test_only_positions_of_their_kind_have_a_place_or_parts() -> None:
    log, _, snapshot, shared, _ = GOLDEN.values()
    assert [place_of(each) for each in (log, snapshot, shared)] == [None, Place("t", 1, 9), None]
    assert [len(parts_of(each)) for each in (log, snapshot, shared)] == [0, 0, 2]


def token(data: Any) -> str:
    """A token that holds anything, with a checksum that is right."""
    raw = json.dumps(data).encode()
    return base64.urlsafe_b64encode(zlib.crc32(raw).to_bytes(4, "big") + raw).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "position",
    [
        LogPosition("t", 3, shard=3),
        LogPosition("t", 3, ("a",), shard=3),
        SnapshotPosition("t", 3, ("a",), Place("a", 0, 1), shard=3),
        SharedPosition("t", 3, ("a",), (), shard=3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_position_of_a_shard_that_is_not_known_is_refused_by_name(position: Token) -> None:
    with pytest.raises(Invalid, match="the position is one of shard 3, which this release does not know"):
        position_of(str(position))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "XWLgy1sidDEiLDUsWyJhIiwiYiJdXA",
        token([]),
        token(["t"]),
        token({"t": 1}),
        token(["t", 1, [], ["a"]]),
        token(["t", 1, [], None, [[1]]]),
        token(["t", 1, [], None, None, 0, "more"]),
    ],
)
def test_another_text_is_no_position(text: str) -> None:
    with pytest.raises(Invalid, match="is not a position token"):
        position_of(text)


ODD: list[Any] = [10**30, -(10**30), 2**63, -1, 1.5, "x", [], {}, True, [[]], "\ud800", "x" * 100, [1], {"a": 1}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_forged_token_is_refused(odd: Any) -> None:
    inside, part = ["t", 1, 9], [0, 1, 2, 3, -1, 0]
    forged: list[Any] = [
        ["x", odd],
        ["x", 7, odd],
        ["x", 7, ["t"], odd],
        ["x", 7, ["t"], None, odd],
        ["x", 7, ["t"], None, [odd]],
    ]
    forged += [["x", 7, [odd]], [odd, 7, []], odd, [odd], ["x", 7, ["t"], inside, [part], 0, odd]]
    forged += [["x", 7, ["t"], [*inside[:at], odd, *inside[at + 1 :]]] for at in range(3)]
    forged += [["x", 7, ["t"], None, [[*part[:at], odd, *part[at + 1 :]]]] for at in range(6)]
    taken = 0
    for said in forged:
        try:
            position = position_of(token(said))
        except Invalid as refused:
            assert "is not a position token" in refused.message
            continue
        taken += 1
        assert position_of(str(position)) == position
        numbers = [n for part in parts_of(position) for n in (part.table, part.bucket, part.begin, part.end)]
        place = place_of(position)
        numbers += [position.lsn, *([place.bucket, place.offset] if place else [])]
        assert all(type(n) is int and 0 <= n < 2**63 for n in numbers)
        assert all(type(each) is str and each.encode() for each in (position.timeline, *position.tables))
    assert taken < len(forged) / 2


def test_a_part_names_a_table_of_its_token() -> None:
    for part in ([1, 0, 0, 1], [0, 0, 2, 1]):
        with pytest.raises(Invalid):
            position_of(token(["x", 7, ["t"], None, [part]]))
    with pytest.raises(Invalid):
        position_of(str(LogPosition("t1", 5)) + "!")


@pytest.mark.parametrize("text", ["0001-01-01T00:00+23:59", "9999-12-31T23:59-23:59", "2026-13-01", "", "x"])
def test_a_time_outside_of_the_calendar_is_none(text: str) -> None:
    assert micros_of(text) is None
