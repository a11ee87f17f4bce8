"""A cluster of one's own: a Lakestore that runs elsewhere, broken and mended by commands that its owner gives."""

from __future__ import annotations

import random
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lakestore as ls
from jepsen.schedule import Nemesis

DATABASE = "jepsen."
"""All tables of the workloads begin so."""
CALL_SECONDS = 5.0
COMMAND = "command"


@dataclass(slots=True)
class CommandNemesis:
    """A fault as two shell commands."""

    begins: str
    ends: str
    name: str = COMMAND
    needs: frozenset[str] = frozenset()

    def begin(self, _: Any, __: random.Random) -> str:
        """Run the first command; `CalledProcessError` if it fails."""
        return _ran(self.begins)

    def end(self, _: Any) -> str:
        """Run the second one."""
        return _ran(self.ends)


class Cluster:
    """A server by its address; tokens and certificates come from the environment, as for every client."""

    kafka = sql = ""

    def __init__(self, address: str, catalog: str = "", begins: str = "", ends: str = "") -> None:
        self.address, self.catalog = address, catalog
        self._begins, self._ends = begins, ends
        faults: list[Nemesis[Any]] = [CommandNemesis(begins, ends)] if begins else []
        self.nemeses: Mapping[str, Nemesis[Any]] = {each.name: each for each in faults}
        self._drop_tables()

    def _drop_tables(self) -> None:
        """Drop what earlier runs left."""
        with self.connect(-1) as lake:
            for held in lake.subscriptions():
                if any(table.startswith(DATABASE) for table in held.tables):
                    lake.drop_subscription(held.name)
            for table in lake.tables():
                if table.name.startswith(DATABASE):
                    lake.drop_table(table.name)

    @property
    def options(self) -> str:
        """The options of a command that reaches and breaks this cluster again."""
        said = {"server": self.address, "catalog": self.catalog, "begin": self._begins, "end": self._ends}
        return " ".join(f"--{name} {shlex.quote(value)}" for name, value in said.items() if value)

    @property
    def parts(self) -> frozenset[str]:
        """The parts beside the server that workloads may need here."""
        return frozenset({"tierer", "spark"} if self.catalog else ())

    def connect(self, process: int) -> ls.Lake:
        """A connection; all processes go the same way."""
        return ls.connect(self.address, timeout=CALL_SECONDS)

    def heal(self) -> None:
        """Run the command that ends the fault."""
        if self._ends:
            _ran(self._ends)


def _ran(command: str) -> str:
    subprocess.run(command, shell=True, check=True)
    return command
