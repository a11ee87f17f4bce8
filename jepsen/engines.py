"""Reads lake tables by foreign engines, PyIceberg and DuckDB, through the Iceberg REST catalog as their users do.

A row is `[bucket, offset, id, v]`. If an engine cannot answer, the error is `ls.Unavailable`. If a snapshot names a
file that does not exist, it is `MissingFile`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import requests
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

import lakestore as ls
from jepsen.rows import PLACED, listed

COLUMNS = (*PLACED, "id", "v")
Rows = list[list[int]]


class MissingFile(Exception):
    """A file that a snapshot names does not exist."""


@dataclass(frozen=True, slots=True)
class Tiered:
    """The newest snapshot of a lake table, by its summary."""

    snapshot: int
    point: tuple[int, ...]
    """Per bucket the offset below which everything is in the lake."""
    lsn: int


@dataclass(frozen=True, slots=True)
class Deletes:
    """The rows that the position deletes of a snapshot hit."""

    hits: list[list[int]]
    """Bucket and offset of each, as often as it is hit."""
    dangling: int
    """Positions in no data file of the snapshot, or beyond one's end."""


@contextmanager
def answering() -> Iterator[None]:
    """Raise errors of engines and connections as `Unavailable`."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFile(str(error)) from error
    except (RESTError, requests.RequestException, OSError, duckdb.Error) as error:
        raise ls.Unavailable(f"{type(error).__name__}: {error}"[:500]) from error


def load(catalog: str, warehouse: str, table: str) -> Table:
    """The table as PyIceberg has it."""
    store = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"]} if "AWS_ENDPOINT_URL" in os.environ else {}
    return load_catalog("jepsen", type="rest", uri=catalog, warehouse=warehouse, **store).load_table(table)


def tiered(table: Table) -> Tiered | None:
    """The newest snapshot; None if nothing was tiered to the table."""
    snapshot = table.current_snapshot()
    summary = dict(snapshot.summary.additional_properties) if snapshot and snapshot.summary else {}
    if snapshot is None or "lakestore.tier-point" not in summary:
        return None
    point = tuple(json.loads(summary["lakestore.tier-point"]))
    return Tiered(snapshot.snapshot_id, point, int(summary["lakestore.lsn"]))


def branches(table: Table) -> list[str]:
    """The branches beside main: of rounds and compactions that are under way, or whose tierer was killed."""
    refs = table.refs().items()
    return sorted(name for name, ref in refs if ref.snapshot_ref_type == SnapshotRefType.BRANCH and name != MAIN_BRANCH)


def by_pyiceberg(catalog: str, warehouse: str, table: str, snapshot: int | None = None) -> Rows:
    """The rows of a snapshot, by default the newest one."""
    return rows(load(catalog, warehouse, table).scan(selected_fields=COLUMNS, snapshot_id=snapshot).to_arrow())


def by_duckdb(
    catalog: str, warehouse: str, table: str, snapshot: int | None = None, columns: Sequence[str] = COLUMNS
) -> Rows:
    """The rows of a snapshot by a new DuckDB, without a cache of earlier reads."""
    with duckdb.connect() as connection:
        connection.execute("SET enable_external_file_cache = false; SET threads = 1")
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=connection)
            connection.execute(f"LOAD {name}")
        if address := os.environ.get("AWS_ENDPOINT_URL"):
            where = f"ENDPOINT '{urlsplit(address).netloc}', URL_STYLE 'path', USE_SSL false"
            key = "KEY_ID '{AWS_ACCESS_KEY_ID}', SECRET '{AWS_SECRET_ACCESS_KEY}'".format(**os.environ)
            connection.execute(f"CREATE SECRET store (TYPE s3, {key}, {where})")
        connection.execute(f"ATTACH '{warehouse}' AS w (TYPE iceberg, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none')")
        version = f" AT (VERSION => {snapshot})" if snapshot is not None else ""
        found = connection.execute(f"SELECT {', '.join(columns)} FROM w.{table}{version}").fetchall()
    return [list(row) for row in found]


ENGINES: dict[str, Callable[..., Rows]] = {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb}


def deletes(table: Table) -> Deletes:
    """The rows that the position deletes of the newest snapshot hit. Only for format 2, whose deletes are Parquet."""
    snapshot = table.current_snapshot()
    data: dict[str, pa.Table] = {}
    positions: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        for entry in manifest.fetch_manifest_entry(table.io):
            path = entry.data_file.file_path
            with table.io.new_input(path).open() as file:
                if entry.data_file.content == DataFileContent.DATA:
                    data[path] = pq.read_table(file, columns=list(PLACED))
                elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                    found = pq.read_table(file, columns=["file_path", "pos"])
                    pairs = zip(found["file_path"].to_pylist(), found["pos"].to_pylist(), strict=True)
                    positions.add((path, tuple(pairs)))
    hits, dangling = [], 0
    for path, place in [pair for _, pairs in sorted(positions) for pair in pairs]:
        if path not in data or place >= data[path].num_rows:
            dangling += 1
        else:
            hits.append([data[path][name][place].as_py() for name in PLACED])
    return Deletes(hits, dangling)


def rows(table: pa.Table) -> Rows:
    """The rows of an Arrow table."""
    return listed(table, *COLUMNS)
