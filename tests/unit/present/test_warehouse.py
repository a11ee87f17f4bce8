"""Names of warehouses and their prefixes: safe in a path, and read back; positions as URLs carry them."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, quote_plus, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.model.times import micros_of
from lakestore.model.token import LogPosition
from lakestore_server.catalog.errors import NoSuchWarehouse
from lakestore_server.snapshots.warehouse import Warehouse, of_prefix, prefix_of, said_position

LAKE = "file:///w"
TIMES = [
    "2026-11-20",
    "2026-11-20T10:00Z",
    "2026-11-20 10:00:00.5",
    "2026-11-20T10:00:00+02:00",
    "2026-11-20 10:00:00-03:30",
    "2026-11-20 10:00+01:00",
]


@given(st.text("0123456789abcdef", min_size=1), st.integers(0, 1 << 62), st.sampled_from([("at:", 0), ("at-v3:", 3)]))
def test_a_token_goes_through_a_prefix(timeline: str, lsn: int, form: tuple[str, int]) -> None:
    token = str(LogPosition(timeline, lsn))
    prefix = prefix_of(form[0] + token, LAKE)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", prefix)
    assert of_prefix(prefix) == Warehouse(token, form[1])


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("escape", [str, quote, quote_plus])
def test_a_time_goes_through_a_query_however_it_is_escaped(time: str, escape: object) -> None:
    assert callable(escape)
    (said,) = parse_qs(f"warehouse={escape('at:' + time)}")["warehouse"]
    assert micros_of(of_prefix(prefix_of(said, LAKE)).position) == micros_of(time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("escape", [str, quote, quote_plus])
def test_a_time_goes_through_a_path_however_it_is_escaped(time: str, escape: object) -> None:
    assert callable(escape)
    assert micros_of(said_position(unquote(escape(time)))) == micros_of(time)


def test_the_lake_has_no_prefix() -> None:
    assert {prefix_of(name, LAKE) for name in ("", "lake", LAKE, LAKE + "/")} == {""}
    assert [prefix_of(name, LAKE) for name in ("now", "now-v3")] == ["now", "now-v3"]
    assert [of_prefix(name) for name in ("now", "now-v3")] == [Warehouse("", 0), Warehouse("", 3)]


@pytest.mark.parametrize("name", ["foo", "NOW", "now ", "at", "at:", "at:xyz", "at-v3:", "at-v3:2026", "now/../lake"])
def test_other_warehouses_are_not_there(name: str) -> None:
    with pytest.raises(NoSuchWarehouse, match=r"warehouse"):
        prefix_of(name, LAKE)


@given(st.text(max_size=40))
def test_any_other_prefix_is_not_there(text: str) -> None:
    for prefix in (text, "at-" + text, "at-v3-" + text):
        try:
            said_position(of_prefix(prefix).position or "2026-01-01")
        except NoSuchWarehouse as error:
            assert "prefix" in error.message


@given(st.text(max_size=30))
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    try:
        assert said_position(text)
    except Invalid:
        return
