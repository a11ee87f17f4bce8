"""The memory that settings allow is said at start and in the status, and follows them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa

from lakestore.limits import DEFAULT, Limits
from lakestore.model.settings import range_of
from lakestore.v1.lakestore_pb2 import StatusRequest
from lakestore_server.host.machine import MAPS_DEFAULT, maps_max, memory_bytes
from lakestore_server.operate import memory
from lakestore_server.operate.memory import MemoryCounts, MemoryStatus
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ELSEWHERE = {
    "message_bytes",  # within receiving_bytes and in_flight_bytes
    "parts_bytes",  # the next ones are on disk
    "progress_bytes",
    "present_bytes",
    "disk_free_bytes",
    "scrub_bytes",  # bytes a second
    "copy_bytes",
    "lake_offsets_disk_bytes",  # on disk, and mapped
    "merge_bytes",
    "key_bytes",  # within a row
    "register_bytes",  # each of the registers
    "group_bytes",  # within queue_bytes
    "journal_checkpoint_bytes",  # within journal_bytes
    "extent_bytes",  # a threshold
    "shared_segment_bytes",  # within segment_bytes
    "http_body_bytes",  # within http_bodies_bytes
    "header_bytes",  # within threads and connections
    "read_batch_bytes",  # within streams
    "compaction_bytes",  # the larger one of it and segment_bytes counts
}


def test_every_limit_in_bytes_is_counted_or_said_to_be_elsewhere() -> None:
    base = {bound.name: bound.nbytes for bound in memory.by_settings(DEFAULT)}
    for each in fields(Limits):
        if not each.name.endswith("_bytes") or each.name in ELSEWHERE:
            continue
        more = replace(DEFAULT, **{each.name: min(2 * getattr(DEFAULT, each.name), int(range_of(each)[1]))})
        grown = {bound.name: bound.nbytes for bound in memory.by_settings(more)}
        assert grown != base, f"{each.name} bounds nothing that is counted"


def test_tables_count_by_what_they_have(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        before = MemoryCounts.of(served.engine.view)
        table = served.lake.create_table("d.t", SCHEMA, primary_key=["id"], buckets=3)
        table.upsert(pa.record_batch([range(30), range(30)], schema=SCHEMA))
        served.checkpoint()
        after = MemoryCounts.of(served.engine.view)
        assert (after.tables - before.tables, after.buckets - before.buckets, after.segments) == (1, 3, 3)
        assert (after.rows_below, after.files) == (0, 1)  # small segments share a file
        told = json.loads(served.lake.transport.status(StatusRequest()).status)["memory"]
    assert (after.keys, after.long_keys) == (30, 0)
    parts = {part["name"]: part for part in told["parts"]}
    assert parts["merging the index"] == {"name": "merging the index", "nbytes": 90, "by": "30 keys"}
    assert parts["the process that merges the index"]["nbytes"] == memory.MERGE_PROCESS_BYTES
    assert told["settings_bytes"] == memory.total(memory.by_settings(served.engine.limits))
    assert told["tables_bytes"] == memory.total(memory.by_tables(after)) > 0
    assert parts["segments"]["by"] == "3 segments"
    assert [part["nbytes"] for part in told["parts"]] == sorted((p["nbytes"] for p in told["parts"]), reverse=True)


def test_keys_of_bytes_count_for_more_in_a_merge(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        table = served.lake.create_table("d.t", pa.schema([("id", pa.string())]), primary_key=["id"])
        table.upsert([{"id": f"{n}"} for n in range(20)])
        served.lake.create_table("d.log", SCHEMA).append([{"id": 1, "v": 1}])
        held = MemoryCounts.of(served.engine.view)
    assert (held.keys, held.long_keys) == (0, 20)
    of = {bound.name: bound.nbytes for bound in memory.by_tables(held)}
    assert of["merging the index"] == 20 * 2 * memory.MERGE_LONG_ENTRY_BYTES


def test_a_log_line_names_the_largest_and_whether_the_machine_has_less() -> None:
    status = MemoryStatus(1 << 30, 1 << 30, 0, memory.by_settings(DEFAULT))
    assert not status.is_too_much
    assert replace(status, tables_bytes=1).is_too_much
    assert not replace(status, mapped_files=50, mapped_files_max=100).is_too_much
    assert replace(status, mapped_files=81, mapped_files_max=100).is_too_much
    assert len(status.logged()["largest"]) == memory.LARGEST


def test_the_memory_of_a_control_group_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = memory_bytes(limit)
    limit.write_text("1048576\n")
    assert memory_bytes(limit) == 1 << 20
    limit.write_text("max\n")
    assert memory_bytes(limit) == whole > 1 << 20


def test_the_mapped_files_of_the_machine_count(tmp_path: Path) -> None:
    said = tmp_path / "max_map_count"
    assert maps_max(said) == MAPS_DEFAULT
    said.write_text("262144\n")
    assert maps_max(said) == 262_144
    said.write_text("?")
    assert maps_max(said) == MAPS_DEFAULT
