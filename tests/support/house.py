"""The house as its imports draw it: rooms, the arrows between them, circles.

`python -m tests.support.house` prints rooms, arrows after reduction and the largest files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support import syntax

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (ROOT, ROOT / "server", ROOT / "tiering", ROOT / "spark_reader", ROOT / "examples" / "demo")
PACKAGES = (
    "lakestore",
    "lakestore_server",
    "lakestore_tiering",
    "lakestore_spark",
    "pyspark_lakestore",
    "lakestore_demo",
)
FILE_LINES_MAX = 800

SERVER = "lakestore_server"
ORDER: dict[str, int] = {
    "lakestore.errors": 0,
    "lakestore.java": 2,
    "lakestore.release": 1,
    "lakestore.v1": 0,
    "lakestore.model": 1,
    "lakestore.wire": 2,
    "lakestore.rows": 3,
    "lakestore.iceberg": 4,
    "lakestore.union": 5,
    "lakestore.client": 6,
    "lakestore.kafka": 7,
    "lakestore.loading": 8,
    f"{SERVER}.host": 11,
    f"{SERVER}.arrays": 11,
    f"{SERVER}.state": 12,
    f"{SERVER}.access": 12,
    f"{SERVER}.index": 13,
    f"{SERVER}.journals": 13,
    f"{SERVER}.files": 14,
    f"{SERVER}.commit": 15,
    f"{SERVER}.read": 16,
    f"{SERVER}.changes": 17,
    f"{SERVER}.catalog": 17,
    f"{SERVER}.segments": 17,
    f"{SERVER}.snapshots": 18,
    f"{SERVER}.duties": 19,
    f"{SERVER}.operate": 20,
    f"{SERVER}.service": 21,
    f"{SERVER}.queries": 22,
    f"{SERVER}.edge": 23,
    f"{SERVER}.main": 24,
    f"{SERVER}.doctor": 24,
    "lakestore_spark": 25,
    "lakestore_tiering": 26,
    "pyspark_lakestore": 26,
    "lakestore.face": 27,
    "lakestore_demo": 28,
    "lakestore.cli": 29,
}
"""Room to its floor: a room imports only rooms of lower floors. `lakestore.face` is the package's public front."""

FACE = ("lakestore", "lakestore.aio", "lakestore.embedded", "lakestore.spark")
PARTS = {
    "lakestore.limits": "lakestore.model",
    "lakestore.evolution": "lakestore.model",
    f"{SERVER}.settings": "lakestore.model",
    "lakestore.__main__": "lakestore.cli",
    SERVER: f"{SERVER}.main",
}
"""Modules that count as a room's in which they do not lie: limits, settings and steps are values of the model."""


@dataclass(frozen=True, slots=True)
class Import:
    """One module that imports another."""

    source: str
    target: str
    line: int
    inside_function: bool = False


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    root = max((root for root in SOURCE_ROOTS if path.is_relative_to(root)), key=lambda root: len(root.parts))
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of the product and its file."""
    found = {}
    for root in SOURCE_ROOTS:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                if "_pb2" not in path.name and (root, package) != (ROOT, "server"):
                    found[module_of(path)] = path
    return found


def room_of(module: str) -> str:
    """The room that a module lies in."""
    if module in PARTS:
        return PARTS[module]
    if module in FACE:
        return "lakestore.face"
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("lakestore", SERVER) else parts[0]


def imports(known: Mapping[str, Path]) -> Iterator[Import]:
    """Imports of the product's modules among each other, those inside functions included."""
    for module, path in known.items():
        for node in syntax.nodes(path.read_text()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                inside = node.col_offset > 0
                yield from (Import(module, target, node.lineno, inside) for target in set(targets(node, known)))


def targets(node: ast.Import | ast.ImportFrom, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif node.module:
        if node.module == "lakestore.v1":
            yield "lakestore.v1"
            return
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in known:
                yield full
            elif node.module in known:
                yield node.module


def arrows(found: Iterator[Import]) -> dict[tuple[str, str], list[Import]]:
    """(room, room that it imports) to the imports that make the arrow."""
    drawn: dict[tuple[str, str], list[Import]] = {}
    for each in found:
        pair = room_of(each.source), room_of(each.target)
        if pair[0] != pair[1]:
            drawn.setdefault(pair, []).append(each)
    return drawn


def upward(drawn: Mapping[tuple[str, str], list[Import]]) -> Iterator[str]:
    """The arrows that do not go down, as complaints."""
    for (source, target), found in sorted(drawn.items()):
        for room in (source, target):
            if room not in ORDER:
                yield f"{room} has no floor"
        if ORDER.get(source, 0) <= ORDER.get(target, 0):
            where = ", ".join(f"{each.source}:{each.line} imports {each.target}" for each in found[:4])
            yield f"{source} -> {target} ({len(found)}): {where}"


def circle(found: Iterable[Import]) -> list[str]:
    """The modules of one circle of imports; none if there is no circle. Imports inside functions do not count."""
    below: dict[str, set[str]] = {}
    for each in found:
        if not each.inside_function:
            below.setdefault(each.source, set()).add(each.target)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def reduced(drawn: Mapping[tuple[str, str], list[Import]]) -> set[tuple[str, str]]:
    """The arrows without those that a longer way says already."""
    below: dict[str, set[str]] = {}
    for source, target in drawn:
        below.setdefault(source, set()).add(target)

    def reaches(start: str, end: str) -> bool:
        seen, todo = set(), [room for room in below.get(start, ()) if room != end]
        while todo:
            room = todo.pop()
            if room == end:
                return True
            if room not in seen:
                seen.add(room)
                todo += below.get(room, ())
        return False

    return {(source, target) for source, target in drawn if not reaches(source, target)}


def report() -> str:
    """The house in words."""
    known = modules()
    drawn = arrows(imports(known))
    kept = reduced(drawn)
    server = [pair for pair in kept if all(room.startswith(SERVER) for room in pair)]
    long = {module: path.read_text().count("\n") for module, path in known.items()}
    rooms = sorted({room_of(module) for module in known}, key=lambda room: ORDER.get(room, 0))
    lines = [
        f"modules: {len(known)}, rooms: {len(rooms)}, arrows between rooms: {len(drawn)}, after reduction {len(kept)}",
        f"inside the server: {len(server)} after reduction",
        *(f"  {source} -> {target}" for source, target in sorted(kept)),
        f"files over {FILE_LINES_MAX} lines: {sum(count > FILE_LINES_MAX for count in long.values())}",
        *(f"  {count:4} {module}" for module, count in long.items() if count > FILE_LINES_MAX),
        "arrows that do not go down:",
        *(f"  {complaint}" for complaint in upward(drawn)),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
