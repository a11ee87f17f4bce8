"""The bench of growth tells what it measured: figures with bars, slopes, the plot and the page, of made-up numbers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench import machine
from tests.bench.growth import measured, page_cache, pages, picture
from tests.bench.growth.keyed import Progress
from tests.bench.growth.measured import Measured, slope
from tests.bench.growth.rows import KINDS, NUMBER, UUID, Rows
from tests.support.page_cache import forget

GOOD = Measured(
    keys=1_000_000,
    insert=900_000,
    insert_tenths=[900_000] * 10,
    insert_written=3.0,
    upsert=1_500_000,
    upsert_seconds=60.0,
    upsert_tens=[1_400_000] * 6,
    upsert_written=5.0,
    upsert_cancelled=0.1,
    checkpoints=60,
    checkpoint_seconds=0.5,
    anonymous_bytes=1 << 30,
    commit_p50_ms=5.0,
    commit_p99_ms=20.0,
    commit_max_ms=40.0,
    lookup=300_000,
    lookup_first_second=120_000,
    single_p50_ms=0.4,
    single_p99_ms=1.0,
    restart_seconds=2.0,
    index_bytes=20_000_000,
    index_bytes_upserted=30_000_000,
    segment_bytes=1 << 32,
    journal_bytes=1 << 20,
    stored_rows=90_000_000,
)


def at(count: int, **changes: float | str) -> Measured:
    """The good figures at another number of keys."""
    scale = count // GOOD.keys
    sizes = {"index_bytes": GOOD.index_bytes * scale, "index_bytes_upserted": GOOD.index_bytes_upserted * scale}
    return replace(GOOD, keys=count, **{**sizes, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [NUMBER, UUID])
def test_keys_are_all_different_and_rows_have_their_bytes(kind: str) -> None:
    found = KINDS[kind].of(np.arange(100_000, dtype=np.int64))
    assert len(found.unique()) == len(found)
    batch = Rows(1, kind).of(np.arange(10, dtype=np.int64))
    widths = {"name": 16, "id": KINDS[kind].key_bytes}
    assert KINDS[kind].row_bytes == sum(
        widths[name] if name in widths else batch[name].type.bit_width // 8 for name in batch.schema.names
    )
    assert {len(text) for text in batch["name"].to_pylist()} == {16}


def test_keys_are_spread_evenly_and_uuids_are_such() -> None:
    numbers = np.arange(20_000, dtype=np.int64)
    assert 0.4 < (KINDS[NUMBER].of(numbers).to_numpy() < 0).mean() < 0.6
    found = KINDS[UUID].of(numbers[:1_000]).to_pylist()
    assert all(str(each) == text and each.version == 4 for text in found for each in [uuid.UUID(text)])
    assert len({text[0] for text in found}) == 16


def test_bars_hold_from_fifty_million_keys_on_and_ratios_are_to_others() -> None:
    known = {each.keys: each for each in (GOOD, at(50_000_000), at(100_000_000, upsert=1_100_000))}
    few = list(measured.figures(GOOD, known))
    assert {figure.met for figure in few} == {None}
    many = {figure.name: figure.met for figure in measured.figures(known[50_000_000], known)}
    assert False not in many.values()
    assert many["50 M keys: upserts over those at 1 M"] is True
    most = {figure.name: figure.met for figure in measured.figures(known[100_000_000], known)}
    assert most["100 M keys: upserts over those at 50 M"] is False


def test_figures_of_other_keys_are_for_comparison_but_for_bytes_written() -> None:
    found = {each.name: each for each in measured.figures(at(50_000_000, key=UUID, upsert_written=6.1), {})}
    assert [name for name, each in found.items() if each.met is not None] == [
        "50 M UUID keys: bytes written per byte of upserted row"
    ]
    assert found["50 M UUID keys: bytes written per byte of upserted row"].met is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upsert", 900_000),
        ("upsert_written", 6.1),
        ("commit_p99_ms", 31.0),
        ("lookup", 240_000),
        ("lookup_first_second", 90_000),
        ("restart_seconds", 4.1),
        ("index_bytes_upserted", 46 * 50_000_000),
    ],
)
def test_each_bar_is_missed_by_its_figure_alone(name: str, value: float) -> None:
    found = at(50_000_000, **{name: value})
    missed = [figure.name for figure in measured.figures(found, {}) if figure.met is False]
    assert len(missed) == 1


def test_the_pace_of_the_machine_is_told_for_each_part(tmp_path: Path) -> None:
    first, second = {"hashed": 1_500.0, "gathered": 9.0, "synced": 400.0}, machine.pace(tmp_path)
    assert min(second.values()) > 0
    assert not list(tmp_path.iterdir())
    figures = measured.figures(replace(GOOD, paces={"insert": first, "upsert": second}), {})
    [told] = [each for each in figures if each.name.endswith("pace of the machine")]
    assert told.measured.startswith("before insert, upsert: SHA-256 1,500, ")
    assert told.met is None


def test_files_count_as_in_memory_when_read_and_not_when_dropped(tmp_path: Path) -> None:
    assert page_cache.share(tmp_path) == 1.0
    (tmp_path / "within").mkdir()
    for name in ("one", "within/two"):
        with (tmp_path / name).open("wb") as file:
            file.write(bytes(3 << 20))
    forget(tmp_path / "within/two")
    assert page_cache.share(tmp_path / "within") == 0.0
    assert page_cache.share(tmp_path) <= 0.5
    assert page_cache.fill(tmp_path) >= page_cache.ENOUGH
    assert page_cache.share(tmp_path) >= page_cache.ENOUGH


def test_reads_tell_how_much_of_the_files_was_in_memory() -> None:
    left = {"left_restart_seconds": 3.5, "left_first_second": 7_000, "left_cached": 0.31}
    found = at(50_000_000, lookup_cached=1.0, restart_cached=0.999, **left)
    shown = {each.name.removeprefix("50 M keys: "): each for each in measured.figures(found, {})}
    assert shown["look-ups of 1,000, warm"].measured == "300,000 keys/s with 100% of the files in memory"
    restart = shown["kill -9 to first look-up"]
    assert restart.measured == "2.00 s with 100% of the files in memory; 3.50 s with 31% of the files in memory"
    first = shown["look-ups of 1,000 in the first second of serving"]
    assert first.measured.endswith("; 7,000 with 31% of the files in memory")
    assert first.met is restart.met is True


def test_slopes_are_exponents() -> None:
    assert slope([(10, 5.0), (1_000, 5.0)]) == pytest.approx(0)
    assert slope([(10, 100.0), (1_000, 1.0)]) == pytest.approx(-1)
    assert slope([(10, 5.0)]) is None
    assert slope([]) is None


def test_progress_is_told_over_rows_and_over_seconds() -> None:
    progress = Progress()
    progress._times, progress._rows = [1.0, 2.0, 4.0], [100, 200, 300]
    assert progress.over_rows(3) == [100, 100, 50]
    assert progress.over_seconds(2.0) == [100, 50]
    assert progress.mean == 75


def test_the_page_and_the_plot_show_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "STORE", tmp_path / "growth.json")
    crowd = {"start_seconds": 1.0, "checkpoint_seconds": 0.1, "status_seconds": 0.1, "metrics_seconds": 0.1}
    measured.store([GOOD], {"crowd": {"7 tables": {**crowd, "commit_max_ms": 5.0, "anonymous_bytes": 1 << 20}}})
    measured.store([at(50_000_000, restart_seconds=-1)], {})
    assert measured.known() == {each.keys: each for each in (GOOD, at(50_000_000, restart_seconds=-1))}
    assert not measured.known(UUID)
    measured.store([replace(GOOD, key=UUID, index_bytes=66_000_000)], {})
    assert len(measured.known()) == 2
    assert measured.known(UUID) == {1_000_000: replace(GOOD, key=UUID, index_bytes=66_000_000)}
    page = pages.page(pages.PAGE.read_text())
    assert page.count("1 M UUID keys") == 2
    assert page.count("50 M keys") == 2
    assert "| index at rest, a key | 20.0 B / 17.5 B | 20.0 B / 17.5 B | 66.0 B / 65.5 B |" in page
    assert "| kill -9 to first look-up | 2.0 s / 5.5 s | – / 5.5 s | 2.0 s" in page
    assert "| 7 tables | 1.0 s |" in page
    assert pages.page(page) == page
    picture.draw(measured.known(), tmp_path / "growth.svg")
    assert "uniform upserts, slope +0.00" in (tmp_path / "growth.svg").read_text()
