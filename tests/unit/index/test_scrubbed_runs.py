"""The scrub reports damage of the runs that look-ups read, and none of runs that a rebuild or a merge has replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore_server.index.key_index import Index
from lakestore_server.index.levels import WalkSums
from lakestore_server.index.run import Run
from lakestore_server.segments.integrity import Findings, Integrity
from tests.support.served import Served

KEYS = 20_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with one run, which is damaged in its second block."""
    rows = pa.table({"id": pa.array(range(KEYS), pa.int64())})
    with Served(tmp_path) as first:
        first.lake.create_table("a.b", {"id": "int64"}, primary_key=["id"]).upsert(rows)
    (path,) = (tmp_path / "index").glob("*.run")
    with Served(tmp_path) as served:
        with path.open("r+b") as file:
            file.seek(70_000)
            file.write(b"damaged!")
        yield served


def rebuilt(served: Served) -> None:
    served.engine.index.found_problem("planted", damaged=False)
    served.until_indexed()


def replaced(served: Served) -> None:
    """As a merge leaves the levels that had one damaged run."""
    runs = served.engine.index._merged._runs
    runs.levels = runs.levels.merged_with(runs.levels.runs, None)


def test_damage_of_a_run_that_look_ups_read_is_reported(served: Served) -> None:
    scrubber, generation = served.server.upkeep.scrubber, served.engine.index.generation
    assert "is damaged in block 1" in scrubber.run_once()[0]
    assert served.engine.index.generation > generation
    served.until_indexed()
    assert scrubber.run_once() == []


@pytest.mark.parametrize("replace", [rebuilt, replaced])
def test_a_run_that_was_replaced_beside_the_scrub_is_no_damage(
    served: Served, replace: Callable[[Served], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    index, scrub = served.engine.index, Run.scrub
    (run,) = index.runs
    blocks: list[int] = []

    def then_replaced(self: Run) -> Iterator[tuple[int, str]]:
        for part in scrub(self):
            blocks.append(part[0])
            yield part
            if run in index.runs:
                replace(served)

    monkeypatch.setattr(Run, "scrub", then_replaced)
    integrity = served.server.upkeep.scrubber._integrity
    found = integrity.shared(lambda _: None)
    assert (found.damage, found.index_damage) == ([], "")
    assert len(blocks) == 2, "the rest of it is not read"


def test_damaged_entries_of_a_replaced_index_are_no_damage(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(index: Index, *_: Any) -> tuple[int, Iterator[WalkSums]]:
        rebuilt(served)
        return index.lsn, iter([WalkSums(0, 0, 1)])

    monkeypatch.setattr(Index, "walk", walk)
    scrubber = served.server.upkeep.scrubber
    (state,) = served.engine.view.kept.values()
    assert scrubber._integrity.table(state, lambda _: None).damage == []


def test_an_index_that_is_rebuilt_already_is_not_rebuilt_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up meets the same damage before the scrub has come to its end."""
    index, shared = served.engine.index, Integrity.shared
    generations: list[int] = []

    def then_rebuilt(self: Integrity, pause: Callable[[int], None]) -> Findings:
        found = shared(self, pause)
        assert found.index_damage
        rebuilt(served)
        generations.append(index.generation)
        return found

    monkeypatch.setattr(Integrity, "shared", then_rebuilt)
    served.server.upkeep.scrubber.run_once()
    assert generations == [index.generation]
