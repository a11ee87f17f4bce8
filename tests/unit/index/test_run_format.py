"""Runs against dictionaries: look-ups, slices and merges are right for any numbers, and no flipped bit changes that."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lakestore.errors import NewerFormat
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import number_section
from lakestore_server.index.entry import ABSENT, FLAG, DamagedIndex, key_hash, table_prefix
from lakestore_server.index.keys import NumberKeys
from lakestore_server.index.levels import RUNS_TIMES, SIMILAR, Levels, due
from lakestore_server.index.number_section import NumberSection, packed
from lakestore_server.index.overlay import merged
from lakestore_server.index.run import HEADER_BYTES, Run
from lakestore_server.index.run_blocks import BLOCK_BYTES
from lakestore_server.index.run_filter import LookupNumbers
from lakestore_server.index.run_merge import merge, of_numbers, slices
from lakestore_server.index.run_writer import RunWriter
from tests.support.seeds import seeded
from tests.support.world.disk import SimDisk

DISK = RealDisk()
HASH = key_hash(bytes(32))
TABLES = {0: 1, 1: 8, 2: 3, 7: 1}
"""Numbers of tables, and the bytes of their keys."""

SERVED = {table_prefix(1), table_prefix(2)}

Tables = Mapping[int, Mapping[int, int]]


def arrays(entries: Mapping[int, int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    numbers = sorted(entries)
    return np.array(numbers, dtype=np.uint64), np.array([entries[n] for n in numbers], dtype=np.int64)


def written(path: Path, tables: Tables, *, is_checked: bool = False) -> Run:
    """A run of such entries."""
    writer = RunWriter(DISK, path, HASH, 7)
    for number, entries in sorted(tables.items()):
        section = writer.begin(number, TABLES[number], len(entries) + 1)
        numbers, values = arrays(entries)
        for first in range(0, len(numbers), 1000):
            part = slice(first, first + 1000)
            section.add(numbers[part], packed(numbers[part], values[part]))
        section.end()
    writer.finish()
    return Run(path, DISK.map(path), is_checked=is_checked)


def drawn(chance: random.Random, width: int, most: int) -> dict[int, int]:
    """Numbers of a width, its ends among them, to values of each kind."""
    top = (1 << 8 * width) - 1
    near = chance.randrange(top + 1)
    numbers = {0, top, *(chance.choice((chance.randrange(top + 1), min(near + n, top))) for n in range(most))}
    return {number: value(chance) for number in numbers}


def value(chance: random.Random) -> int:
    offset = chance.choice((0, chance.randrange(1 << 44), chance.randrange(1000)))
    return chance.choice((offset, offset, offset | FLAG, ABSENT))


def asked(chance: random.Random, width: int, entries: Mapping[int, int]) -> list[int]:
    """Numbers that are there, their neighbours, and others; ascending."""
    top = (1 << 8 * width) - 1
    near = [min(n + 1, top) for n in chance.sample(sorted(entries), min(len(entries), 50))]
    return sorted({*entries, *near, *(chance.randrange(top + 1) for _ in range(50))})


@pytest.mark.parametrize("guided_min", [1, number_section.GUIDED_MIN])
@pytest.mark.parametrize("entries", [1, 2, 31, 33, 700, 1024, 1025, 9000])
def test_every_number_is_found_with_its_value_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int, guided_min: int
) -> None:
    monkeypatch.setattr(number_section, "GUIDED_MIN", guided_min)
    chance = seeded(entries)
    tables = {number: drawn(chance, width, entries) for number, width in TABLES.items()}
    run = written(tmp_path / "1.run", tables)
    assert run.entries == sum(map(len, tables.values()))
    for number, width in TABLES.items():
        (section,), right = sectioned(run, number), tables[number]
        numbers = asked(chance, width, right)
        expected = [right.get(n, MISS) for n in numbers]
        assert section.find(LookupNumbers.of(np.array(numbers, dtype=np.uint64))).tolist() == expected
        few = chance.sample(range(len(numbers)), min(len(numbers), 200))
        assert [section.one(numbers[at]) for at in few] == [expected[at] for at in few]
        order = sorted(right)
        assert [section.below(numbers[at]) for at in few] == [bisect.bisect_left(order, numbers[at]) for at in few]
        assert section.below(1 << 64) == len(order)
    assert Run(tmp_path / "1.run", DISK.map(tmp_path / "1.run")).sections.keys() == run.sections.keys()


def test_the_newest_entry_holds_and_absent_goes_only_at_the_bottom(tmp_path: Path) -> None:
    chance = seeded(3)
    for turn in range(6):
        layers = [
            {number: drawn(chance, width, chance.choice((0, 5, 300, 3000))) for number, width in TABLES.items()}
            for _ in range(chance.randrange(1, 5))
        ]
        runs = [written(tmp_path / f"{turn}-{at}.run", layer) for at, layer in enumerate(layers)]
        right = {number: {k: v for layer in reversed(layers) for k, v in layer[number].items()} for number in TABLES}
        keys = {number: asked(chance, width, right[number]) for number, width in TABLES.items()}
        found = {
            number: Levels(0, tuple(runs)).find(
                NumberKeys(table_prefix(number), TABLES[number], np.array(keys[number], dtype=np.uint64))
            )
            for number in TABLES
        }
        for number in TABLES:
            assert found[number].tolist() == [right[number].get(n, MISS) for n in keys[number]]
            sections = of_numbers(Levels(0, tuple(runs)).sections(table_prefix(number)))
            parts = [part for part, _ in slices(sections, chance.randrange(1, 500))]
            assert np.concatenate(parts).tolist() == sorted(right[number])
        writer = RunWriter(DISK, tmp_path / f"{turn}.run", HASH, 7)
        assert merge(writer, runs, lambda p: p in SERVED, lambda p: p == table_prefix(2), lambda _: True)
        output = Run(tmp_path / f"{turn}.run", DISK.map(tmp_path / f"{turn}.run"))
        assert set(output.sections) <= SERVED
        for number in (1, 2):
            kept = {k: v for k, v in right[number].items() if number == 1 or v != ABSENT}
            held = [np.concatenate(list(part)) for part in zip(*slices(sectioned(output, number), 900), strict=True)]
            numbers = held[0].tolist() if held else []
            assert numbers == sorted(kept)
            if kept:
                assert sectioned(output, number)[0].find(LookupNumbers.of(held[0])).tolist() == [
                    kept[n] for n in numbers
                ]


def sectioned(run: Run, number: int) -> list[NumberSection]:
    return of_numbers(Levels(0, (run,)).sections(table_prefix(number)))


def test_a_merge_that_is_told_to_end_writes_no_directory(tmp_path: Path) -> None:
    run = written(tmp_path / "1.run", {1: {5: 5}})
    writer = RunWriter(DISK, tmp_path / "2.run", HASH, 7)
    assert not merge(writer, [run], lambda _: True, lambda _: True, lambda _: False)
    writer.close()
    with pytest.raises(DamagedIndex):
        Run(tmp_path / "2.run", DISK.map(tmp_path / "2.run"))


def test_the_first_keys_of_ranges_are_those_of_all_runs(tmp_path: Path) -> None:
    chance = seeded(9)
    layers = [drawn(chance, 3, 400) for _ in range(3)]
    levels = Levels(0, tuple(written(tmp_path / f"{at}.run", {2: layer}) for at, layer in enumerate(layers)))
    right = {k: v for layer in reversed(layers) for k, v in layer.items()}
    prefix = table_prefix(2)
    for _ in range(60):
        first, end = sorted(chance.randrange(1 << 24) for _ in range(2))
        low, high = (prefix + n.to_bytes(3, "big")[: chance.randrange(4)] for n in (first, end))
        most = chance.choice((1, 3, 1000))
        sources = [source[0] for source in levels.ranges([(low, high)], most, prefix)]
        found = merged(sources, most)
        live = {
            key: v for n, v in right.items() if 0 <= v < FLAG and low <= (key := prefix + n.to_bytes(3, "big")) < high
        }
        expected = sorted(key for key in live if found.end is None or key <= found.end)
        assert found.keys == expected
        assert found.values == [live[key] for key in expected]


def flips(size: int, chance: random.Random) -> Sequence[int]:
    """Places all over a file: each region's ends, and some within."""
    ends = [
        0,
        3,
        5,
        HEADER_BYTES - 1,
        HEADER_BYTES,
        BLOCK_BYTES - 1,
        *(BLOCK_BYTES + 16 * n + 7 for n in range(12)),
        size - 1,
        size - 5,
        size - 9,
        size - 14,
    ]
    return [*ends, *(chance.randrange(size) for _ in range(50))]


@pytest.mark.parametrize("others", [{}, {0: {n: n for n in range(7)}}], ids=["alone", "behind another table"])
def test_a_flipped_bit_anywhere_gives_an_error_or_the_right_answer(tmp_path: Path, others: Tables) -> None:
    chance = seeded(4)
    right = drawn(chance, 8, 10_000)
    order = sorted(right)
    whole = written(tmp_path / "1.run", {**others, 1: right})
    first = sectioned(whole, 1)[0]._at * 8
    data = bytearray((tmp_path / "1.run").read_bytes())
    numbers = asked(chance, 8, right)
    expected = np.array([right.get(n, MISS) for n in numbers], dtype=np.int64)
    keys = NumberKeys(table_prefix(1), 8, np.array(numbers, dtype=np.uint64))
    assert (Levels(0, (whole,)).find(keys) == expected).all()
    seen = 0
    for at in flips(len(data), chance):
        data[at] ^= (bit := 1 << chance.randrange(8))
        (tmp_path / "2.run").write_bytes(data)
        data[at] ^= bit
        try:
            run = Run(tmp_path / "2.run", DISK.map(tmp_path / "2.run"))
            some = np.sort(np.array(chance.sample(range(len(numbers)), 9)))
            hit = order[min(max(at - first, 0) // 16, len(order) - 1)]
            one = np.array([bisect.bisect_left(numbers, hit)])
            for rows in chance.sample([one, some[:1], some, np.arange(len(numbers))], 4):
                found = Levels(0, (run,)).find(keys.take(rows))
                assert (found == expected[rows]).all(), f"wrong answer after a flip at byte {at}"
            assert sum(map(bool, (damage for _, damage in run.scrub()))), f"the scrub misses byte {at}"
        except (DamagedIndex, NewerFormat):
            seen += 1
    assert seen > 30


def test_samples_and_filter_are_whole_or_the_run_is_not_opened(tmp_path: Path) -> None:
    """No look-up compares them: they lie in blocks of their own where a table is large."""
    run = written(tmp_path / "1.run", {1: dict.fromkeys(range(70_000), 3)})
    (section,) = sectioned(run, 1)
    size = run.size
    data = bytearray((tmp_path / "1.run").read_bytes())
    end = 512 + 16 * 70_000
    assert size > end + BLOCK_BYTES
    for at in (end + 5, end + 8 * len(section._samples) // 2, size - 40_000, end + 70_000):
        data[at] ^= 1
        (tmp_path / "2.run").write_bytes(data)
        data[at] ^= 1
        with pytest.raises(DamagedIndex):
            Run(tmp_path / "2.run", DISK.map(tmp_path / "2.run"))


@pytest.mark.parametrize("kept", [0, 7, 600, 70_000, -1])
def test_a_run_that_is_cut_short_is_damaged(tmp_path: Path, kept: int) -> None:
    written(tmp_path / "1.run", {1: dict.fromkeys(range(9000), 3)})
    data = (tmp_path / "1.run").read_bytes()
    (tmp_path / "2.run").write_bytes(data[:kept])
    with pytest.raises(DamagedIndex):
        Run(tmp_path / "2.run", DISK.map(tmp_path / "2.run"))


def test_a_finished_run_is_durable_but_for_its_name(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "data")
    writer = RunWriter(disk, tmp_path / "data" / "r.run", HASH, 1)
    section = writer.begin(1, 8, 1_000)
    numbers, values = arrays({number: number for number in range(1_000)})
    section.add(numbers, packed(numbers, values))
    section.end()
    writer.finish()
    disk.sync_folder(tmp_path / "data")
    after = disk.crash(tmp_path / "after")
    assert after.read(tmp_path / "after" / "r.run") == disk.read(tmp_path / "data" / "r.run")


def test_an_entry_that_is_not_its_own_is_damage_even_if_its_block_is_whole(tmp_path: Path) -> None:
    """The block's checksum may be of a wrong content: each entry has a check of its own."""
    numbers = np.arange(1000, dtype=np.uint64)
    writer = RunWriter(DISK, tmp_path / "1.run", HASH, 7)
    section = writer.begin(1, 8, 1000)
    stored = packed(numbers, numbers.astype(np.int64))
    section.add(numbers, np.roll(stored, 1))
    section.end()
    writer.finish()
    levels = Levels(0, (Run(tmp_path / "1.run", DISK.map(tmp_path / "1.run")),))
    for rows in (slice(5, 6), slice(5, 8), slice(0, 1000)):
        with pytest.raises(DamagedIndex, match="do not match their checks"):
            levels.find(NumberKeys(table_prefix(1), 8, numbers[rows]))
    bound = table_prefix(1) + (7).to_bytes(8, "big"), table_prefix(1) + (9).to_bytes(8, "big")
    with pytest.raises(DamagedIndex, match="do not match their checks"):
        list(levels.ranges([bound], 5, table_prefix(1)))


@pytest.mark.parametrize("base", [0, 50_000_000])
@pytest.mark.parametrize("often", [1, 24, 50])
def test_runs_stay_few_with_checkpoints_of_different_sizes(often: int, base: int) -> None:
    """A large one now and then, and small ones between; or of any size."""
    for small in (10_000, 0):
        chance, sizes = random.Random(often), [base] if base else []
        rewritten = added = 0
        for at in range(1_000):
            size = 1_000_000 if at % often == 0 else small or int(10 ** chance.uniform(1, 6.5))
            sizes, added = [size, *sizes], added + size
            while count := due(sizes):
                rewritten += sum(sizes[:count])
                sizes = [base if base and count == len(sizes) else sum(sizes[:count]), *sizes[count:]]
            assert len(sizes) <= RUNS_TIMES * SIMILAR
        assert rewritten <= 6 * added


def test_runs_stay_few_and_entries_are_rewritten_seldom() -> None:
    """Equal checkpoints for a long time: some runs at most, each entry written a handful of times."""
    sizes: list[int] = []
    rewritten, most = 0, 0
    for _ in range(4096):
        sizes = [1, *sizes]
        while count := due(sizes):
            assert 2 <= count <= len(sizes)
            rewritten += sum(sizes[:count])
            sizes = [sum(sizes[:count]), *sizes[count:]]
        most = max(most, len(sizes))
    assert most <= 24
    assert rewritten <= 4096 * 8
