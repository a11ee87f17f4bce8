"""Verbs of named producers: open, list, drop. A producer is journaled until it is dropped or too old.

A producer counts against the limit of the principal that opened it first. Its epochs are the LSNs of its openings, so
they grow even if the name was dropped in between.
"""

from __future__ import annotations

from lakestore.errors import Invalid, NotFound
from lakestore.model.outside_values import shown_name
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.sequences import check_name, check_named
from lakestore_server.state.commit_record import CommitRecord, ProducerCommit, ProducerDrop
from lakestore_server.state.producers import ProducerState
from lakestore_server.state.state import State

PROGRESS_CHARS_SHOWN = 256


class ProducerVerbs:
    """Names, epochs and progress. Thread-safe."""

    def __init__(self, engine: Engine, idle_seconds: float) -> None:
        self._engine = engine
        self._idle_us = int(idle_seconds * 1e6)

    def open_producer(self, request: pb.OpenProducerRequest) -> pb.ProducerInfo:
        """Take a producer over: a new epoch fences earlier writers of this name."""
        if not request.producer:
            raise Invalid("a producer needs a name")
        check_name(request.producer, self._engine.limits)

        def plan(state: State, record: CommitRecord) -> pb.ProducerInfo:
            known = state.producers.known(request.producer)
            if known is None or not known.is_named:
                check_named(state.producers, known.owner if known else request.owner)
            epoch = state.epoch(record.lsn)
            record.producers.append(ProducerCommit(request.producer, epoch, owner=request.owner))
            progress = known.progress if known else ""
            return pb.ProducerInfo(epoch=epoch, progress=progress, timeline=state.timeline)

        return self._engine.operate(plan).result

    def list_producers(self, _: pb.ListProducersRequest) -> pb.ListProducersAnswer:
        known = sorted(self._engine.named_producers().items())
        return pb.ListProducersAnswer(producers=[_entry(name, state) for name, state in known])

    def drop_producer(self, request: pb.DropProducerRequest) -> pb.DropProducerAnswer:
        """Drop a producer with its progress; its writers are refused from now on."""

        def plan(state: State, record: CommitRecord) -> None:
            if request.producer not in state.producers.named:
                raise NotFound(f"there is no producer {shown_name(request.producer)}")
            record.producers.append(ProducerDrop(request.producer))

        self._engine.operate(plan)
        return pb.DropProducerAnswer()

    def forget_idle(self, now_us: int) -> None:
        """Drop the producers that were not opened or used for too long."""
        oldest_us = now_us - self._idle_us
        if not any(state.used_us < oldest_us for state in self._engine.named_producers().values()):
            return

        def plan(state: State, record: CommitRecord) -> None:
            record.producers += [ProducerDrop(name) for name in state.producers.idle(oldest_us)]

        self._engine.operate(plan)


def _entry(name: str, state: ProducerState) -> pb.ProducerEntry:
    return pb.ProducerEntry(
        name=name,
        owner=state.owner,
        epoch=state.epoch,
        last_sequence=state.last_sequence,
        progress=state.progress[:PROGRESS_CHARS_SHOWN],
        used_us=state.used_us,
    )
