"""Random commits, cuts, tier points, schemas, forgotten cuts, restarts: every cut reads as the model has it."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore_server.snapshots.builder import SnapshotBuilder
from tests.support.presenting import Presenting, check_structure, read
from tests.support.seeds import seeded
from tests.support.served import Served

Row = dict[str, Any]
DAY = dt.date(2026, 1, 1)
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("c", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("l", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
    ]
)
PARTITIONS = (
    "",
    "s",
    "bucket(3, id)",
    "truncate(1, s)",
    "year(t)",
    "month(d)",
    "day(t)",
    "hour(t)",
    "c",
    "bucket(3, c)",
)


@dataclass
class Model:
    """One table, its commits, and what it was after each of them."""

    presenting: Presenting
    chance: random.Random
    keyed: bool
    form: int
    rows: dict[int, Row] = field(default_factory=dict)
    past: list[tuple[str, dict[int, Row]]] = field(default_factory=list)
    shown: list[tuple[int, Any, dict[int, Row]]] = field(default_factory=list)
    """Presented cuts that are kept: cut id, document, rows."""
    added: list[str] = field(default_factory=list)
    next_id: int = 0
    names: int = 0
    restarts: int = 0
    merges: int = 0

    def row(self, number: int) -> Row:
        """A row with random values."""
        chance = self.chance
        day = DAY + dt.timedelta(chance.randrange(60))
        said: Row = {
            "id": number,
            "s": chance.choice([None, "", "äpfel", "b" * 20, "zebra"]),
            "d": chance.choice([None, day]),
            "t": dt.datetime(day.year, day.month, 1 + day.day // 9, chance.randrange(3), tzinfo=dt.UTC),
            "c": chance.choice([None, Decimal(chance.randrange(-900, 900)) / 100]),
            "f": chance.choice([None, 0.0, 1.5, -2.5]),
            "l": chance.choice([None, [], [{"a": 1, "b": None}, {"a": None, "b": "x"}]]),
        }
        return said | {name: chance.choice([None, chance.randrange(100)]) for name in self.added}

    def commit(self) -> None:
        """Some changes."""
        table = self.presenting.served.lake.table("m.t")
        if not self.keyed:
            new = [self.row(self.next_id + place) for place in range(self.chance.randrange(1, 12))]
            token = table.append(new)
            self.next_id += len(new)
            self.rows |= {row["id"]: row for row in new}
        elif self.rows and self.chance.random() < 0.25:
            gone = self.chance.sample(sorted(self.rows), min(len(self.rows), self.chance.randrange(1, 6)))
            token = table.delete([{"id": number} for number in gone])
            for number in gone:
                del self.rows[number]
        else:
            new = [self.row(number) for number in self.chance.sample(range(40), self.chance.randrange(1, 15))]
            token = table.upsert(new)
            self.rows |= {row["id"]: row for row in new}
        self.past.append((str(token), dict(self.rows)))

    def alter(self) -> None:
        """Another version of the schema."""
        table = self.presenting.served.lake.table("m.t")
        self.names += 1
        name = f"x{self.names}"
        kind = self.chance.choice(["add", "rename", "drop", "widen"]) if self.added else "add"
        if kind == "add":
            table.alter(add={name: pa.int32()})
            self.added.append(name)
            self.rows = {number: {**row, name: None} for number, row in self.rows.items()}
            return
        old = self.chance.choice(self.added)
        if kind == "widen":
            table.alter(add={name: pa.int16()})
            table.alter(widen={name: pa.int64()})
            self.added.append(name)
            self.rows = {number: {**row, name: None} for number, row in self.rows.items()}
            return
        self.added.remove(old)
        if kind == "drop":
            table.alter(drop=[old])
            self.rows = {number: {k: v for k, v in row.items() if k != old} for number, row in self.rows.items()}
        else:
            table.alter(rename={old: name})
            self.added.append(name)
            self.rows = {
                number: {(name if k == old else k): v for k, v in row.items()} for number, row in self.rows.items()
            }

    def present(self, at: str, rows: dict[int, Row], form: int) -> None:
        """A cut, read back."""
        request, _, _ = self.presenting.request("m.t", at, form)
        answer, document = self.presenting.present("m.t", at, form)
        check_structure(answer, form)
        self.same(document, rows)
        self.presenting.presenter.tidy()
        running = self.presenting.presenter._merger._running
        if running is not None and self.chance.random() < 0.8:
            running.files.result()
            self.merges += 1
        self.shown = [each for each in self.shown if each[0] != request.cut_id]
        self.shown.append((request.cut_id, document, dict(rows)))

    def same(self, document: Any, rows: dict[int, Row]) -> None:
        """A document's rows are these."""
        found = read(document, self.presenting.folder).drop_columns(["__bucket", "__offset", "__timestamp"]).to_pylist()
        for row in found:
            if row["l"] is not None:
                row["l"] = [None if part is None else dict(part) for part in row["l"]]
        # PyIceberg reads a null list of structs as an empty one.
        wanted = {number: {**row, "l": row["l"] or None} for number, row in rows.items()}
        assert len(found) == len(wanted)
        assert {row["id"]: {**row, "l": row["l"] or None} for row in found} == wanted

    def forget(self) -> None:
        """The leases of some cuts are over; the others are read as before, and no other file is left."""
        gone = self.chance.sample(self.shown, self.chance.randrange(len(self.shown) + 1)) if self.shown else []
        self.presenting.presenter.forget([cut_id for cut_id, _, _ in gone])
        self.shown = [each for each in self.shown if each not in gone]
        if self.shown:
            _, document, rows = self.chance.choice(self.shown)
            self.same(document, rows)
        else:
            self.presenting.presenter._merger._pool.submit(int).result()  # behind a merge that was given up
            there = {
                path
                for path in (self.presenting.folder / "__presented").rglob(f"run-{self.restarts}/*")
                if path.is_file()
            }
            assert not there

    def step(self) -> None:
        """Something happens."""
        chance = self.chance.random()
        forms = [2, 3] if self.form == 2 else [3]
        if chance < 0.4 or not self.past:
            self.commit()
        elif chance < 0.76:
            self.present("", self.rows, self.chance.choice(forms))
        elif chance < 0.84:
            at, rows = self.chance.choice(self.past[-6:])
            self.present(at, rows, self.chance.choice(forms))
        elif chance < 0.88:
            self.presenting.tier("m.t", self.form, rewrite=self.chance.random() < 0.5)
            self.past = self.past[-3:]
        elif chance < 0.92:
            self.alter()
        elif chance < 0.985:
            self.forget()
        else:
            self.restarts += 1
            self.presenting.presenter = SnapshotBuilder(f"run-{self.restarts}")
            self.shown = []


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3, 4))])
def test_every_cut_is_read_as_the_table_was(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = seeded(f"presented {number}")
    monkeypatch.setattr("lakestore_server.snapshots.hot_files.FILE_ROWS_MAX", chance.choice([5, 20, 1000]))
    monkeypatch.setattr("lakestore_server.snapshots.hot_files.SPLIT_OFFSETS", chance.choice([7, 1000]))
    monkeypatch.setattr("lakestore_server.snapshots.hot_files.PARTITIONS_MAX", chance.choice([2, 16]))
    monkeypatch.setattr("lakestore.iceberg.row_search.SCANNED_PER_SOUGHT", chance.choice([0, 24]))
    monkeypatch.setattr("lakestore.iceberg.offset_cache.KEPT_ROWS_MIN", chance.choice([0, 100]))
    monkeypatch.setattr("lakestore_server.snapshots.steps.LEVEL_OFFSETS", chance.choice([4, 64]))
    monkeypatch.setattr("lakestore_server.snapshots.steps.MERGED_STEPS", chance.choice([2, 3]))
    monkeypatch.setattr("lakestore_server.snapshots.steps.ABSORBED_OFFSETS_MAX", chance.choice([0, 8, 100]))
    monkeypatch.setattr("lakestore_server.snapshots.hot_files.ASIDE_BYTES_MIN", chance.choice([8, 1 << 20]))
    (tmp_path / "lake").mkdir()
    keyed = chance.random() < 0.8
    with Served(tmp_path / "data", limits=Limits(fetch_batch_rows=chance.choice([3, 1000]))) as served:
        form = chance.choice([2, 3])
        parts = [part for part in chance.sample(PARTITIONS, chance.randrange(3)) if part]
        served.lake.create_table(
            "m.t",
            KEYED,
            primary_key=["id"] if keyed else None,
            buckets=chance.choice([1, 3]),
            lake={"partition_by": parts, "format_version": form},
        )
        model = Model(Presenting(served, tmp_path / "lake"), chance, keyed, form)
        for _ in range(40):
            model.step()
        model.present("", model.rows, form)
