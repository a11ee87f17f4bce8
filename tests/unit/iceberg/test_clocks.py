"""Clients and a catalog whose clocks differ: Java reads every document, and clients with a right clock can commit."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Conflict
from lakestore_server.catalog import locations
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.metadata_store import SKEW_MS
from lakestore_server.catalog.schemas import Json
from tests.support.catalogs import World, set_ref, snapshot, world
from tests.support.iceberg_judge import refusal
from tests.support.seeds import examples

MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> World:
    made = world(tmp_path)
    made.create_free()
    return made


def set_comment(text: str) -> Json:
    return {"action": "set-properties", "updates": {"comment": text}}


def land(lake: World, number: int, time_ms: int) -> Json:
    """Commit a snapshot to main that a client made at this time by its clock."""
    add = snapshot(number, number - 1 or None, number)
    add["snapshot"]["timestamp-ms"] = time_ms
    return lake.commit("free", add, set_ref("main", number))


def touch(lake: World, text: str) -> Json:
    """Commit a change that has no snapshot."""
    return lake.commit("free", set_comment(text))


def times(doc: Json) -> list[int]:
    """All times of a document that Java compares, in the order in which they must not go back."""
    logs = [[entry["timestamp-ms"] for entry in doc[key]] for key in ("snapshot-log", "metadata-log")]
    for log in logs:
        assert log == sorted(log)
    return [max(log[-1:], default=0) for log in logs] + [doc["last-updated-ms"]]


def test_a_client_whose_clock_is_ahead_does_not_move_the_documents_times(lake: World) -> None:
    now = lake.now_ms
    doc = land(lake, 1, now + 2 * MINUTE)
    assert doc["snapshots"][0]["timestamp-ms"] == now + 2 * MINUTE
    assert doc["last-updated-ms"] == doc["snapshot-log"][0]["timestamp-ms"] == now
    lake.now_ms += 1
    assert touch(lake, "later")["last-updated-ms"] == now + 1
    lake.now_ms += 1
    assert times(land(lake, 2, now + 2))[2] == now + 2  # the client's clock was put right


def test_a_snapshot_that_is_over_a_minute_old_is_to_be_made_anew(lake: World) -> None:
    lake.now_ms += HOUR
    touch(lake, "now")
    with pytest.raises(Conflict, match=r"snapshot 1 is 60 s older .* clocks"):
        land(lake, 1, lake.now_ms - MINUTE - 1)
    doc = land(lake, 1, lake.now_ms - MINUTE)
    assert doc["last-updated-ms"] == doc["snapshot-log"][0]["timestamp-ms"] == lake.now_ms


def test_a_stored_document_that_java_refuses_is_mended_when_it_is_loaded(lake: World) -> None:
    """Earlier releases stored such documents: the tierer was two minutes ahead, then the server committed."""
    land(lake, 1, lake.now_ms)
    pointer = lake.ledger.pointers("db")["free"]
    path = Path(locations.plain(pointer.location))
    doc = orjson.loads(path.read_bytes())
    doc["snapshot-log"][0]["timestamp-ms"] = doc["last-updated-ms"] + 2 * MINUTE
    assert "before last snapshot log entry" in refusal(doc)
    path.write_bytes(orjson.dumps(doc))
    lake.now_ms += HOUR
    lake.catalog._store._recent.clear()
    loaded = lake.catalog.load(Name("db", "free"))
    assert refusal(loaded.data) == refusal(loaded.doc) == ""
    assert loaded.doc["last-updated-ms"] == doc["last-updated-ms"] + 2 * MINUTE
    land(lake, 2, lake.now_ms)


def test_a_catalog_whose_clock_was_set_back_lowers_the_documents_times(lake: World) -> None:
    """Else Java refuses every snapshot of a client with a right clock, for as long as the clock was ahead."""
    right = lake.now_ms
    lake.now_ms += 1_000 * HOUR
    touch(lake, "ahead")
    land(lake, 1, lake.now_ms)
    lake.now_ms = right
    loaded = lake.catalog.load(Name("db", "free"))
    assert max(times(loaded.doc)) == right
    assert refusal(loaded.doc) == ""
    assert max(times(land(lake, 2, right))) == right


COMMITS = st.lists(
    st.tuples(
        st.sampled_from(("snapshot", "property", "old main", "main, then snapshot")),
        st.integers(-3, 3).map(lambda minutes: minutes * MINUTE + 7),
        st.sampled_from((0, 1, 2 * MINUTE, HOUR, -2 * MINUTE, -HOUR)),
    ),
    min_size=1,
    max_size=8,
)


@given(COMMITS)
@settings(max_examples=examples(25))
def test_java_loads_what_any_clocks_store(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, int, int]]
) -> None:
    lake = world(tmp_path_factory.mktemp("clocks"))
    lake.create_free()
    number, landed = 0, 0
    for kind, client, step in commits:
        lake.now_ms += step
        add = snapshot(number + 1, landed or None, number + 1)
        add["snapshot"]["timestamp-ms"] = lake.now_ms + client
        older = set_ref("main", 1)
        updates = {
            "snapshot": [add, set_ref("main", number + 1)],
            "property": [set_comment(f"{step} {client}")],
            "old main": [older],
            "main, then snapshot": [older, add],
        }[kind]
        if "main" in kind and not landed:
            continue
        base = lake.load("free")
        try:
            doc = lake.commit("free", *updates)
        except Conflict:
            assert base["last-updated-ms"] - add["snapshot"]["timestamp-ms"] > SKEW_MS
            continue
        if len(updates) == 2:
            number += 1
            landed = number if kind == "snapshot" else landed
        assert refusal(doc) == ""
        assert max(times(doc)) <= lake.now_ms
