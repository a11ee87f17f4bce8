"""Definitions and alterations from outside are read strictly; stored ones as leniently as they were let in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid, LakestoreError
from lakestore.model import alteration
from lakestore.model import table as schema
from lakestore.model.table import Table, define
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("t", pa.timestamp("us"))])
WEIRD: list[Any] = [
    "\ud800", 10**30, -(10**30), float("nan"), float("inf"), [], {}, [[]], {"a": 1}, "", "x" * 300, 5, -1, True, None,
    2**63, 2**64, "\x00", "9999999999999999d", "1" * 5000 + "d", {"age": "\ud800"}, {"bytes": 10**30},
    {"age": 10**30}, {"column": "v", "after": 10**30}, {"column": "t", "after": "1000000000d"}, 1.5,
]  # fmt: skip
TYPES = [
    "int64",
    "string",
    "float64",
    "timestamp",
    "date",
    "decimal(10,2)",
    "list<int64>",
    "binary",
    "bool",
    "fixed(4)",
]
KINDS = {"str": str, "int": int, "bool": bool, "tuple": tuple}


def _definitions() -> Iterator[dict[str, Any]]:
    """A definition with one value that is odd."""
    plain = json.loads(define("a.t", SCHEMA, primary_key=["id"], buckets=2).to_json())
    extra = ("retention", "ttl", "tombstone_seconds", "deletes", "skip_unchanged", "colour")
    for odd in WEIRD:
        for name in (*plain, *extra):
            yield {**plain, name: odd}
        for name in plain["lake"]:
            yield {**plain, "lake": {**plain["lake"], name: odd}}
        for name in (*plain["columns"][1], "default", "initial", "nested"):
            yield {**plain, "columns": [plain["columns"][0], {**plain["columns"][1], name: odd}, plain["columns"][2]]}
    yield {**plain, "columns": [{**plain["columns"][0], "type": "decimal(" + "9" * 5000 + ",2)"}]}


def _is_typed(table: Table) -> bool:
    numbers = [table.buckets, table.lake.format_version, table.lake.target_file_bytes, table.last_column_id]
    flags = [table.skip_unchanged, *(column.required for column in table.columns)]
    return all(type(each) is int for each in numbers) and all(type(each) is bool for each in flags)


def test_what_is_taken_of_odd_definitions_is_typed_and_can_be_stored() -> None:
    taken = 0
    for data in _definitions():
        try:
            table = Table.received(json.dumps(data))
            schema.check(table)
        except Invalid as refused:
            assert len(refused.message) < 600
            continue
        taken += 1
        assert _is_typed(table)
        assert Table.from_json(table.to_json().encode()) == table
    assert taken


def _steps() -> Iterator[dict[str, Any]]:
    for odd in WEIRD:
        for option in ("lake", "retention", "deletes", "skip_unchanged", "ttl", "tombstone_ttl", "merge", "colour"):
            yield {"step": "options", option: odd}
        for option in ("freshness", "target_file_bytes", "format_version"):
            yield {"step": "options", "lake": {option: odd}}
        for at, kind in enumerate(TYPES):
            yield {"step": "add", "name": f"c{at}", "type": kind, "default": odd}
        for step in ("add", "drop", "rename", "widen", "move", "optional", "default"):
            yield {"step": step, "name": odd}
            for part in ("type", "to", "first", "after", "required", "new_rows_only"):
                yield {"step": step, "name": "v", "type": "int64", "to": "w", part: odd}
        yield {"step": odd}
    yield {"step": "add", "name": "q", "type": "struct<" + "x" * 400 + ": int64>"}


def test_what_is_taken_of_odd_alterations_is_typed_and_can_be_stored() -> None:
    table = define("a.t", SCHEMA, primary_key=["id"], buckets=2)
    taken = 0
    for step in _steps():
        try:
            made = alteration.apply_steps(table, ls.evolution.from_json(json.dumps([step])))
        except Invalid as refused:
            assert refused.applied == "no"
            continue
        taken += 1
        assert _is_typed(made)
        assert Table.from_json(made.to_json().encode()) == made
    assert taken


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "5", "[5]", '[{"step": []}]', '{"a": 1}', "1" * 5000])
def test_json_that_is_none_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        ls.evolution.from_json(text)
    with pytest.raises(Invalid):
        Table.received(text)


def test_odd_values_of_a_user_are_refused_before_they_are_sent(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        refused: list[dict[str, Any]] = [
            {"retention": {"bytes": 2**64}}, {"retention": "9999999999999999d"}, {"lake": {"target_file_bytes": True}},
            {"lake": {"freshness": "9" * 17 + "h"}}, {"lake": {"partition_by": 5}}, {"buckets": True},
            {"ttl": {"column": "t", "after": 2**63}, "primary_key": ["id"]},
        ]  # fmt: skip
        for options in refused:
            with pytest.raises(Invalid):
                served.lake.create_table("a.t", SCHEMA, **options)
        table = served.lake.create_table("a.t", SCHEMA)
        with pytest.raises(Invalid, match="half of a character"):
            table.alter(add={"caf\udce9": pa.int64()})
        with pytest.raises(Invalid, match="retention"):
            table.alter(retention="9999999999999999d")
        served.restart()
        assert [table.name for table in served.lake.tables()] == ["a.t"]


def test_a_folder_with_odd_definitions_opens_and_they_can_be_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release 0.2 took these."""
    odd = json.loads(define("a.t", SCHEMA, primary_key=["id"], buckets=2, retention="7d").to_json())
    odd["lake"].update(target_file_bytes=[[]], freshness="9" * 18 + "h", format_version=2.0)
    odd["columns"][1]["required"] = {"a": 1}
    odd["retention"]["age_seconds"] = 2**62
    with Served(tmp_path) as served, monkeypatch.context() as release:
        release.setattr(schema, "check", lambda *_: None)
        release.setattr(Table, "received", lambda _: Table.from_json(json.dumps(odd)))
        release.setattr(Table, "as_dict", lambda table: {**odd, "uuid": table.uuid, "number": table.number})
        served.lake.transport.create_table(pb.CreateTableRequest(definition=json.dumps(odd)))
        served.kill()
        release.undo()
        served.start()
        table = served.lake.table("a.t")
        assert _is_typed(served.state("a.t").table)
        table.upsert([{"id": 1, "v": "x"}])
        table.alter(add={"w": pa.int64()})
        served.run()
        served.restart()
        assert served.lake.table("a.t").lookup([{"id": 1}]).column("v").to_pylist() == ["x"]


def test_a_server_takes_none_of_them(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.lake.create_table("a.t", SCHEMA, primary_key=["id"])
        verb = served.server.service.verb
        for step in list(_steps())[::7]:
            try:
                verb("AlterTable")(pb.AlterTableRequest(table="a.t", alteration=json.dumps([step])))
            except LakestoreError as refused:
                assert refused.kind in ("Invalid", "Conflict"), (step, refused)
        assert served.engine.loop.failure is None
