"""The parts of a workload, as a run uses them: what it is tested on, what it does, and how it is judged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import Invocation

SPACING = 1 << 32
"""Each process names what it writes by its own numbers: its number times this, and counting."""

TROUBLES = "troubles"
"""Under this name an answer tells errors that its client met on the way: each as its kind, a colon and a sentence."""


class Target(Protocol):
    """A Lakestore as its clients reach it: real processes, a cluster of one's own, or a simulation."""

    catalog: str
    """The address of the Iceberg REST catalog; empty where there is none."""
    kafka: str
    """The address of a Kafka broker; empty where there is none."""

    sql: str
    """Host and port of the Postgres port; empty where there is none."""

    def connect(self, process: int) -> ls.Lake:
        """A new connection, by the way (a proxy, a network) that belongs to the process."""


class Client(Protocol):
    """One process's connection and state. A call whose outcome is unknown ends it, and a new one takes its place."""

    def invoke(self, invocation: Invocation) -> Any:
        """Do it and return the answer as a JSON value. A `LakestoreError` says whether it may have happened:
        `applied` "no" is recorded as failed, else as unknown."""

    def close(self) -> None:
        """Let go of everything."""


class Workload(Protocol):
    """Operations with a property that every history of them must have. An instance belongs to one run."""

    name: str
    """One word, as the command line and the folder of the history know it."""
    needs: frozenset[str]
    """The parts of the system beside the server, as `tierer`, `kafka`, `spark`, `store`."""

    def setup(self, lake: ls.Lake) -> None:
        """Make its tables, while nothing is broken."""

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """The operations of a process in the main phase, without an end, drawn from the chance alone."""

    def last(self, process: int) -> Iterator[Invocation]:
        """The operations of a process after everything has healed: read all that is there."""

    def client(self, target: Target, process: int) -> Client:
        """A client for a process. It connects when it is first used."""

    def check(self, history: History) -> Sequence[Anomaly]:
        """All anomalies of a history; pure."""


@runtime_checkable
class Tuned(Protocol):
    """A workload that shows nothing under just any settings of a server."""

    settings: Mapping[str, str]
    """Variables of the server, which go before those that are drawn."""


@runtime_checkable
class Measured(Protocol):
    """A workload that says how much was checked."""

    def figures(self, history: History) -> dict[str, float]:
        """Sizes by name, for the report."""


@runtime_checkable
class Pictured(Protocol):
    """A workload whose counterexamples have pictures."""

    def bars(self, history: History) -> Sequence[dict[str, Any]]:
        """Counterexamples as `jepsen.pictures.draw_bars` reads them."""


def trouble(error: ls.LakestoreError) -> str:
    """An error as histories have it."""
    return f"{error.kind}: {error.message}"
