"""The register workload's anomalies: each is found in a history that has it, and none in one that is merely unlucky."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen.checkers import registers
from jepsen.checkers.counterexample import Keys
from jepsen.operation import Kind
from tests.jepsen.hand_made import Written

K, OTHER, OWN, TWINS = "0/k0", "0/k1", "0/own1", ("0/twin1", "0/twin2")


class Story:
    """A history of rows [a, b, v] whose columns a and b are one number."""

    def __init__(self, engine: str = "upsert") -> None:
        self.written, self.engine = Written(), engine

    def write(
        self,
        process: int,
        number: int | None,
        *keys: str,
        kind: Kind = Kind.OK,
        token: str = "",
        said: str | None = None,
    ) -> Story:
        self.begin(process, number, *keys)
        return self.end(process, number, *keys, kind=kind, token=token, said=said)

    def begin(self, process: int, number: int | None, *keys: str) -> Story:
        self.written.begin(process, "write", asked(number, *keys))
        return self

    def end(
        self,
        process: int,
        number: int | None,
        *keys: str,
        kind: Kind = Kind.OK,
        token: str = "",
        said: str | None = None,
    ) -> Story:
        told = {"token": token, "said": said}
        self.written.end(process, "write", told if kind is Kind.OK else asked(number, *keys), kind)
        return self

    def insert(self, process: int, number: int, said: str, there: int | None) -> Story:
        told = {"token": "", "said": said, "row": row(there)}
        self.written.call(process, "insert", {"row": [K, {"a": number, "b": number}]}, told)
        return self

    def read(
        self,
        process: int,
        rows: dict[str, int | None],
        token: str = "",
        by: str = "",
        also: dict[str, int] | None = None,
        torn: tuple[str, ...] = (),
    ) -> Story:
        by = by or ("token" if token else "now")
        found = {key: row(number) for key, number in rows.items() if number is not None}
        more = None if also is None else {key: row(number) for key, number in also.items()}
        told = {"token": token, "rows": found, "also": more, "torn": list(torn)}
        self.written.call(process, "lookup", {"keys": sorted(rows), "by": by}, told)
        return self

    def names(self) -> set[str]:
        return {each.name for each in registers.judge(self.written.history(), self.engine)[0]}


def row(number: int | None) -> list[int | None] | None:
    return None if number is None else [number, number, None]


def asked(number: int | None, *keys: str) -> dict[str, Any]:
    columns = {} if number is None else {"a": number, "b": number}
    return {"form": "table", "kind": "delete" if number is None else "upsert", "rows": [[key, columns] for key in keys]}


def test_unlucky_histories_have_no_anomaly() -> None:
    story = Story().write(0, 1, K, OTHER, token="A").write(1, 2, K, kind=Kind.INFO).read(2, {K: 1, OTHER: 1})
    story.write(0, 3, K, kind=Kind.FAIL).begin(4, 4, K).read(2, {K: 4}).read(3, {K: 1}, token="A")
    story.end(4, 4, K, token="B")
    story.read(2, {K: 2}, token="S", by="snapshot", also={K: 2}).read(3, {K: 4}, token="B").read(2, {K: 2}, token="S")
    story.write(5, None, K, kind=Kind.INFO).read(2, {K: 2}).read(2, {K: None}).insert(0, 9, "inserted", 9)
    story.insert(2, 10, "ignored", 9).write(0, 11, K, said="updated").write(0, None, K, said="deleted")
    story.write(0, None, K, said="not_found").write(0, 12, K, said="inserted").write(0, 5, *TWINS).read(
        1, dict.fromkeys(TWINS, 5)
    )
    story.write(1, 20, OWN).read(1, {OWN: 20}).write(1, 21, OWN, kind=Kind.INFO).read(2, {OWN: 20}).read(2, {OWN: 21})
    assert story.names() == set()


CASES: dict[str, list[Story]] = {
    "nonlinearizable": [
        Story().write(0, 1, K).write(0, 2, K).read(1, {K: 1}),
        Story().write(0, 1, K).read(1, {K: None}),
        Story().write(0, 1, K, kind=Kind.INFO).read(1, {K: 1}).read(2, {K: None}),
        Story().write(0, 1, K).insert(1, 2, "inserted", 2),
        Story().insert(1, 2, "inserted", None),
        Story().insert(1, 2, "ignored", None),
        Story().write(0, 1, K, said="updated"),
        Story("first_row").write(0, 1, K).write(0, 2, K).read(1, {K: 2}),
        Story().write(0, 1, K).write(0, 2, K, token="B").read(1, {K: 1}, token="B"),
        Story().write(0, 1, K, token="A").write(0, 2, K).read(1, {K: 2}, token="A"),
    ],
    "phantom": [Story().write(0, 1, OTHER).read(1, {K: 1}), Story().read(1, {K: 7})],
    "aborted-read": [Story().write(0, 1, K, kind=Kind.FAIL).read(1, {K: 1})],
    "torn-row": [Story().write(0, 1, K).read(1, {K: 1}, torn=(K,))],
    "torn-commit": [
        Story().write(0, 1, *TWINS).begin(0, 2, *TWINS).read(1, {TWINS[0]: 2, TWINS[1]: 1}),
        Story().begin(0, 2, *TWINS).read(1, {TWINS[0]: 2, TWINS[1]: None}),
    ],
    "cut-changed": [
        Story().write(0, 1, K, token="A").begin(1, 2, K).read(2, {K: 1}, token="A").read(2, {K: 2}, token="A")
    ],
    "lookup-differs": [Story().write(0, 1, K).read(1, {K: 1}, token="S", by="snapshot", also={})],
    "read-your-writes": [Story().write(1, 1, OWN).write(1, 2, OWN).read(1, {OWN: 1})],
    "stale-read": [
        Story().write(1, 1, OWN).write(1, 2, OWN).read(2, {OWN: 1}),
        Story().write(1, 1, OWN).read(2, {OWN: None}),
    ],
    "nonmonotonic-read": [Story().write(1, 1, OWN).begin(1, 2, OWN).read(3, {OWN: 2}).read(3, {OWN: 1})],
}


@pytest.mark.parametrize("name", CASES)
def test_each_anomaly_is_found(name: str) -> None:
    for story in CASES[name]:
        assert name in story.names(), CASES[name].index(story)


def test_a_search_that_gives_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "check_keys", lambda *_: Keys((), ("0/k0",), 1, 9))
    assert Story().write(0, 1, K).names() == {"undecided"}


def test_versions_and_parts_of_rows_are_as_the_engines_make_them() -> None:
    step = registers.model("versioned")
    old, new = (("a", 1), ("v", 1)), (("a", 2), ("v", 2))
    held = step(registers.INITIAL, ("upsert", new), "inserted")
    assert held == ((2, None, 2), None)
    assert step(held, ("upsert", old), "ignored") == held
    gone = step(held, ("delete", (("v", 3),)), "deleted")
    assert gone == (None, 3)
    assert step(gone, ("insert", new), ("ignored", None)) == gone
    partial = registers.model("partial")
    first = partial(registers.INITIAL, ("upsert", (("a", 1),)), "inserted")
    assert partial(first, ("upsert", (("b", 2),)), "updated") == ((1, 2, None), None)
