"""JSON forms of values in journal and checkpoint: results of changes, subscriptions, marks, changes of registers.

A form is a list, for a checkpoint holds many of them. Lists of older releases are shorter: what they lack is at its
default. Counts that a later release adds to a result are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from lakestore.model.token import Place
from lakestore_server.state.commit_record import (
    ChangeResult,
    ProducerChange,
    ProducerCommit,
    ProducerDrop,
    RegisterChange,
    RegistersDrop,
    RegistersMove,
    RegistersOpen,
)
from lakestore_server.state.producers import is_drawn
from lakestore_server.state.subscription import Mark, Refusal, Subscription

_FIELDS = len(fields(ChangeResult))


def result_list(result: ChangeResult) -> list[Any]:
    """The stored form of a change's result; the last three counts only where one of them is not zero."""
    counts = [result.table, result.inserted, result.updated, result.deleted, result.not_found, result.schema_id]
    merged = [result.ignored, result.unchanged, result.folded]
    return [*counts, *merged] if any(merged) else counts


def result_of(data: Sequence[Any]) -> ChangeResult:
    """The result that `result_list` wrote."""
    return ChangeResult(*data[:_FIELDS])


def mark_list(mark: Mark) -> list[int]:
    """The stored form of a mark."""
    return [mark.offset, mark.cut, mark.by, mark.since]


def subscription_list(held: Subscription) -> list[Any]:
    """The stored form of a subscription; marks only of a shared one."""
    place = [held.place.table, held.place.bucket, held.place.offset] if held.place else None
    alone = [held.name, list(held.tables), held.lsn, place, held.epoch, held.acked_us]
    marks = [[mark_list(mark) for mark in table] for table in held.marks]
    if held.refusals:
        return [*alone, marks, refusals_list(held.refusals)]
    return [*alone, marks] if marks else alone


def refusals_list(refusals: Sequence[Refusal]) -> list[list[int]]:
    """The stored form of refusals."""
    return [[each.table, each.bucket, each.session, each.run] for each in refusals]


def refusals_of(data: Sequence[Sequence[int]]) -> tuple[Refusal, ...]:
    """The refusals that `refusals_list` wrote."""
    return tuple(Refusal(*each) for each in data)


def subscription_of(data: Sequence[Any]) -> Subscription:
    """The subscription that `subscription_list` wrote."""
    name, tables, lsn, place, epoch, acked_us = data[:6]
    marks = tuple(tuple(Mark(*mark) for mark in table) for table in data[6]) if len(data) > 6 else ()
    refusals = refusals_of(data[7]) if len(data) > 7 else ()
    at = Place(*place) if place else None
    return Subscription(name, tuple(tables), lsn, at, epoch, acked_us, marks, refusals)


def registers_list(change: RegisterChange) -> list[Any]:
    """Told apart by their length: dropped names alone, an opening, or names with their new values."""
    if isinstance(change, RegistersDrop):
        return [change.names]
    if isinstance(change, RegistersMove):
        return [change.names, change.values, change.mark]
    return [change.names, [change.epoch, change.owner]]


def registers_of(data: Sequence[Any]) -> RegisterChange:
    """The change that `registers_list` wrote."""
    names = tuple(data[0])
    if len(data) == 1:
        return RegistersDrop(names)
    return RegistersOpen(names, *data[1]) if len(data) == 2 else RegistersMove(names, tuple(data[1]), data[2])


def producer_change_list(change: ProducerChange) -> list[Any]:
    """The stored form of a producer's commit, or a dropped name alone: told apart by their length."""
    if isinstance(change, ProducerDrop):
        return [change.producer]
    results = [result_list(result) for result in change.results]
    said = [change.producer, change.epoch, change.sequence, results, change.progress]
    if (change.owner, change.is_named) == _unsaid(change.producer, change.epoch):
        return said
    return [*said, change.owner, int(change.is_named)]


def _unsaid(producer: str, epoch: int) -> tuple[str, bool]:
    """Owner, and whether named, of a producer whose commit says neither."""
    return "", not is_drawn(producer, epoch)


def producer_change_of(data: Sequence[Any]) -> ProducerChange:
    """The change that `producer_change_list` wrote; releases up to 0.2 did not say who owns a producer and named it."""
    if len(data) == 1:
        return ProducerDrop(data[0])
    producer, epoch, sequence, results, progress = data[:5]
    owner, is_named = data[5:7] if len(data) > 5 else _unsaid(producer, epoch)
    made = tuple(map(result_of, results))
    return ProducerCommit(producer, epoch, sequence, made, progress, owner, bool(is_named))
