"""Look-ups at a cut against a dict of versions, over random histories; and what a cut may be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.errors import Invalid, PositionExpired
from lakestore.model.token import LogPosition
from lakestore_server.read import lookup_at
from tests.support.log_start import move_log_start
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
NAMES = ["", "x", "x\0", "l" * 600, "l" * 601]
KEYS = [(name, number) for name in NAMES for number in (-1, 0, 7)]
Live = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("at") / "data") as running:
        yield running


@pytest.fixture(scope="module", name="lake")
def _lake(served: Served) -> ls.Lake:
    return served.lake


def fresh(lake: ls.Lake, version: int = 2) -> ls.Table:
    name, kept = f"t.t{len(lake.tables())}", {"format_version": version}
    return lake.create_table(name, SCHEMA, primary_key=["a", "b"], bucket_key=["a"], buckets=3, lake=kept)


STEP: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)),
    st.tuples(st.just("hot"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=1)),
    st.tuples(st.just("checkpoint"), st.just([])),
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=1, max_size=12), data=st.data())
def test_every_key_and_prefix_at_every_cut_is_as_the_versions_say(
    served: Served, lake: ls.Lake, steps: list[tuple[str, list[tuple[str, int]]]], data: st.DataObject
) -> None:
    table, live, number = fresh(lake), Live(), 0
    history: list[tuple[str, Live]] = []
    for kind, keys in steps:
        for _ in range(12 if kind == "hot" else 1):  # more versions than are walked back
            number += 1
            if kind in ("upsert", "hot"):
                token = table.upsert([{"a": a, "b": b, "v": number} for a, b in keys])
                live = live | dict.fromkeys(keys, number)
            elif kind == "delete":
                token = table.delete([{"a": a, "b": b} for a, b in keys])
                live = {key: v for key, v in live.items() if key not in keys}
            else:
                served.checkpoint()
                continue
        if kind != "checkpoint":
            history.append((token, live))
    for at, then in [*history[-1:], *data.draw(st.lists(st.sampled_from(history), max_size=3))] if history else []:
        asked = data.draw(st.permutations(KEYS))
        found = table.lookup([{"a": a, "b": b} for a, b in asked], at=at).to_pylist()
        assert found == [{"a": a, "b": b, "v": then[a, b]} for a, b in asked if (a, b) in then]
        by_name = table.lookup([{"a": name} for name in NAMES], at=at, columns=["v"]).column("v").to_pylist()
        assert by_name == [then[key] for key in KEYS if key in then]
        assert table.scan(at=at).count() == len(then)


def test_a_key_whose_versions_are_many_is_searched_instead_of_followed(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fresh(lake)
    token = table.upsert([{"a": "x", "b": 1, "v": 0}])
    for i in range(1, lookup_at.WALK_STEPS_MAX + 3):
        table.upsert([{"a": "x", "b": 1, "v": i}])
    assert table.lookup([{"a": "x", "b": 1}], at=token).column("v").to_pylist() == [0]
    searched: list[int] = []
    monkeypatch.setattr(lookup_at, "_searched", lambda *a: searched.append(1))
    assert table.lookup([{"a": "x", "b": 1}]).num_rows == 1
    late = table.upsert([{"a": "x", "b": 1, "v": 100}])
    table.upsert([{"a": "x", "b": 1, "v": 101}])
    assert table.lookup([{"a": "x", "b": 1}], at=late).column("v").to_pylist() == [100]
    assert not searched


def test_a_cut_that_lies_ahead_is_waited_for(served: Served, lake: ls.Lake) -> None:
    table, other = fresh(lake), fresh(lake)
    engine = served.engine
    ahead = str(LogPosition(engine.timeline, engine.view.lsn + 2))
    found: list[pa.Table] = []
    reader = threading.Thread(target=lambda: found.append(table.lookup([{"a": "x", "b": 1}], at=ahead)))
    reader.start()
    other.upsert([{"a": "x", "b": 1, "v": 1}])
    assert not found
    table.upsert([{"a": "x", "b": 1, "v": 2}])
    reader.join(60)
    assert found[0].column("v").to_pylist() == [2]


def test_a_time_is_a_cut_too_and_what_is_none_is_refused(served: Served, lake: ls.Lake) -> None:
    table = fresh(lake)
    table.upsert([{"a": "x", "b": 1, "v": 1}])
    then = datetime.fromtimestamp(served.engine.view.time_us / 1e6, UTC)
    served.clock.advance(1)
    table.upsert([{"a": "x", "b": 1, "v": 2}])
    assert table.lookup([{"a": "x"}], at=then).column("v").to_pylist() == [1]
    with pytest.raises(Invalid, match="neither a position token nor a time"):
        table.lookup([{"a": "x"}], at="yesterday")
    young, before = fresh(lake), str(LogPosition(served.engine.timeline, 1))
    with pytest.raises(Invalid, match="did not exist"):
        young.lookup([{"a": "x"}], at=before)


def test_rows_at_a_cut_are_shown_in_the_version_there_as_a_scan_shows_them(lake: ls.Lake) -> None:
    table = fresh(lake, 3)
    token = table.upsert([{"a": "x", "b": 1, "v": 1}])
    table.alter(rename={"a": "name", "v": "value"}, add={"w": pa.string()}, default={"w": "new"})
    table.upsert([{"name": "x", "b": 1, "value": 2, "w": "u"}])
    later = table.upsert([{"name": "y", "b": 1, "value": 3}])
    table.alter(drop=["w"])
    for cut in (token, later):
        past = table.lookup([{"name": "x", "b": 1}], at=cut)
        scanned = table.scan(at=cut, where="b = 1").to_arrow()
        assert past.schema.names == scanned.schema.names
        assert past.to_pylist()[0] in scanned.to_pylist()
        assert table.lookup([{"name": "x"}], at=cut).to_pylist() == past.to_pylist()
    assert table.lookup([{"name": "x", "b": 1}], at=token, columns=["value"]).to_pylist() == [{"v": 1}]
    assert table.lookup([{"name": "x", "b": 1}], at=later, columns=["w"]).to_pylist() == [{"w": "u"}]
    with pytest.raises(Invalid, match="no column 'w'"):
        table.lookup([{"name": "x", "b": 1}], columns=["w"])


def test_a_cut_below_the_log_start_is_refused_and_one_above_it_is_exact(tmp_path: Path) -> None:
    served = Served(tmp_path)
    try:
        table = served.lake.create_table("t.old", SCHEMA, primary_key=["a", "b"], buckets=1, retention="1d")
        served.clock.advance(1)
        first = table.upsert([{"a": "x", "b": b, "v": b} for b in range(5)])
        start = table.upsert([{"a": "x", "b": 0, "v": 100}])
        move_log_start(served.engine, "t.old")
        served.checkpoint()
        table.delete([{"a": "x", "b": 1}])
        table.upsert([{"a": "x", "b": 2, "v": 200}])
        keys = [{"a": "x", "b": b} for b in range(6)]
        assert table.lookup(keys, at=start).column("v").to_pylist() == [100, 1, 2, 3, 4]
        assert table.lookup(keys).column("v").to_pylist() == [100, 200, 3, 4]
        with pytest.raises(PositionExpired, match=r"its log starts there.*read a later position"):
            table.lookup(keys, at=first)
    finally:
        served.close()
