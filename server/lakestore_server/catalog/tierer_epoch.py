"""The one tierer: an epoch with a time to live, journaled so that a later tierer fences it for good."""

from __future__ import annotations

from lakestore import limits
from lakestore.errors import Fenced, Invalid, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.catalog import Catalog, RunningRound, TableUpkeep, TierProblem, UpkeepDebt
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import CommitRecord, TiererClaim
from lakestore_server.state.state import State

PROBLEM_CHARACTERS_MAX = 2_000
DUTIES_MAX, DUTY_CHARACTERS_MAX = 20, 40
ROUND_SECONDS_MAX = 1e9


class TiererVerbs:
    """The verbs of the tierer's epoch. Thread-safe."""

    def __init__(self, engine: Engine, clock: Clock, catalog: Catalog) -> None:
        self._engine, self._clock, self._catalog = engine, clock, catalog
        self._until = 0.0

    def acquire_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        """Become the tierer, or renew the held epoch."""
        most = self._engine.limits
        if len(request.holder) > most.name_chars or request.seconds > most.lease_seconds:
            raise Invalid(f"a tierer has a name of at most {most.name_chars} characters, for {most.lease_seconds} s")
        now = self._clock.monotonic()
        seconds = request.seconds or limits.TIERER_SECONDS_DEFAULT

        def plan(state: State, record: CommitRecord) -> int:
            if now < self._until and state.tierer_holder != request.holder:
                raise Unavailable(f"{state.tierer_holder} is the tierer for {self._until - now:.0f} s more")
            record.tierer = TiererClaim(state.epoch(record.lsn), request.holder)
            return record.tierer.epoch

        epoch = self._renewed(request.epoch) if request.epoch else self._engine.operate(plan).result
        self._until = now + seconds
        self._catalog.tier_problems = {part.table_uuid: _problem(part) for part in request.problems}
        self._catalog.running_rounds = {part.table_uuid: _running(part, now, self._until) for part in request.running}
        known, told = self._catalog.table_upkeep, {part.table_uuid: _upkeep(part) for part in request.upkeep}
        tables = self._engine.view.tables
        self._catalog.table_upkeep = {uuid: upkeep for uuid, upkeep in {**known, **told}.items() if uuid in tables}
        return pb.TiererAnswer(epoch=epoch, seconds=seconds)

    def _renewed(self, epoch: int) -> int:
        """The epoch if it is the newest; else `Fenced`."""
        held = self._engine.view.tierer_epoch
        if epoch != held:
            raise Fenced(f"tierer epoch {epoch} was taken over by {held}")
        return epoch

    def release_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        """Let the next tierer in at once."""
        if request.epoch == self._engine.view.tierer_epoch:
            self._until = 0.0
            self._catalog.tier_problems, self._catalog.running_rounds = {}, {}
        return pb.TiererAnswer(epoch=request.epoch)


def _upkeep(said: pb.TableUpkeep) -> TableUpkeep:
    debts = (
        UpkeepDebt(part.duty[:DUTY_CHARACTERS_MAX], part.count, part.note[:PROBLEM_CHARACTERS_MAX])
        for part in said.debts[:DUTIES_MAX]
    )
    spent = said.spent_percent if 0 <= said.spent_percent <= 100 else 0.0
    return TableUpkeep(tuple(debts), said.slowed[:PROBLEM_CHARACTERS_MAX], spent)


def _running(said: pb.RunningRound, now: float, until: float) -> RunningRound:
    seconds = said.seconds if 0 <= said.seconds < ROUND_SECONDS_MAX else 0.0
    step = said.step[:DUTY_CHARACTERS_MAX]
    return RunningRound(step, said.changes, said.tasks, said.tasks_done, now - seconds, until)


def _problem(said: pb.TierProblem) -> TierProblem:
    return TierProblem(said.problem[:PROBLEM_CHARACTERS_MAX], said.failures)
