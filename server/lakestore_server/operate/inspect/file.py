"""Chooses the report module for a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lakestore.errors import Invalid, NotFound
from lakestore_server.files import checkpoint as checkpoint_format
from lakestore_server.files import journal_file
from lakestore_server.files.backup_manifest import NAME as MANIFEST
from lakestore_server.files.data_folder import EXTENTS, INDEX, SEGMENTS, SUFFIX
from lakestore_server.files.extent import SUFFIX as KEPT
from lakestore_server.index.run import SUFFIX as RUN
from lakestore_server.operate.inspect import checkpoint, index, journal, manifest, segment
from lakestore_server.operate.inspect.definitions import Definitions
from lakestore_server.operate.inspect.report import Report


def look(path: Path, *, rows: bool = False) -> Iterator[Report]:
    """The report of a file; for a data folder, of every file in it."""
    if not path.exists():
        raise NotFound(f"there is no {path}")
    if path.is_dir():
        yield from _folder(path, rows=rows)
    elif path.name.startswith(journal_file.PREFIX):
        yield journal.describe(path, Definitions.of_folder(path.parent), rows=rows)
    elif path.name.startswith(checkpoint_format.PREFIX):
        yield checkpoint.describe(path)
    elif path.suffix == KEPT:
        yield _kept(path, path.parent.parent.parent, rows=rows)
    elif path.suffix == SUFFIX:
        yield from segment.describe(path, Definitions.of_folder(path.parent.parent.parent), rows=rows)
    elif path.name == MANIFEST:
        yield manifest.describe(path)
    elif path.suffix == RUN:
        yield index.describe(path)
    else:
        raise Invalid(
            f"{path} has not the name of a journal, segment, checkpoint, run or MANIFEST: name one of these, or "
            "a folder"
        )


def _segments(path: Path, known: Definitions, *, rows: bool) -> Iterator[Report]:
    for file in sorted((path / SEGMENTS).rglob(f"*{SUFFIX}")):
        yield from segment.describe(file, known, rows=rows)
    for file in sorted((path / SEGMENTS / EXTENTS).glob(f"*{KEPT}")):
        yield _kept(file, path, rows=False)


def _kept(path: Path, folder: Path, *, rows: bool) -> Report:
    return journal.describe(path, Definitions.of_folder(folder), rows=rows, kind="kept journal")


def _folder(path: Path, *, rows: bool) -> Iterator[Report]:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    known = Definitions.of_folder(path)
    looked = any(path.glob(f"*{RUN}"))
    if MANIFEST in names:
        yield manifest.describe(path / MANIFEST)
    for name in names:
        if name.startswith(checkpoint_format.PREFIX) and not name.endswith(".tmp"):
            looked = True
            yield checkpoint.describe(path / name)
    yield from _segments(path, known, rows=rows)
    for name in names:
        if name.startswith(journal_file.PREFIX) and not name.endswith(".tmp"):
            looked = True
            yield journal.describe(path / name, known, rows=rows)
    for place in (path, path / INDEX):
        for run in sorted(place.glob(f"*{RUN}"), reverse=True):
            yield index.describe(run)
    if not looked:
        raise Invalid(f"{path} is neither a data folder nor a backup: it has neither journal nor checkpoint")
