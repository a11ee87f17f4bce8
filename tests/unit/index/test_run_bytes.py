"""Keys of bytes in runs against dictionaries: look-ups, ranges and merges are right for any keys, and any hashes."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from lakestore.errors import Invalid, NewerFormat, Unavailable
from lakestore.rows.ipc import crc32c
from lakestore.rows.live_sum import live_sum
from lakestore_server.arrays.hash_table import MISS
from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import byte_merge, run_store, run_writer
from lakestore_server.index.byte_section import ByteSection, places
from lakestore_server.index.entry import (
    ABSENT,
    FLAG,
    OFFSET_BITS,
    DamagedIndex,
    KeyHash,
    is_live,
    key_hash,
    table_prefix,
)
from lakestore_server.index.keys import ByteKeys, NumberKeys
from lakestore_server.index.levels import Levels, walk
from lakestore_server.index.overlay import merged
from lakestore_server.index.run import FOOTER, HEADER, HEADER_BYTES, MAGIC, Run
from lakestore_server.index.run_merge import merge, of_bytes
from lakestore_server.index.run_store import write
from lakestore_server.index.run_writer import RunWriter
from tests.support.seeds import seeded

DISK = RealDisk()
HASH = key_hash(bytes(32))
PREFIX, OTHER, NUMBERS = table_prefix(5), table_prefix(6), table_prefix(2)
Model = Mapping[bytes, int]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks in each run, and several slices in each merge."""
    monkeypatch.setattr(run_store, "PART_ENTRIES", 50)
    monkeypatch.setattr(byte_merge, "SLICE_KEYS", 37)
    monkeypatch.setattr(byte_merge, "SLICE_HASHES", 60)


@pytest.fixture(params=[64, 3, 0], ids=["hashes", "eight hashes", "one hash"])
def _hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that keep so many of their upper bits."""
    mask = (1 << 64) - (1 << (64 - request.param))
    many, one = KeyHash.many, KeyHash.one

    def some(self: KeyHash, keys: PaddedBytes) -> npt.NDArray[np.uint64]:
        found: npt.NDArray[np.uint64] = many(self, keys) & np.uint64(mask)
        return found

    monkeypatch.setattr(KeyHash, "many", some)
    monkeypatch.setattr(KeyHash, "one", lambda self, key: one(self, key) & mask)


def keyed(keys: list[bytes]) -> ByteKeys:
    return ByteKeys(None, PaddedBytes.of(keys))


def written(path: Path, entries: Model, *, numbers: int = 0, is_checked: bool = False, lsn: int = 7) -> Run:
    """A run of such entries, between those of another table and of one whose keys are numbers."""
    writer = RunWriter(DISK, path, HASH, lsn)
    if numbers:
        write(writer, NumberKeys(NUMBERS, 8, np.arange(numbers, dtype=np.uint64)), np.arange(numbers))
    keys = list(entries)
    if keys:
        write(writer, keyed(keys), np.array([entries[key] for key in keys]))
    if numbers:
        write(writer, keyed([OTHER + b"%d" % n for n in range(numbers)]), np.arange(numbers))
    writer.finish()
    return Run(path, DISK.map(path), is_checked=is_checked)


def drawn(chance: random.Random, most: int) -> dict[bytes, int]:
    """Keys that differ early, late, or in their lengths alone, to values of each kind."""
    tails: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: b"\0" * chance.randrange(20),
        lambda: b"%032x" % chance.getrandbits(128),
        lambda: b"common to all of them " * 3 + b"%d" % chance.randrange(most),
        lambda: bytes([chance.randrange(3)]) * chance.randrange(500),
        lambda: chance.randbytes(chance.randrange(12)),
    ]
    return {PREFIX + chance.choice(tails)(): value(chance) for _ in range(most)}


def value(chance: random.Random) -> int:
    offset = chance.choice((0, chance.randrange(1 << OFFSET_BITS), chance.randrange(1000)))
    bucket = chance.choice((0, 0, chance.randrange(1 << 16))) << OFFSET_BITS
    return chance.choice((offset | bucket, offset, offset | bucket | FLAG, ABSENT))


def asked(chance: random.Random, entries: Model) -> list[bytes]:
    """Keys that are there, near ones and others, in no order."""
    near = [chance.choice((key + b"\0", key[:-1], key + b"x")) for key in entries if len(key) > 4]
    found = list({*entries, *(key for key in near if key.startswith(PREFIX)), *drawn(chance, 50)})
    chance.shuffle(found)
    return found


def found(levels: Levels, keys: list[bytes]) -> list[int]:
    """By one look-up, which each alone agrees with."""
    values: list[int] = levels.find(keyed(keys)).tolist()
    for at in range(0, len(keys), 7):
        assert levels.find(ByteKeys([keys[at]])).tolist() == values[at : at + 1]
    return values


@pytest.mark.usefixtures("_hashes")
@pytest.mark.parametrize("entries", [1, 2, 33, 400])
def test_every_key_is_found_with_its_value_and_no_other(tmp_path: Path, entries: int) -> None:
    chance = seeded(entries)
    right = drawn(chance, entries)
    for is_checked in (True, False):
        run = written(tmp_path / f"{is_checked}.run", right, numbers=chance.choice((0, 90)), is_checked=is_checked)
        levels, keys = Levels(0, (run,)), asked(chance, right)
        assert found(levels, keys) == [right.get(key, MISS) for key in keys]
        section, order = run.sections[PREFIX], sorted(right)
        assert isinstance(section, ByteSection)
        assert [section.key(rank) for rank in range(section.count)] == order
        assert [section.below(key) for key in keys] == [bisect.bisect_left(order, key) for key in keys]
        for first, last in itertools.pairwise([0, *sorted(chance.choices(range(len(order) + 1), k=4)), len(order)]):
            part, values = section.part(first, last)
            assert part.listed() == order[first:last]
            assert values.tolist() == [right[key] for key in order[first:last]]


@pytest.mark.usefixtures("_hashes")
def test_the_newest_entry_holds_over_levels_and_absent_goes_only_at_the_bottom(tmp_path: Path) -> None:
    chance = seeded(3)
    for turn in range(2):
        layers = [drawn(chance, chance.choice((1, 5, 60, 200))) for _ in range(chance.randrange(1, 5))]
        for newer, older in itertools.pairwise(layers):
            newer |= {key: value(chance) for key in chance.sample(sorted(older), len(older) // 2)}
        runs = [written(tmp_path / f"{turn}-{at}.run", layer, numbers=9) for at, layer in enumerate(layers)]
        right = {key: v for layer in reversed(layers) for key, v in layer.items()}
        keys = asked(chance, right)
        assert found(Levels(0, tuple(runs)), keys) == [right.get(key, MISS) for key in keys]
        sums = list(walk(Levels(0, tuple(runs)), PREFIX, chance.randrange(1, 90)))
        live = np.array(list(right.values()))
        live = live[is_live(live)] & ((1 << OFFSET_BITS) - 1)
        assert (sum(part.live for part in sums), sum(part.total for part in sums) % (1 << 64)) == (
            len(live),
            live_sum(live),
        )
        for drops in (False, True):
            path = tmp_path / f"{turn}{drops}.run"
            writer = RunWriter(DISK, path, HASH, 7)
            served = {PREFIX, NUMBERS}
            assert merge(writer, runs, served.__contains__, {True: all_go, False: none_go}[drops], lambda _: True)
            output, kept = Run(path, DISK.map(path)), {k: v for k, v in right.items() if v != ABSENT or not drops}
            assert output.sections.keys() == ({PREFIX, NUMBERS} if kept else {NUMBERS})
            assert found(Levels(0, (output,)), keys) == [kept.get(key, MISS) for key in keys]
            held = of_bytes(list(output.sections.values()))
            assert [key for section in held for key in section.part(0, section.count)[0].listed()] == sorted(kept)


def test_ranks_stay_narrow_where_runs_of_the_same_keys_are_merged_for_ever(tmp_path: Path) -> None:
    """A rank never loses a bit of the hash; it must not gain one each time either."""
    entries = {PREFIX + b"%d" % n: n for n in range(100)}
    run = written(tmp_path / "base.run", entries)
    for turn in range(20):
        newer = written(tmp_path / f"{turn}.run", {PREFIX + b"%d" % n: n for n in range(turn, 90)})
        writer = RunWriter(DISK, tmp_path / f"{turn}-merged.run", HASH, 7)
        assert merge(writer, [newer, run], lambda _: True, lambda _: True, lambda _: True)
        run = Run(tmp_path / f"{turn}-merged.run", DISK.map(tmp_path / f"{turn}-merged.run"))
    (section,) = of_bytes(list(run.sections.values()))
    assert section.count == 100
    assert section.rank_bits == (100 + 90).bit_length()


def test_a_section_with_more_keys_than_ranks_is_not_written(tmp_path: Path) -> None:
    writer = RunWriter(DISK, tmp_path / "1.run", HASH, 7)
    with pytest.raises(Unavailable, match="cannot hold 4294967296 keys"):
        writer.begin_bytes(1, 1 << 32)
    writer.close()


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_merge_that_is_told_to_end_writes_no_directory(tmp_path: Path, steps: int) -> None:
    runs = [written(tmp_path / f"{at}.run", {PREFIX + b"%d" % n: n for n in range(at, 90)}) for at in range(2)]
    turns = iter(range(1, steps))
    writer = RunWriter(DISK, tmp_path / "m.run", HASH, 7)
    assert not merge(writer, runs, lambda _: True, lambda _: True, lambda _: next(turns, None) is not None)
    writer.close()
    with pytest.raises(DamagedIndex):
        Run(tmp_path / "m.run", DISK.map(tmp_path / "m.run"))


def test_the_first_keys_of_ranges_are_those_of_all_runs(tmp_path: Path) -> None:
    chance = seeded(9)
    layers = [drawn(chance, 150) for _ in range(3)]
    levels = Levels(0, tuple(written(tmp_path / f"{at}.run", layer) for at, layer in enumerate(layers)))
    right = {k: v for layer in reversed(layers) for k, v in layer.items()}
    for _ in range(60):
        low, high = sorted(chance.choice((*right, PREFIX, OTHER, PREFIX + b"c", PREFIX + b"d")) for _ in range(2))
        most = chance.choice((1, 3, 1000))
        sources = [source[0] for source in levels.ranges([(low, high)], most, PREFIX)]
        first = merged(sources, most)
        live = {key: v for key, v in right.items() if 0 <= v < FLAG and low <= key < high}
        expected = sorted(key for key in live if first.end is None or key <= first.end)
        assert (first.keys, first.values) == (expected, [live[key] for key in expected])


def test_a_flipped_bit_anywhere_gives_an_error_or_the_right_answer(tmp_path: Path) -> None:
    chance = seeded(4)
    right = drawn(chance, 3_000)
    whole = written(tmp_path / "1.run", right, numbers=5)
    keys = sorted(asked(chance, right))
    expected = [right.get(key, MISS) for key in keys]
    assert found(Levels(0, (whole,)), keys) == expected
    data, seen = bytearray((tmp_path / "1.run").read_bytes()), 0
    for at in [0, 3, 4, 5, HEADER_BYTES, len(data) - 1, *(chance.randrange(len(data)) for _ in range(60))]:
        data[at] ^= (bit := 1 << chance.randrange(8))
        (tmp_path / "2.run").write_bytes(data)
        data[at] ^= bit
        try:
            run = Run(tmp_path / "2.run", DISK.map(tmp_path / "2.run"))
            levels = Levels(0, (run,))
            rows = chance.sample(range(len(keys)), chance.choice((1, 20, len(keys))))
            assert levels.find(keyed([keys[row] for row in rows])).tolist() == [expected[row] for row in rows]
            (source,) = levels.ranges([(PREFIX, OTHER)], 10, PREFIX)
            assert source[0][0] == sorted(right)[:10]
            assert sum(map(bool, (damage for _, damage in run.scrub()))), f"the scrub misses byte {at}"
        except DamagedIndex:
            seen += 1
    assert seen > 30


def test_an_entry_that_is_not_its_own_is_damage_even_if_its_block_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block's checksum may be of a wrong content: each entry has a check of its own."""
    monkeypatch.setattr(run_writer, "places", lambda keys, values: places(keys, np.roll(values, 1)))
    entries = {PREFIX + b"%d" % n: n for n in range(90)}
    levels = Levels(0, (written(tmp_path / "1.run", entries),))
    for keys in ([PREFIX + b"7"], list(entries)):
        with pytest.raises(DamagedIndex, match="do not match their checks"):
            levels.find(keyed(keys))
    with pytest.raises(DamagedIndex, match="do not match their checks"):
        list(levels.ranges([(PREFIX + b"3", OTHER)], 5, PREFIX))
    assert sum(part.damaged for part in walk(levels, PREFIX, 40)) == 90
    writer = RunWriter(DISK, tmp_path / "2.run", HASH, 7)
    with pytest.raises(DamagedIndex, match="do not match their checks"):
        merge(writer, levels.runs, lambda _: True, lambda _: True, lambda _: True)
    writer.close()


def test_two_indexes_have_two_hashes_and_a_seed_gives_one() -> None:
    keys = PaddedBytes.of([b"one", b"two"])
    assert KeyHash(bytes(32)).many(keys).tolist() == HASH.many(keys).tolist() == [HASH.one(b"one"), HASH.one(b"two")]
    assert not set(KeyHash(b"\1" * 32).many(keys).tolist()) & set(HASH.many(keys).tolist())


def all_go(_prefix: bytes) -> bool:
    return True


def none_go(_prefix: bytes) -> bool:
    return False


def reversioned(path: Path, version: int) -> Run:
    """A run of numbers as another version has it: whole, but for what only that version knows."""
    data = path.read_bytes()
    size, blocks, _, _ = FOOTER.unpack(data[-FOOTER.size :])
    at = len(data) - FOOTER.size - size - 4 * blocks
    head = HEADER.pack(MAGIC, version, 0).ljust(HEADER_BYTES, b"\0")
    body = head + data[HEADER_BYTES:at]
    crcs = np.array([crc32c(body[n : n + 65_536]) for n in range(0, len(body), 65_536)], dtype=np.uint32).tobytes()
    places = [place[:7] for place in orjson.loads(data[at + 4 * blocks : -FOOTER.size])["sections"]]
    directory = orjson.dumps(places)
    end = FOOTER.pack(len(directory), len(crcs) // 4, crc32c(crcs + directory, crc32c(head)), MAGIC)
    path.write_bytes(body + crcs + directory + end)
    return Run(path, DISK.map(path))


def test_a_run_of_another_version_is_refused(tmp_path: Path) -> None:
    for version, error in ((1, Invalid), (3, NewerFormat)):
        writer = RunWriter(DISK, tmp_path / f"{version}.run", HASH, 7)
        write(writer, ByteKeys([PREFIX + b"1"]), np.arange(1))
        writer.finish()
        with pytest.raises(error, match=f"format version {version}"):
            reversioned(tmp_path / f"{version}.run", version)
