"""The quick tests of what changed: `make check` gives these files to pytest.

A changed file of a room stands for the room's folder in `tests/unit` and for the test files there that import it. If
no test file imports it, those that import its importers do. A changed unit test stands for itself.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.support import house

UNIT = "tests/unit"
IMPORT = re.compile(r"^ *((?:from [\w.]+ import (?:\([^)]*\)|.*))|(?:import .*))", re.MULTILINE)
ALWAYS = "tests/test_tidy.py"
DOCS = "tests/test_docs.py"
FOLDERS = {
    "lakestore.iceberg": ("lake",),
    "lakestore.kafka": ("connectors",),
    "lakestore_server.catalog": ("iceberg",),
    "lakestore_server.segments": ("duties", "files"),
    "lakestore_server.snapshots": ("present",),
    "lakestore_spark": ("spark", "source"),
}
"""Rooms whose unit tests lie in folders of another name than the room's last word."""


def chosen(files: Iterable[str]) -> list[str]:
    """Test files and folders for `files`, paths from the top of the checkout; no file twice."""
    known = _modules()
    module_of = {str(path.relative_to(house.ROOT)): module for module, path in known.items()}
    picked, imported = {ALWAYS}, set()
    for file in files:
        path = Path(file)
        if file.endswith(".md"):
            picked.add(DOCS)
        elif file.endswith(".proto"):
            imported.add("lakestore.v1")
        elif path.is_relative_to(UNIT) and file in module_of:
            picked.add(file if path.name.startswith("test_") else str(path.parent))
        elif file in module_of:
            imported.add(module_of[file])
    rooms = {house.room_of(module) for module in imported}
    folders = {f"{UNIT}/{folder}" for room in rooms for folder in FOLDERS.get(room, (room.rpartition(".")[2],))}
    picked.update(folder for folder in folders if (house.ROOT / folder).is_dir())
    for module in imported:
        picked.update(str(known[test].relative_to(house.ROOT)) for test in _nearest_tests(module, _importers()))
    return sorted(name for name in picked if not any(str(parent) in picked for parent in Path(name).parents))


def _modules() -> dict[str, Path]:
    tests = [*(house.ROOT / UNIT).rglob("*.py"), *(house.ROOT / "tests/support").glob("*.py")]
    return house.modules() | {house.module_of(path): path for path in tests}


@cache
def _importers() -> dict[str, set[str]]:
    """Module to the modules that import it. Only lines that look like imports are parsed: whole files take seconds."""
    importers: dict[str, set[str]] = {}
    known = _modules()
    for module, path in known.items():
        for text in IMPORT.findall(path.read_text(encoding="utf-8")):
            for target in _targets(text, known):
                importers.setdefault(target, set()).add(module)
    return importers


def _targets(text: str, known: Mapping[str, Path]) -> list[str]:
    try:
        node = ast.parse(text).body[0]
    except SyntaxError:  # a sentence of a docstring
        return []
    return list(house.targets(node, known)) if isinstance(node, ast.Import | ast.ImportFrom) else []


def _nearest_tests(module: str, importers: Mapping[str, set[str]]) -> set[str]:
    """The unit tests with the shortest chain of imports to a module."""
    reached, level = {module}, {module}
    while level:
        level = {source for target in level for source in importers.get(target, ())} - reached
        reached |= level
        if tests := {name for name in level if name.startswith("tests.unit.") and ".test_" in name}:
            return tests
    return set()


def changed(root: Path = house.ROOT) -> list[str]:
    """Files that differ from where this branch left main, deleted ones left out, and files new to git."""
    bases = (_git(root, "merge-base", "HEAD", name) for name in ("origin/main", "main"))
    base = next((found[0] for found in bases if found), "HEAD")
    differ = _git(root, "diff", "--name-only", "--diff-filter=d", base)
    return differ + _git(root, "ls-files", "--others", "--exclude-standard")


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


if __name__ == "__main__":
    print(*chosen(changed()))
