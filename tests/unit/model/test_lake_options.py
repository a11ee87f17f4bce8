"""The lake's options that came later: left out at their defaults, kept through every form, changed by `alter`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.evolution import DropColumn, RenameColumn, SetOptions
from lakestore.model.alteration import apply_steps, difference
from lakestore.model.columns import LakeOptions
from lakestore.model.table import Table, define
from lakestore.v1.lakestore_pb2 import CreateTableRequest
from lakestore.wire import rpc

SCHEMA = pa.schema([("id", pa.int64())])


def table(**lake: Any) -> Table:
    return define("t.t", SCHEMA, primary_key=["id"], lake=lake)


def test_defaults_are_not_said() -> None:
    said = table().as_dict()["lake"]
    assert "snapshots" not in said
    assert "snapshot_seconds" not in said
    assert LakeOptions.from_dict(said) == LakeOptions()


def test_they_are_kept_and_changed() -> None:
    made = table(snapshots=7, snapshot_seconds=60)
    assert Table.from_json(made.to_json()).lake == made.lake
    changed = apply_steps(made, [SetOptions(lake={"snapshots": 300})])
    assert (changed.lake.snapshots, changed.lake.snapshot_seconds) == (300, 60)
    assert changed.schema_id == made.schema_id


def test_a_file_without_a_catalog_is_content_with_the_servers_choice() -> None:
    chosen = table(catalog="prod")
    assert difference(chosen, table()) == ""
    assert difference(table(), table(catalog="own")) == ""
    assert difference(chosen, chosen) == ""
    assert "its lake option catalog is prod, not own" in difference(chosen, table(catalog="own"))
    assert "catalog" not in table().lake.as_dict(), "stored definitions stay as they were"
    with pytest.raises(Invalid, match="is not a catalog's name"):
        table(catalog="a b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshots": 0},
        {"snapshots": "7"},
        {"snapshot_seconds": -1},
        {"upkeep_percent": 0},
        {"upkeep_percent": 101},
        {"upkeep_files": 0},
        {"committers": "any"},
        {"committers": 1},
    ],
)
def test_wrong_ones_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        table(**wrong)


def test_an_older_server_is_not_asked_for_them() -> None:
    method: Any = SimpleNamespace(name="CreateTable")
    for made in (
        table(snapshots=7),
        table(snapshot_seconds=60),
        table(upkeep_percent=20),
        table(upkeep_files=9),
        table(committers="ours_only"),
    ):
        request = CreateTableRequest(definition=made.to_json())
        rpc.check_known(method, request, 5, "0.3")
        with pytest.raises(Invalid, match=r"would ignore '(snapshot|upkeep|committers)"):
            rpc.check_known(method, request, 4, "0.2.0")
    rpc.check_known(method, CreateTableRequest(definition=table().to_json()), 4, "0.2.0")


POINTS = pa.schema(
    [("id", pa.int64()), ("a", pa.float32()), ("b", pa.string()), ("d", pa.date32()), ("b.c", pa.string())]
)


def points(**lake: Any) -> Table:
    return define("t.t", POINTS, primary_key=["id"], lake=lake)


def test_a_z_order_is_kept_and_its_columns_are_renamed_but_not_dropped() -> None:
    made = points(z_order_by=["a", "b"])
    assert Table.from_json(made.to_json()).lake == made.lake
    assert "z_order_by" not in points().as_dict()["lake"]
    assert apply_steps(made, [RenameColumn("a", "x")]).lake.z_order_by == ("x", "b")
    with pytest.raises(Invalid, match="sort order"):
        apply_steps(made, [DropColumn("b")])


@pytest.mark.parametrize(
    ("lake", "why"),
    [
        ({"z_order_by": ["a"]}, "two columns"),
        ({"z_order_by": ["a", "a"]}, "two columns"),
        ({"z_order_by": ["a", "b"], "sort_by": ["a"]}, "without 'sort_by'"),
        ({"z_order_by": ["a", "d"]}, "'d' is date"),
        ({"z_order_by": ["a", "b"], "partition_by": ["b"]}, "'b' is a partition"),
        ({"z_order_by": ["a", "none"]}, "none"),
        ({"z_order_by": ["a", "b.c"]}, "other characters"),
    ],
)
def test_a_z_order_that_iceberg_cannot_make_is_refused(lake: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        points(**lake)
