"""Others' tools for contracts judge ours: the JSON schema of ODCS, and datacontract-cli by lint and test."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from lakestore.errors import Invalid
from lakestore.model.contract import document, file, standard
from lakestore.model.contract.file import ServerPlace
from lakestore.model.table import define
from tests.support.all_types import SCHEMA
from tests.support.datacontract import datacontract, schema_faults
from tests.support.seeds import seed
from tests.support.served import Served

OTHERS = sorted((Path(__file__).resolve().parents[1] / "unit" / "model" / "contracts").glob("*.yaml"))
WRONG: tuple[Any, ...] = ("x", 3, 2.5, True, [], {}, ["a"], -1, ["a", "a"])
KEYS = "id name quality items properties map unique enum mustBe tags value from context".split()
MUTATIONS = 60


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside another one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


def mutated(said: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The document with one value removed, replaced, renamed or added."""
    made = copy.deepcopy(said)
    # Servers have forty types, whose fields are not checked. The schema wants the fields of every logical type where
    # none is named, so a removed logicalType is left out.
    path = rng.choice([p for p in places(made) if p[0] != "servers" and p[-1] != "logicalType"])
    *way, last = path
    owner: Any = made
    for key in way:
        owner = owner[key]
    action = rng.randrange(4)
    if action == 0:
        del owner[last]
    elif action == 1:
        owner[last] = rng.choice(WRONG)
    elif action == 2 and isinstance(last, str):
        owner[f"{last}X"] = owner.pop(last)
    elif isinstance(owner, dict) and not {"synonyms", "deprecated"} & {*way, last}:
        owner[rng.choice(KEYS)] = rng.choice(["x", 3, [], {}, [{"name": "q"}]])
    return made


def is_fine(said: dict[str, Any]) -> bool:
    try:
        return not standard.faults(document.parse(json.dumps(said)))
    except Invalid:
        return False


def is_known(said: Any) -> bool:
    """Whether each column of a document has a logical type: the schema refuses those without one."""
    if isinstance(said, list):
        return all(is_known(part) for part in said)
    if not isinstance(said, dict):
        return True
    columns = said.get("properties")
    named = (
        all("logicalType" in column for column in columns if isinstance(column, dict))
        if isinstance(columns, list)
        else True
    )
    return named and all(is_known(part) for part in said.values())


def test_faults_are_those_of_the_json_schema() -> None:
    rng = random.Random(seed())
    read = [document.parse(path.read_text()).value for path in OTHERS]
    cases = [*read, *(mutated(said, rng) for said in read for _ in range(MUTATIONS))]
    cases = [case for case in cases if is_known(case.get("schema"))]
    judged = schema_faults(cases)
    differing = [(judge, case) for case, judge in zip(cases, judged, strict=True) if is_fine(case) != (judge == "")]
    assert [judge for judge, _ in differing] == [], differing[:1]
    assert 0.3 < sum(judge != "" for judge in judged) / len(judged) < 0.9


def lint(path: Path) -> None:
    done = datacontract("lint", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_passes_on_exported_contracts(tmp_path: Path) -> None:
    path = tmp_path / "a b.odcs.yaml"
    every = define("shop.all", SCHEMA, primary_key=["id"], lake={"partition_by": ["day(c15)"]}, retention="7d")
    log = define("shop.log", pa.schema([pa.field("näme", pa.string(), nullable=False)]))
    kafka = ServerPlace("kafka", "kafka", (("host", "localhost:9092"),))
    servers = [*file.iceberg_places("http://localhost:7341/iceberg"), kafka]
    path.write_text(file.exported([every, log], servers))
    assert schema_faults([yaml.safe_load(path.read_text())]) == [""]
    lint(path)


COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("note", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("zip", pa.int32())])),
        ("prices", pa.map_(pa.string(), pa.float64())),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("small", pa.uint8()),
        ("local", pa.timestamp("us")),
    ]
)


def test_datacontract_tests_the_head_and_finds_a_broken_rule(tmp_path: Path) -> None:
    path = tmp_path / "orders.odcs.yaml"
    with Served(tmp_path / "server", ports=True) as served:
        table = served.lake.create_table("shop.orders", COLUMNS, primary_key=["id"])
        table.upsert([{"id": 1, "note": "a", "amount": 1, "at": None, "tags": ["x"]}])
        catalog = f"http://{served.server.about['http']}/iceberg"
        said = yaml.safe_load(file.exported([table.definition], file.iceberg_places(catalog)))
        said["schema"][0]["properties"][1]["enum"] = [{"value": "a"}, {"value": "b"}]
        path.write_text(yaml.safe_dump(said, sort_keys=False))
        done = datacontract("test", str(path), "--server", "now")
        assert done.returncode == 0, done.stdout + done.stderr
        table.upsert([{"id": 2, "note": "c"}])
        done = datacontract("test", str(path), "--server", "now")
        assert done.returncode != 0, done.stdout
        assert "note" in done.stdout
