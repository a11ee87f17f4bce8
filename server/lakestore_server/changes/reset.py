"""The reset of a subscription: one commit moves its position forward or back and fences its readers."""

from __future__ import annotations

from dataclasses import replace

from lakestore.errors import NotFound
from lakestore.model.outside_values import shown_name
from lakestore.model.token import place_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.sharing import positions
from lakestore_server.changes.start import start_position
from lakestore_server.changes.subscriptions import Subscriptions, behind
from lakestore_server.commit.engine import Engine
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.subscription import Subscription


def reset(
    engine: Engine, subscriptions: Subscriptions, request: pb.ResetSubscriptionRequest
) -> pb.ResetSubscriptionAnswer:
    """Set a subscription to `earliest`, `latest`, `snapshot`, a time or a token, with the rules of a new
    subscription."""

    def plan(state: State, record: CommitRecord) -> tuple[Subscription, Subscription]:
        view = state.view
        known = view.subscriptions.get(request.subscription)
        if known is None:
            raise NotFound(f"there is no subscription {shown_name(request.subscription)}")
        if any(uuid not in view.tables for uuid in known.tables):
            raise NotFound(
                f"a table of subscription {known.name!r} was dropped: undrop the table, or drop the subscription"
            )
        begin = start_position(engine, view, request.to or "earliest", known.tables)
        moved = replace(
            known,
            lsn=begin.lsn,
            place=place_of(begin),
            epoch=state.epoch(record.lsn),
            acked_us=record.clock_us,
            marks=(),
            refusals=(),
        )
        made = positions.shared(moved, view) if known.is_shared else moved
        record.subscriptions.append(made)
        return known, made

    if request.to:
        engine.settled()  # a position by time counts every commit of that time
    done = engine.operate(plan)
    known, held = done.result
    subscriptions.left(known, done.view)
    lsn, place = positions.position(held, done.view)
    token = str(replace(held, lsn=lsn, place=place).token(engine.timeline))
    return pb.ResetSubscriptionAnswer(token=token, behind=behind(done.view, held))
