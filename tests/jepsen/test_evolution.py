"""The checks of changing columns and tables against hand-made histories, and good ones of unknown outcomes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from jepsen.checkers.versions import altered, default_of, steps_of, tag_of, value_of
from jepsen.workloads.evolution import Evolution
from tests.jepsen.hand_made import Written, names

A, B = ["a", "string", 1], ["b", "int32", 2]
KEYED: dict[str, Any] = {"table": "keyed", "old": False}


class Shop:
    """A history of the keyed table, which begins with the columns a and b."""

    def __init__(self) -> None:
        self.written = Written()
        self.written.call(0, "describe", KEYED, {**KEYED, "schema": 2, "columns": [A, B]})

    @property
    def found(self) -> set[str]:
        return names(Evolution(random.Random(1)), self.written)

    def write(self, by: int, named: dict[str, Any], how: str = "ok") -> None:
        asked = {**KEYED, "rows": [by], "leave": 0}
        if how == "ok":
            self.written.call(0, "write", asked, {**asked, "sent": [[by, named]], "schema": 2})
        else:
            (self.written.failed if how == "fail" else self.written.unknown)(0, "write", asked)

    def alter(
        self, draw: list[int], tag: int, before: list[Any] | None = None, after: Any = None, schema: int = 3
    ) -> None:
        """An alteration; without the columns before it of unknown outcome."""
        asked = {**KEYED, "draw": draw, "tag": tag}
        if before is None:
            self.written.unknown(0, "alter", asked)
            return
        steps = steps_of(before, draw, tag)
        sides = {
            "before": {"schema": schema - 1, "columns": before},
            "after": {"schema": schema, "columns": altered(before, steps)},
        }
        if after is not None:
            sides["after"]["columns"] = after
        self.written.call(0, "alter", asked, {**asked, "steps": steps, **sides})

    def read(
        self, columns: list[str], *rows: list[Any], f: str = "read", schema: int | None = None, **more: Any
    ) -> None:
        answer = {"names": ["id", "by", *columns], "rows": [[row[0], *row] for row in rows], "schema": schema}
        self.written.call(1, f, KEYED, {**KEYED, "via": "scan", "answers": [answer], **more})


def both(by: int) -> dict[str, Any]:
    return {"1": value_of(1, by, "string"), "2": value_of(2, by, "int32")}


ROW = [7, value_of(1, 7, "string"), value_of(2, 7, "int32")]
ADD, DROP_A, RENAME_A, WIDEN, SWAP, ANEW = [0, 2, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0], [6, 0, 1]


def test_unknown_outcomes_and_every_version_on_the_way_are_no_anomaly() -> None:
    shop = Shop()
    shop.write(7, both(7))
    shop.write(8, {}, how="info")
    shop.write(9, {}, how="fail")
    shop.read(["a", "b"], ROW)
    shop.alter(SWAP, 10_001)
    shop.read(["a", "b"], ROW)
    shop.read(["b", "a"], ROW, [8, None, default_of(2, "int32")])
    shop.alter(ANEW, 10_002)
    shop.read(["b", "a"], ROW)
    shop.read(["a", "b"], [7, ROW[2], None], [8, value_of(2, 8, "int"), value_of(10_002, 8, "string")])
    shop.read(["a", "b"], ROW, f="past", of=7, schema=2)
    assert shop.found == set()


def test_a_table_of_which_nobody_was_told_has_its_first_columns() -> None:
    shop = Shop()
    shop.written = Written()
    shop.write(7, both(7))
    shop.read(["a", "b"], ROW)
    shop.alter(SWAP, 10_001)
    shop.read(["b", "a"], ROW)
    assert shop.found == set()


def test_the_first_columns_are_a_version_though_only_a_later_one_was_described() -> None:
    shop = Shop()
    shop.written = Written()
    shop.write(7, both(7))
    shop.read(["a", "b"], ROW, schema=2)
    shop.alter(ANEW, 10_001)
    shop.written.call(1, "describe", KEYED, {**KEYED, "schema": 3, "columns": [B, ["a", "string", 10_001]]})
    shop.read(["a", "b"], ROW, f="stream", schema=2)
    assert shop.found == set()


def test_acknowledged_alterations_and_what_follows() -> None:
    shop = Shop()
    shop.write(7, both(7))
    shop.alter(RENAME_A, 0, [A, B])
    shop.alter(WIDEN, 0, [["c", "string", 1], B], schema=4)
    shop.written.call(1, "describe", KEYED, {**KEYED, "schema": 4, "columns": [["c", "string", 1], ["b", "int64", 2]]})
    shop.write(8, {"1": None, "2": 2008})
    shop.read(["c", "b"], ROW, [8, default_of(1, "string"), 2008])
    shop.read(["c", "b"], ROW, f="stream", schema=3)
    assert shop.found == set()


@pytest.mark.parametrize(
    ("columns", "rows", "name"),
    [
        (["a", "b"], [[7, ROW[1], value_of(3, 7, "int32")]], "no-version"),
        (["b", "a"], [ROW], "no-version"),
        (["a"], [[7, ROW[1]]], "no-version"),
        (["a", "b"], [ROW, [8, value_of(5, 8, "string"), None]], "mixed-column"),
        (["a", "b"], [[7, value_of(1, 7, "string"), value_of(1, 7, "int32")]], "one-column-twice"),
        (["a", "b"], [[7, value_of(1, 8, "string"), ROW[2]]], "wrong-value"),
        (["a", "b"], [[7, default_of(1, "string"), ROW[2]]], "wrong-value"),
        (["a", "b"], [[7, None, ROW[2]], [8, value_of(1, 8, "string"), None]], "wrong-value"),
        (["a", "b"], [[7, "torn", ROW[2]]], "wrong-value"),
        (["a", "b"], [ROW, ROW], "row-twice"),
        (["a", "b"], [ROW, [99, None, None]], "phantom"),
        (["a", "b"], [ROW, [9, None, None]], "aborted-read"),
        (["a", "b"], [], "lost"),
    ],
)
def test_a_false_answer_is_told_by_name(columns: list[str], rows: list[list[Any]], name: str) -> None:
    shop = Shop()
    shop.write(7, both(7))
    shop.write(8, {}, how="info")
    shop.write(9, {}, how="fail")
    shop.read(columns, *rows)
    assert name in shop.found


def test_an_old_value_never_shows_under_a_name_that_was_added_anew() -> None:
    shop = Shop()
    shop.write(7, both(7))
    shop.alter(ANEW, 10_001, [A, B])
    shop.read(["b", "a"], [7, ROW[2], ROW[1]], f="stream", schema=3)
    assert shop.found == {"no-version"}


def test_a_default_that_was_not_named_shows() -> None:
    shop = Shop()
    shop.write(7, {"1": None, "2": 2007})
    shop.write(8, both(8))
    shop.read(["a", "b"], [7, None, 2007], [8, *both(8).values()])
    assert shop.found == {"wrong-value"}


def test_rows_from_before_show_a_column_s_first_value() -> None:
    for shown, name in ((default_of(10_001, "int32"), set()), (None, {"wrong-default"})):
        shop = Shop()
        shop.write(7, both(7))
        shop.alter(ADD, 10_001, [A, B])
        shop.write(8, {**both(8), "10001": value_of(10_001, 8, "int32")})
        shop.read(["a", "b", "e"], [*ROW, shown], [8, *both(8).values(), value_of(10_001, 8, "int32")])
        assert shop.found == name


def test_half_an_alteration_and_two_definitions_of_one_version() -> None:
    shop = Shop()
    shop.alter(ANEW, 10_001, [A, B], after=[B])
    assert shop.found == {"half-alter"}
    shop = Shop()
    shop.written.call(1, "describe", KEYED, {**KEYED, "schema": 2, "columns": [A]})
    assert shop.found == {"two-definitions"}


def test_a_definition_is_not_older_than_one_that_was_acknowledged() -> None:
    shop = Shop()
    shop.alter(DROP_A, 0, [A, B])
    shop.written.call(1, "describe", KEYED, {**KEYED, "schema": 2, "columns": [A, B]})
    assert shop.found == {"stale-definition"}


def test_a_write_s_token_shows_the_write() -> None:
    shop = Shop()
    shop.write(7, both(7))
    shop.read(["a", "b"], f="past", of=7, schema=2)
    assert shop.found == {"not-the-cut"}


def passing(*calls: tuple[str, dict[str, Any]]) -> set[str]:
    written = Written()
    for f, value in calls:
        written.call(0, f, {**KEYED, **value})
    return names(Evolution(random.Random(1)), written)


def read(tag: int, *rows: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    held = [[by, by, value_of(own, by, "string")] for by, own in rows]
    return "pass-read", {"tag": tag, "names": ["id", "by", "a"], "rows": held, "schema": None}


WRITE = ("pass-write", {"tag": 1, "rows": [5]})
CREATE = ("create", {"tag": 10_001, "draw": []})


def test_each_table_of_a_name_has_a_history_of_its_own() -> None:
    stream = ("pass-stream", {"tag": 10_001, "of": 10_001, "answers": [read(10_001, (6, 10_001))[1]]})
    assert passing(WRITE, read(1, (5, 1)), ("drop", {}), CREATE, read(10_001, (6, 10_001)), stream) == set()
    assert passing(WRITE, CREATE, read(10_001, (5, 1))) == {"another-history"}
    assert passing(CREATE, read(1)) == {"served-dropped"}
    assert passing(CREATE, ("pass-stream", {"tag": 10_001, "of": 1, "answers": []})) == {"served-position"}
    assert passing(WRITE, read(1)) == {"lost"}


def test_any_drawn_numbers_alter_any_columns() -> None:
    chance, columns = random.Random(3), [A, B]
    for tag in range(10_000, 10_500):
        columns = altered(
            columns, steps_of(columns, [chance.randrange(7), chance.randrange(6), chance.randrange(4)], tag)
        )
        assert len({column[0] for column in columns}) == len({column[2] for column in columns}) == len(columns) <= 4
    assert tag_of(value_of(10_001, 5, "int64")) == tag_of(default_of(10_001, "string")) == 10_001
    assert tag_of("torn") == -1


def test_tags_fit_their_type_and_one_seed_replays() -> None:
    for seed in range(20):
        first, again = (
            [*itertools.islice(Evolution(random.Random(seed)).operations(150, random.Random(5)), 200)] for _ in "ab"
        )
        assert first == again
        assert all(default_of(each.value["tag"], "int32") < 1 << 31 for each in first if "tag" in each.value)
