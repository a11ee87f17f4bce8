"""Figures as they are measured, and the table that each run writes.

- A table is what one run of one part measured. `docs/benchmarks/NAME.json` holds the table with the run that made it.
- A run replaces its whole table, so rows of two runs never stand in one table.
- `docs/benchmarks.md` is made from these files and from nothing else (`tests/bench/page.py`).
"""

from __future__ import annotations

import compileall
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench import headlines, machine, page
from tests.bench.machine import Pace

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number against its bar."""

    name: str
    measured: str
    bar: str
    met: bool | None
    """None where there is no bar."""


@dataclass(frozen=True, slots=True)
class Part:
    """What measures the figures of one table in a folder."""

    title: str
    """The heading of the table."""
    measure: Callable[[Path], Iterator[Figure]]


@dataclass(frozen=True, slots=True)
class Run:
    """Where and when all rows of a table were measured."""

    day: str
    commit: str
    """With a plus behind it if the checkout differed from the commit, the pages of figures aside."""
    command: str
    machine: str
    load: float
    """Mean number of processes that wanted a core in the minute before the run."""
    before: Pace
    after: Pace
    seconds: float


class RunStart:
    """The begin of a run: takes the time and the pace of the machine."""

    def __init__(self, command: str) -> None:
        self._command, self._load = command, machine.load()
        self._day, self._commit = time.strftime("%Y-%m-%d", time.gmtime()), _commit()
        _compile()
        self._before, self._began = _pace(), time.monotonic()

    def end(self) -> Run:
        """The run, which ends now."""
        seconds = round(time.monotonic() - self._began, 1)
        return Run(
            day=self._day,
            commit=self._commit,
            command=self._command,
            machine=machine.description(),
            load=self._load,
            before=self._before,
            after=_pace(),
            seconds=seconds,
        )


def _compile() -> None:
    """Compile all modules, as an installation has them. Where Python writes no bytecode, each process that a run starts
    would compile them again, which takes a second."""
    for folder in ("lakestore", "server", "spark_reader", "tiering", "jepsen", "tests"):
        compileall.compile_dir(ROOT / folder, quiet=1)


def _pace() -> Pace:
    with tempfile.TemporaryDirectory(prefix="lakestore-bench-") as folder:
        return machine.pace(Path(folder))


def _commit() -> str:
    made_of_runs = (":!docs", ":!README.md")
    commit = _git("rev-parse", "--short=8", "HEAD")
    return commit + ("+" if _git("status", "--porcelain", "--", *made_of_runs) else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def say(figure: Figure, widths: tuple[int, int, int]) -> None:
    """Print a figure in columns of these widths."""
    met = {True: "met", False: "NOT MET", None: ""}[figure.met]
    name, measured, bar = widths
    sys.stdout.write(f"{figure.name:{name}} {figure.measured:{measured}} {figure.bar:{bar}} {met}\n")
    sys.stdout.flush()


def measure(
    parts: Mapping[str, Part], names: Iterable[str], widths: tuple[int, int, int], command: str, *, is_dry: bool
) -> None:
    """Run the named parts, each in a folder of its own. Print the figures, and write each part's table at its end.

    `command` is how a user runs the part again; `{}` in it stands for the part's name.
    """
    for name in names:
        start, figures = RunStart(command.format(name)), []
        folder = Path(tempfile.mkdtemp(prefix="lakestore-bench-"))
        try:
            for figure in parts[name].measure(folder):
                say(figure, widths)
                figures.append(figure)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not is_dry:
            write(parts[name].title, start.end(), {"figures": [asdict(figure) for figure in figures]})


def write(title: str, run: Run, content: Mapping[str, Any]) -> None:
    """Replace the table of this title by what a run measured: `figures`, or the `contest` of a workload. Write
    the pages."""
    FOLDER.mkdir(exist_ok=True)
    file_of(title).write_text(json.dumps(table(title, run, content), indent=1, ensure_ascii=False) + "\n")
    refresh()


def refresh() -> None:
    """Write the tables of docs/benchmarks.md and README.md and the pictures: `python -m tests.bench.report`."""
    known = tables()
    PAGE.write_text(page.text(PAGE.read_text(), known))
    headlines.README.write_text(headlines.readme(headlines.README.read_text(), known))
    for name, picture in headlines.pictures(known).items():
        (headlines.IMAGES / name).write_text(picture)


def table(title: str, run: Run, content: Mapping[str, Any]) -> dict[str, Any]:
    """A table as its file has it."""
    return {"title": title, "run": asdict(run), **content}


def file_of(title: str) -> Path:
    """The file of a table."""
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.json"


def tables() -> list[dict[str, Any]]:
    """All tables."""
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


if __name__ == "__main__":
    refresh()
