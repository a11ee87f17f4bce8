"""A lake table's layout changes by `alter`, without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore_server.main import Server

NAME = "shop.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_hot_files_of_a_cut_are_not_shown_under_the_number_of_a_later_partitioning(
    server: Server, lake: ls.Lake
) -> None:
    """Rows of very many partitions are presented without partitions, under the first free number of a spec."""
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"partition_by": ["id"]})
    table.upsert([{"id": i, "name": f"n {i}"} for i in range(3_000)])
    now = RestCatalog("now", uri=f"http://{server.about['http']}/iceberg", warehouse="now")
    before = now.load_table(NAME)
    assert before.scan().to_arrow().num_rows == 3_000
    [flat] = {task.file.spec_id for task in before.scan().plan_files()}
    table.alter(lake={"partition_by": ["bucket(2, id)"]})
    table.upsert([{"id": 1, "name": "one"}])
    after = now.load_table(NAME)
    assert {spec.spec_id: [field.name for field in spec.fields] for spec in after.specs().values()}[flat] == [
        "id_bucket"
    ]
    for number in (1, 2_999):
        assert after.scan(f"id = {number}").to_arrow().num_rows == 1
    assert after.scan().to_arrow().num_rows == 3_000


def test_commands(server: Server, lake: ls.Lake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.create_table(NAME, SCHEMA, primary_key=["id"])
    alter = ["alter", NAME, "--server", server.about["grpc"], "--set"]
    assert run_command([*alter, 'lake.partition_by=["bucket(2, id)", "truncate(3, name)"]']) == 0
    assert run_command([*alter, "lake.sort_by=name desc"]) == 0
    options = lake.table(NAME).definition.lake
    assert (options.partition_by, options.sort_by) == (("bucket(2, id)", "truncate(3, name)"), ("name desc",))
    capsys.readouterr()
    assert run_command([*alter, "lake.partition_by=month(name)"]) == 1
    assert "partition field 'month(name)' has no values that engines can store" in capsys.readouterr().err
