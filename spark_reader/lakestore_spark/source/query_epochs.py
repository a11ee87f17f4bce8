"""The register of a streaming query: which batch of it was committed last, and by which run.

A register `spark/<query id>` moves in the very commit that has the batch's rows. So a batch that Spark asks for again
is known, and done already. A run that finds another run's batch takes the query over; from then on the other one is
over, whatever its driver still believes. The id is the one that the query's checkpoint keeps, so a new checkpoint is a
new query.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from lakestore.errors import Conflict, Corrupt, Fenced

RUNS_KEPT = 40
"""Runs that are remembered as over."""
_RUN_CHARS = 13


def register_of(query: str) -> str:
    """The name of a query's register."""
    return f"spark/{query}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """The last batch of a query."""

    batch: int = -1
    """Its number; -1 before the first."""
    run: str = ""
    """The run that has the query now."""
    over: tuple[str, ...] = ()
    """Runs that had it before, the newest last."""

    @staticmethod
    def of(value: str, query: str) -> Epoch:
        """The epoch that a register's value says."""
        if not value:
            return Epoch()
        try:
            said = orjson.loads(value)
            return Epoch(int(said["batch"]), str(said["run"]), tuple(map(str, said["over"])))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"register {register_of(query)!r} has a value that no sink of Spark wrote: drop it if nothing else uses"
                " it, and begin the query with a new checkpoint"
            ) from error

    @property
    def value(self) -> str:
        """The value of the register."""
        return orjson.dumps({"batch": self.batch, "run": self.run, "over": self.over}).decode()

    def after(self, batch: int, run: str, query: str) -> Epoch:
        """The epoch behind a batch that a run commits, or has committed; `Fenced` or `Conflict` if it may not."""
        mine = run[:_RUN_CHARS]
        if mine in self.over:
            raise Fenced(
                f"query {query} goes on in another run, which has come to batch {self.batch}: stop this one; nothing of"
                f" its batch {batch} was committed"
            )
        if batch < self.batch:
            raise Conflict(
                f"query {query} has committed batch {self.batch}, and Spark asks for batch {batch}: its checkpoint is"
                " older than its table; go on with the newest checkpoint, or begin with a new one"
            )
        if mine == self.run:
            return Epoch(batch, mine, self.over)
        over = (*self.over, self.run) if self.run else self.over
        return Epoch(batch, mine, over[-RUNS_KEPT:])
