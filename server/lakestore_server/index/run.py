"""The format of a run: an immutable file of the index's entries, in order, table by table.

Header: magic u32 · version u16 · flags u16. Then of each table whose keys are numbers its entries (number u64 · packed
value u64), every 32nd number, and the words of a filter; of others what `byte_section` says. Each part is at a multiple
of 512, so that the 32 entries of a sample lie in one block. Then the CRC32C of each block of 64 KB before (u32 each),
the directory (JSON: newest commit, seed of the hash, the place of each table's parts) and the footer: directory bytes
u32 · checksums u32 · crc32c u32 of header, checksums and directory · magic u32. Header and footer are the same in
all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from google_crc32c import extend, value

from lakestore_server.host import versions
from lakestore_server.index.byte_section import ByteSection
from lakestore_server.index.entry import DamagedIndex, key_hash, table_prefix
from lakestore_server.index.number_section import ENTRY_BYTES, SAMPLED, NumberSection
from lakestore_server.index.run_blocks import Blocks, Bytes, SectionPlace
from lakestore_server.index.run_file import RunFile

MAGIC, VERSION = 0x4C53524E, 2
SUFFIX = ".run"
HEADER = struct.Struct("<IHH")
FOOTER = struct.Struct("<IIII")
HEADER_BYTES = 512
ALIGNED = SAMPLED * ENTRY_BYTES
"""Each part begins at a multiple of this."""
Section = NumberSection | ByteSection


class Directory(NamedTuple):
    """The decoded end of a run."""

    crcs: npt.NDArray[np.uint32]
    """The checksum of each block."""
    places: list[SectionPlace]
    lsn: int
    seed: bytes
    crc: int
    """The checksum of header, checksums and directory."""


class Run:
    """A mapped run."""

    def __init__(self, path: Path, data: Any, *, is_checked: bool = False) -> None:
        """`data` is the mapped file, an Arrow buffer or a view. `is_checked`: this process wrote it.

        Raises `DamagedIndex` if the directory, a sample or a filter is damaged.
        """
        view: Bytes = np.frombuffer(data, np.uint8)
        self.path, self.size = path, len(view)
        self.adopted = 0
        """The number of the adoption that had look-ups see its newest entry; 0 for a run of the start or a rebuild."""
        about = _directory(path, view)
        places, self._crc = about.places, about.crc
        end = max((place.filter_at + 8 * place.filter_words for place in places), default=HEADER_BYTES)
        blocks = Blocks(path.name, view[:end], about.crcs, is_checked=is_checked)
        self._blocks = blocks
        for place in places:
            blocks.check_bytes(place.guides_at, place.filter_at + 8 * place.filter_words)
        self.lsn = about.lsn
        """The newest commit whose entries are all here or in older runs."""
        self.key_hash = key_hash(about.seed)
        """The hash of byte keys."""
        self.sections: Mapping[bytes, Section] = {table_prefix(place.number): self._section(place) for place in places}
        """By table prefix."""
        self.entries = sum(place.entries for place in places)

    def _section(self, place: SectionPlace) -> Section:
        if not place.is_of_bytes:
            return NumberSection(self._blocks, place)
        return ByteSection(self._blocks, place, self.key_hash)

    @property
    def file(self) -> RunFile:
        """The run as a checkpoint names it."""
        return RunFile(self.path.name, self.size, self.entries, self._crc)

    def verify_ahead(self, goes_on: Callable[[int], bool]) -> None:
        """Check blocks before a look-up needs them, while `goes_on` returns True."""
        self._blocks.ahead(goes_on)

    def scrub(self) -> Iterator[tuple[int, str]]:
        """Check each block again: yields (bytes, damage or "")."""
        return self._blocks.scrub()


def _directory(path: Path, data: Any) -> Directory:
    """The directory of a run. Raises `DamagedIndex` if it is damaged."""
    damaged = DamagedIndex(f"run {path.name} of the index is damaged in its directory")
    if len(data) < HEADER_BYTES + FOOTER.size:
        raise damaged
    magic, version, _ = HEADER.unpack_from(data)
    size, blocks, crc, end_magic = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    at = len(data) - FOOTER.size - size - 4 * blocks
    if (magic, end_magic) != (MAGIC, MAGIC) or at < HEADER_BYTES:
        raise damaged
    known = data[at : at + 4 * blocks + size]
    if extend(value(data[:HEADER_BYTES]), known) != crc:
        raise damaged  # a wrong version may be damage too
    versions.check(version, (VERSION,), f"run {path.name} of the index")
    crcs = np.frombuffer(known, dtype=np.uint32, count=blocks)
    about = orjson.loads(memoryview(known[4 * blocks :]))
    places = [SectionPlace(*entry) for entry in about["sections"]]
    return Directory(crcs, places, about["lsn"], bytes.fromhex(about["seed"]), crc)
