"""Change streams with a condition, on tables of every merge engine, as users read them: gRPC, CLI and several members.

The condition names a merged column, so rows come to match and cease to by what the engine makes of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.folding import Fold, values
from tests.support.merge_cases import CASES, Case, MergeTable
from tests.support.process import ServerProcess
from tests.support.seeds import seeded

CONDITIONS = {
    "upsert": ("a > 1", "b IS NULL"),
    "partial": ("a = 1", "b IS NULL OR a IS NULL"),
    "first_row": ("a = 3 OR b = 'x'", "a < 3"),
    "versioned": ("b <> 'one'", "v > '1970-01-01T00:00:00.000002'"),
    "aggregate": ("total > 5", "people >= 2 AND seen < 6", "words LIKE 'w%'"),
}
ENGINES = [case for case in CASES if case.name in CONDITIONS]
ASKED = [(case, where) for case in ENGINES for where in CONDITIONS[case.name]]
NAMED = pytest.mark.parametrize(("case", "where"), ASKED, ids=[f"{case.name}-{where}" for case, where in ASKED])
COMMITS, KEYS = 20, 6
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("filtered")) as running:
        yield running.address


@pytest.fixture(scope="module", name="lake")
def _lake(server: str) -> Iterator[ls.Lake]:
    with ls.connect(server) as connected:
        yield connected


@dataclass
class Written:
    """A table and the token of each commit to it."""

    table: ls.Table
    tokens: list[str] = field(default_factory=list)

    def scanned(self, where: str, at: str) -> dict[Any, dict[str, Any]]:
        """What matches at a cut."""
        found = self.table.scan(where=where, at=at).to_arrow().to_pylist()
        return {row["id"]: told(row) for row in found}


def told(row: dict[str, Any]) -> dict[str, Any]:
    """NaN as a text equals itself."""
    return {name: repr(value) if isinstance(value, float | list) else value for name, value in row.items()}


class Told(Fold):
    """A fold of rows that hold NaN."""

    def _change(self, change: str, key: Any, row: dict[str, Any]) -> None:
        super()._change(change, key, told(row))


@pytest.fixture(scope="module", name="tables")
def _tables(lake: ls.Lake) -> dict[str, Written]:
    chance, made = seeded(7), {}
    for case in ENGINES:
        held = MergeTable(lake, replace(case, name=f"f_{case.name}"))
        made[case.name] = Written(held.table)
        for _ in range(COMMITS):
            batches = []
            for kind, _, row in chance.choices(case.ops, k=chance.randint(1, 3)):
                batches.append((kind, [{"id": key, **row} for key in chance.choices(range(KEYS), k=2)]))
            answer = lake.transport.commit(pb.CommitRequest(changes=[held.message(batch) for batch in batches]))
            held.expect(answer.results, batches)
            made[case.name].tokens.append(answer.token)
        held.check()
    return made


@NAMED
def test_the_fold_is_the_filtered_scan_at_every_token_over_the_wire(
    tables: dict[str, Written], case: Case, where: str
) -> None:
    written, images = tables[case.name], where != CONDITIONS[case.name][0]
    fold, start, sizes = Told(images=images, whole_deletes=True), "earliest", set()
    for token in written.tokens:
        fold.add(written.table.changes(start, where=where, until=token, before_images=images))
        assert fold.rows == written.scanned(where, token)
        sizes.add(len(fold.rows))
        start = token
    assert len(sizes) > 1, "rows come to match and cease to"


@NAMED
def test_a_snapshot_with_a_condition_is_the_filtered_scan_and_its_changes_go_on(
    tables: dict[str, Written], case: Case, where: str
) -> None:
    written = tables[case.name]
    table, fold = written.table, Told()
    stream = table.changes("snapshot", where=where, until="now", before_images=True)
    assert fold.add(stream).rows == written.scanned(where, written.tokens[-1])
    written.tokens += [table.upsert([new_row(case)]), table.delete([{"id": 1_000}])]
    start = stream.token
    for token in written.tokens[-2:]:
        fold.add(table.changes(start, where=where, until=token, before_images=True))
        assert fold.rows == written.scanned(where, token)
        start = token


def new_row(case: Case) -> dict[str, Any]:
    """A new row."""
    kind, _, row = case.ops[0]
    assert kind == "upsert"
    return {"id": 1_000, **{name: value for name, value in row.items() if name != "who"}}


@NAMED
def test_the_command_line_shows_the_changes_of_the_rows_that_match(
    server: str, tables: dict[str, Written], case: Case, where: str
) -> None:
    table = tables[case.name].table
    asked = ["changes", table.name, "--where", where, "--before-images", "--json", "--server", server]
    said = CliRunner().invoke(cli, asked)
    assert said.exit_code == 0, said.output
    found = [json.loads(line) for line in said.stdout.splitlines()]
    wanted = [row for batch in table.changes(where=where, until="now", before_images=True) for row in batch.to_pylist()]
    assert [place(row) for row in found] == [place(row) for row in wanted]
    assert found


def place(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["__change"], row["__bucket"], row["__offset"], row["id"]


@NAMED
def test_members_that_share_a_condition_show_its_changes_once(
    lake: ls.Lake, tables: dict[str, Written], case: Case, where: str
) -> None:
    """Two at a time, then one that finds nothing left; each bucket's changes in order."""
    table, name = tables[case.name].table, f"{case.name} {where}"
    got: dict[str, Seen] = {"one": [], "two": []}
    everybody = threading.Barrier(2)

    def consume(member: str) -> None:
        options: dict[str, Any] = {"subscription": name, "shared": True, "member": member, "before_images": True}
        with closing(table.changes(where=where, until="now", **options)) as stream:
            everybody.wait(120)
            for batch in stream:
                got[member] += batch.to_pylist()
                batch.ack()

    threads = [threading.Thread(target=consume, args=(member,)) for member in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    consume_alone = table.changes(where=where, until="now", subscription=name, shared=True, member="three")
    assert [len(batch) for batch in consume_alone] == []
    wanted = [row for batch in table.changes(where=where, until="now", before_images=True) for row in batch.to_pylist()]
    found = sorted(map(place, [*got["one"], *got["two"]]), key=lambda p: (p[1], p[2], p[0]))
    assert found == sorted(map(place, wanted), key=lambda p: (p[1], p[2], p[0]))
    for rows in got.values():
        ordered = [(row["__bucket"], row["__offset"]) for row in rows if row["__change"] != "-U"]
        assert all([o for b, o in ordered if b == x] == sorted(o for b, o in ordered if b == x) for x in range(3))
    assert values(wanted[0])
