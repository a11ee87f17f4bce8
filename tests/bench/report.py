"""Figures as they are measured, and the page they are written to."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
STORE = Path(__file__).parents[2] / "docs" / "benchmarks.json"
Parts = Mapping[str, Callable[[Path], Iterator["Figure"]]]
"""What measures in a folder, by name."""
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number against its bar."""

    group: str
    name: str
    measured: str
    bar: str
    met: bool | None
    """None where there is no bar."""


def say(figure: Figure, widths: tuple[int, int, int]) -> None:
    """Print a figure in columns of these widths."""
    met = {True: "met", False: "NOT MET", None: ""}[figure.met]
    name, measured, bar = widths
    sys.stdout.write(f"{figure.name:{name}} {figure.measured:{measured}} {figure.bar:{bar}} {met}\n")
    sys.stdout.flush()


def measured(parts: Parts, names: Iterable[str], widths: tuple[int, int, int]) -> Iterator[Figure]:
    """The figures of the named parts, each printed when it is there; every part has a folder of its own."""
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="lakestore-bench-"))
        try:
            for figure in parts[name](folder):
                say(figure, widths)
                yield figure
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write(figures: list[Figure]) -> None:
    """Put the figures with day and commit into the store and the page. A figure replaces the older one of its name."""
    known: dict[str, dict[str, object]] = json.loads(STORE.read_text()) if STORE.exists() else {}
    git = ["git", "-C", str(STORE.parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    origin = {"day": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit}
    known.update({f"{figure.group}/{figure.name}": asdict(figure) | origin for figure in figures})
    STORE.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    text = PAGE.read_text()
    head, rest = text.split(_BEGIN)
    tail = rest.split(_END)[1]
    PAGE.write_text(f"{head}{_BEGIN}\n\n{_tables(known)}\n{_END}{tail}")


def _tables(known: dict[str, dict[str, object]]) -> str:
    lines = [
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.",
        "",
    ]
    group = ""
    for entry in sorted(known.values(), key=lambda entry: str(entry["group"])):
        if entry["group"] != group:
            group = str(entry["group"])
            lines += [f"\n## {group}\n", "| work | measured | bar | met | day, commit |", "|---|---|---|---|---|"]
        met = {True: "yes", False: "**no**", None: "–"}[entry["met"]]  # type: ignore[index]
        origin = f"{entry['day']} {entry['commit']}"
        lines.append(f"| {entry['name']} | {entry['measured']} | {entry['bar']} | {met} | {origin} |")
    return "\n".join(lines) + "\n"
