"""The producers of a state: counted by owner, aged by their last commits, the same after a checkpoint."""

from __future__ import annotations

from collections import Counter

from lakestore.limits import Limits
from lakestore_server.state.commit_record import ProducerCommit, ProducerDrop
from lakestore_server.state.producers import Producers, is_drawn
from tests.support.seeds import seeded

LIMITS = Limits(unnamed_producers=3, unnamed_producer_seconds=300)


def test_counts_and_horizons_are_those_of_a_plain_model() -> None:
    chance, producers = seeded(), Producers(LIMITS)
    lasts: dict[str, int] = {}
    for lsn in range(1, 2_000):
        time_us = lsn * 20_000_000
        name = chance.choice(["etl", "sink", *(f"{n:032x}" for n in range(12))])
        known = producers.known(name)
        if chance.random() < 0.05 and known is not None and known.is_named:
            producers.apply(lsn, time_us, ProducerDrop(name))
        else:
            owner = chance.choice(["", "anna"]) if len(name) < 32 else chance.choice(["anna", "bert"])
            epoch = known.epoch if known else 0
            sequence = known.last_sequence + 1 if known else 1
            progress, is_named = "x" * chance.randrange(3), not is_drawn(name, epoch)
            made = ProducerCommit(name, epoch, sequence, progress=progress, owner=owner, is_named=is_named)
            producers.apply(lsn, time_us, made)
            lasts[name] = lsn
        producers.grow_old(time_us)
        if chance.random() < 0.1:
            producers = Producers(LIMITS, producers.frozen())
        held = producers.frozen().known
        named = Counter(state.owner for state in held.values() if state.is_named)
        unnamed = Counter(state.owner for state in held.values() if not state.is_named)
        assert {owner: producers.named_of(owner) for owner in ("", "anna", "bert")} == {
            owner: named[owner] for owner in ("", "anna", "bert")
        }
        for owner in ("", "anna", "bert"):
            assert producers.progress_of(owner) == sum(len(s.progress) for s in held.values() if s.owner == owner)
        assert max(unnamed.values(), default=0) <= LIMITS.unnamed_producers
        for name, state in held.items():
            assert state.lsn == lasts[name]
            assert state.is_named or state.used_us >= time_us - 300_000_000
        gone = [lsn for name, lsn in lasts.items() if name not in held and is_drawn(name, 0)]
        assert max(gone, default=0) <= max(producers.horizon("anna"), producers.horizon("bert"))
