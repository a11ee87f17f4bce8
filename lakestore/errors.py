"""Errors, as a caller sees them.

    LakestoreError
    ├── Invalid           fix the request; nothing was stored
    │   ├── NothingToKeep a row keeps a column of a row that does not exist: the error has the rows
    │   ├── Violated      rows break rules of the table's contract: the error has the rules and the rows
    │   ├── UnknownCall   the server's release is too old to know this call
    │   └── StreamEnded   the stream is closed or at its end
    ├── NotFound          the named table, snapshot or lease does not exist
    │   └── PlanExpired   the read took longer than its lease: plan again
    ├── Conflict          exists already, or another writer came first
    ├── Fenced            a newer epoch took over: stop
    │   └── ProducerForgotten  the server no longer knows the producer: open it again
    ├── Denied            you have no right to this: ask the server's operator for it
    │   ├── NeedsApproval      a proposal waits for an approver of the table: the error names it
    │   └── NotAuthenticated   send a valid token or certificate
    ├── Unavailable       try again later
    │   ├── NotLeader     the server follows another one: send it to the leader, which the error names
    │   └── Stopped       this connection or server has ended and will not answer again
    ├── Exhausted         a limit is reached: slow down, then try again
    │   └── LimitReached  waiting does not help: drop what the message names, or have the limit raised
    ├── Corrupt           stored bytes are damaged: the message names the file
    │   └── NewerFormat   a newer release wrote them: the message names it
    ├── NotFresh          the data is not as complete as was required: wait, or ask for less
    ├── PositionExpired   the position lies below the log start: read a snapshot
    │   └── OtherTimeline      the server was restored: the position belongs to an ended timeline
    └── Internal          a defect of Lakestore

`applied` says whether the request may have taken effect: "no" or "unknown".
Messages are one sentence: what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

Applied = Literal["no", "unknown"]


class LakestoreError(Exception):
    """Base of every error that leaves this package."""

    kind = "Internal"

    def __init__(self, message: str, *, applied: Applied = "no", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.message = message
        self.applied: Applied = applied
        self.retry_after = retry_after
        """Seconds after which to try again; 0 if the server does not know."""


class Invalid(LakestoreError):
    """The request is wrong; the message names column, row and rule."""

    kind = "Invalid"


class ChangeRows(NamedTuple):
    """Some rows of one change of a commit."""

    change: int
    """The change's number in the commit, from 0."""
    table: str
    """The table's name."""
    rows: tuple[int, ...]
    """The numbers of the rows in the change, ascending from 0."""


class RuleRows(NamedTuple):
    """Rows of one change of a commit that break one rule of a contract."""

    change: int
    """The change's number in the commit, from 0."""
    table: str
    """The table's name."""
    rows: tuple[int, ...]
    """The numbers of the rows in the change, ascending from 0."""
    rule: str
    """The rule's name."""
    sentence: str
    """The rule in words."""


class NothingToKeep(Invalid):
    """Rows keep columns of rows that do not exist; nothing of the commit is stored. Without these rows the commit
    succeeds."""

    kind = "NothingToKeep"
    changes: tuple[ChangeRows, ...] = ()
    """All these rows, by change; only the first changes if an answer has no room for all."""

    @classmethod
    def of(cls, changes: Sequence[ChangeRows]) -> Self:
        """The error of these rows, of at least one change."""
        table, rows = changes[0].table, changes[0].rows
        count = sum(len(each.rows) for each in changes)
        several = f", one of {count} such rows" if count > 1 else ""
        made = cls(
            f"table {table}: row {rows[0]} keeps columns of the row of its key, and there is none{several}: leave the"
            " rows out that the error names, or send them whole"
        )
        made.changes = tuple(changes)
        return made

    @property
    def table(self) -> str:
        """The first table with such rows."""
        return self.changes[0].table if self.changes else ""

    @property
    def rows(self) -> tuple[int, ...]:
        """The row numbers in the first change with such rows."""
        return self.changes[0].rows if self.changes else ()


class Violated(Invalid):
    """Rows break rules of the table's contract; nothing of the commit is stored."""

    kind = "Violated"
    changes: tuple[RuleRows, ...] = ()
    """The rows by change and rule. A row is there once for each rule that it breaks. Only the first entries if an
    answer has no room for all, and only of the first change with such rows."""


class UnknownCall(Invalid):
    """The server has no such call, which came with a later release."""


class StreamEnded(Invalid):
    """The stream is closed or at its end."""


class NotFound(LakestoreError):
    """A named thing does not exist."""

    kind = "NotFound"
    renamed_to: str = ""
    """The present name of a renamed table, on the server only: the message tells it to callers who may see it."""
    dropped_as: str = ""
    """The name of a dropped table that can be undropped, on the server only."""


class PlanExpired(NotFound):
    """The lease of a read expired before the read was done."""

    kind = "PlanExpired"


class Conflict(LakestoreError):
    """The thing exists already, or another writer came first."""

    kind = "Conflict"


class Fenced(LakestoreError):
    """A newer epoch has taken over; this process must stop writing."""

    kind = "Fenced"
    buckets: tuple[tuple[str, int], ...] = ()
    """Table and number of each bucket that an acknowledgement of a shared subscription did not move; the other buckets
    count. Empty if no bucket counts, and in every other error."""


class ProducerForgotten(Fenced):
    """The server no longer knows the producer. It cannot tell a retry from a new commit and applies neither. A named
    producer was dropped; one with a random name was idle too long. `applied` is "unknown" if an earlier attempt with
    the same rows was not answered."""

    kind = "ProducerForgotten"


class Denied(LakestoreError):
    """The caller has no right to this; a retry does not help."""

    kind = "Denied"


class NeedsApproval(Denied):
    """The contract of the table asks for an approval of this change. It is stored as a proposal, and nothing else was
    done. `lakestore proposals approve` by an approver makes the change."""

    kind = "NeedsApproval"
    proposal: str = ""
    """The proposal's id."""
    state: str = ""
    """proposed, or rejected if an approver has refused it before."""


class NotAuthenticated(Denied):
    """The caller is not authenticated: no token, or an unknown or expired one."""

    kind = "NotAuthenticated"


class Unavailable(LakestoreError):
    """Not now; the same request may succeed later."""

    kind = "Unavailable"


class NotLeader(Unavailable):
    """The server follows a journal that another server leads, so it neither writes nor answers this. A connection to
    several servers finds the leader by itself."""

    kind = "NotLeader"
    leader: str = ""
    """Host and gRPC port of the leader, as it says them; empty if the server knows none."""

    @classmethod
    def of(cls, leader: str, *, applied: Applied = "no") -> Self:
        """The error of a follower of this leader, or of a server that knows no leader."""
        made = cls(
            f"this server follows, and {leader} leads: send it there, or connect with all addresses"
            if leader
            else "this server follows, and no server leads now: try again",
            applied=applied,
        )
        made.leader = leader
        return made


class Stopped(Unavailable):
    """This connection was closed, or the server in this process has ended: no later call of it succeeds. A server over
    a network raises `Unavailable` instead, because another process may answer at its address."""


class Exhausted(LakestoreError):
    """A limit is reached; slow down and try again."""

    kind = "Exhausted"


class LimitReached(Exhausted):
    """A limit is reached that waiting does not lift; the message names what to drop."""

    kind = "LimitReached"


class Corrupt(LakestoreError):
    """Stored bytes do not match their checksum."""

    kind = "Corrupt"


class NewerFormat(Corrupt):
    """This release does not read the file's version."""


class NotFresh(LakestoreError):
    """The data of a read is not complete through the required time; nothing was read."""

    kind = "NotFresh"
    table: str = ""
    """The table that is not complete."""
    complete_through: datetime | None = None
    """The time through which this table is complete; None if unknown."""


class PositionExpired(LakestoreError):
    """The changelog is no longer complete from the position, or the table can no longer be read there."""

    kind = "PositionExpired"
    earliest: str = ""
    """The token of the first position at which all requested tables can be read; empty if unknown."""


class OtherTimeline(PositionExpired):
    """The position, producer or stream belongs to another timeline: the server was restored from a backup since.
    Positions and commits after the backup are lost. Start again: read a snapshot, open the producer or the subscription
    again."""

    kind = "OtherTimeline"


class Internal(LakestoreError):
    """A defect of Lakestore."""

    kind = "Internal"


KINDS: dict[str, type[LakestoreError]] = {
    error.kind: error
    for error in (
        Invalid,
        NothingToKeep,
        Violated,
        NotFound,
        PlanExpired,
        Conflict,
        Fenced,
        ProducerForgotten,
        Denied,
        NeedsApproval,
        NotAuthenticated,
        Unavailable,
        NotLeader,
        Exhausted,
        LimitReached,
        Corrupt,
        NotFresh,
        PositionExpired,
        OtherTimeline,
        Internal,
    )
}


def error_of(
    kind: str,
    message: str,
    applied: str = "no",
    retry_after: float = 0.0,
    buckets: Iterable[tuple[str, int]] = (),
    changes: Iterable[RuleRows] = (),
    figures: Mapping[str, Any] | None = None,
) -> LakestoreError:
    """The error of a kind's name."""
    outcome: Applied = "unknown" if applied == "unknown" else "no"
    made = KINDS.get(kind, Internal)(message, applied=outcome, retry_after=retry_after)
    if isinstance(made, Fenced):
        made.buckets = tuple(buckets)
    if isinstance(made, Violated):
        made.changes = tuple(changes)
    if isinstance(made, NothingToKeep):
        made.changes = tuple(ChangeRows(*each[:3]) for each in changes)
    _put_figures(made, figures or {})
    return made


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def figures_of(error: LakestoreError) -> dict[str, Any]:
    """The fields of an error besides its message, as `error_of` takes them."""
    if isinstance(error, PositionExpired) and error.earliest:
        return {"earliest": error.earliest}
    if isinstance(error, NotLeader) and error.leader:
        return {"leader": error.leader}
    if isinstance(error, NeedsApproval):
        return {"proposal": error.proposal, "state": error.state}
    if isinstance(error, NotFresh):
        through = error.complete_through
        micros = None if through is None else (through - _EPOCH) // timedelta(microseconds=1)
        return {"table": error.table, "complete_through_us": micros}
    return {}


def _put_figures(error: LakestoreError, figures: Mapping[str, Any]) -> None:
    if isinstance(error, PositionExpired):
        error.earliest = str(figures.get("earliest", ""))
    elif isinstance(error, NotLeader):
        error.leader = str(figures.get("leader", ""))
    elif isinstance(error, NeedsApproval):
        error.proposal, error.state = str(figures.get("proposal", "")), str(figures.get("state", ""))
    elif isinstance(error, NotFresh):
        micros = figures.get("complete_through_us")
        error.table = str(figures.get("table", ""))
        error.complete_through = None if micros is None else _EPOCH + timedelta(microseconds=int(micros))


__all__ = [
    "ChangeRows",
    "Conflict",
    "Corrupt",
    "Denied",
    "Exhausted",
    "Fenced",
    "Internal",
    "Invalid",
    "LakestoreError",
    "LimitReached",
    "NeedsApproval",
    "NewerFormat",
    "NotAuthenticated",
    "NotFound",
    "NotFresh",
    "NotLeader",
    "NothingToKeep",
    "OtherTimeline",
    "PlanExpired",
    "PositionExpired",
    "ProducerForgotten",
    "RuleRows",
    "Stopped",
    "StreamEnded",
    "Unavailable",
    "UnknownCall",
    "Violated",
]
