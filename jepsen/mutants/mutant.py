"""A bug as a value, and the copy of the product that has it."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "lakestore": "lakestore",
    "server/lakestore_server": "lakestore_server",
    "tiering/lakestore_tiering": "lakestore_tiering",
    "spark_reader/lakestore_spark": "lakestore_spark",
    "spark_reader/pyspark_lakestore": "pyspark_lakestore",
    "jepsen": "jepsen",
    "tests": "tests",
}
"""Packages of the checkout, and where a copy has them: all in one folder, which is first on the path."""
LEFT_OUT = shutil.ignore_patterns("golden", "*.pyc.*")
"""Bytecode is copied, for all that is imported from a copy would be compiled first: copies have the times of files."""


class NotPlanted(ValueError):
    """A mutant whose place is not in the product as it is now."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text of one file that is replaced."""

    file: str
    old: str
    new: str
    all: bool = False
    """Whether every place is replaced; else there must be exactly one."""

    def applied(self, text: str) -> str:
        """The file's text with the bug."""
        places = text.count(self.old)
        if not places or (places > 1 and not self.all):
            raise NotPlanted(f"{self.file} has {places} places of {self.old.strip()!r}: mend the mutant")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    breaks: str
    """The promise that does not hold any more."""
    edits: tuple[Edit, ...]
    workloads: tuple[str, ...]
    """The workloads that show it against real processes."""
    nemeses: tuple[str, ...]
    """The faults that it needs for that."""
    simulated: bool = True
    """Whether the simulation can see it at all."""
    faults: tuple[str, ...] = ()
    """The faults that it needs in the simulation; empty if all kinds are drawn."""
    servers: int = 1
    """The number of servers; several share a journal."""
    reads: str = "leader"
    """Where the clients of several servers read."""
    journal: str = "log"
    """The kind of the simulated journal that several servers share: `log` or `bucket`."""
    tests: tuple[str, ...] = ()
    """Tests of the product that find a bug which no workload reaches, as pytest names them."""

    def texts(self, root: Path = ROOT) -> dict[str, str]:
        """The changed files with their texts; `NotPlanted` if the product has changed under it."""
        found: dict[str, str] = {}
        for edit in self.edits:
            text = found[edit.file] if edit.file in found else (root / edit.file).read_text()
            found[edit.file] = edit.applied(text)
        return found

    def plant(self, folder: Path, root: Path = ROOT) -> None:
        """Make a copy of the product that has the bug."""
        copy(folder, root)
        for file, text in self.texts(root).items():
            package = max((each for each in SOURCES if file.startswith(f"{each}/")), key=len)
            planted = folder / SOURCES[package] / file.removeprefix(f"{package}/")
            planted.write_text(text)
            Path(cache_from_source(str(planted))).unlink(missing_ok=True)


def copy(folder: Path, root: Path = ROOT) -> None:
    """Copy the product, and the suite, into a folder from which all of it can be imported."""
    for package, name in SOURCES.items():
        if (root / package).exists():
            shutil.copytree(root / package, folder / name, ignore=LEFT_OUT)


PLANTED = Path(__file__).with_name("planted.toml")


def planted(path: Path = PLANTED) -> list[Mutant]:
    """All mutants."""
    return [
        Mutant(
            each["name"],
            each["breaks"],
            tuple(Edit(**edit) for edit in each["edits"]),
            tuple(each.get("workloads", ())),
            tuple(each.get("nemeses", ())),
            each.get("simulated", True),
            tuple(each.get("faults", ())),
            each.get("servers", 1),
            each.get("reads", "leader"),
            each.get("journal", "log"),
            tuple(each.get("tests", ())),
        )
        for each in tomllib.loads(path.read_text())["mutant"]
    ]
