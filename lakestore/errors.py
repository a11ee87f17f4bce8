"""Errors, as a caller sees them.

    LakestoreError
    ├── Invalid           fix the request; nothing was stored
    │   ├── NothingToKeep a row keeps a column of a row that is not there: the error has the rows
    │   ├── UnknownCall   the server's release is too old to know this call
    │   └── StreamEnded   nothing comes any more: the stream was closed, or has come to its end
    ├── NotFound          the named table, snapshot or lease does not exist
    │   └── PlanExpired   the read took longer than its lease: plan again
    ├── Conflict          exists already, or another writer came first
    ├── Fenced            a newer epoch took over: stop
    │   └── ProducerForgotten  the server no longer knows the producer: open it anew
    ├── Denied            you may not: ask who runs the server for the right
    │   └── NotAuthenticated   who are you? Send a valid token or certificate
    ├── Unavailable       try again later
    │   └── Stopped       this very connection or server has ended: another one may answer, this one never
    ├── Exhausted         a limit is reached: slow down, then try again
    │   └── LimitReached  no waiting lifts this one: drop what the message names, or have the limit raised
    ├── Corrupt           stored bytes are damaged: the message names the file
    │   └── NewerFormat   a newer release wrote them: the message names it
    ├── NotFresh          the data is not as complete as was required: wait, or ask for less
    ├── PositionExpired   the position lies below the log start: read a snapshot
    │   └── OtherTimeline      the server was restored: this is of a history that has ended
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
        """Seconds after which to try again, as far as the server can say; 0 if it does not say."""


class Invalid(LakestoreError):
    """The request is wrong; the message names column, row and rule."""

    kind = "Invalid"


class ChangeRows(NamedTuple):
    """Some rows of one change of a commit."""

    change: int
    """The change's place among those of the commit, from 0."""
    table: str
    """The table's name."""
    rows: tuple[int, ...]
    """The numbers of the rows in the change, ascending from 0."""


class NothingToKeep(Invalid):
    """Rows keep columns of rows that are not there; nothing of the commit is stored.

    Without these rows the commit is as it would have been if they had not been sent.
    """

    kind = "NothingToKeep"
    changes: tuple[ChangeRows, ...] = ()
    """All such rows, by change; those of the first changes, should there be more than an answer has room for."""

    @classmethod
    def of(cls, changes: Sequence[ChangeRows]) -> Self:
        """The error of these rows, of one change at least."""
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
        """The first such table."""
        return self.changes[0].table if self.changes else ""

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the rows in the first such change."""
        return self.changes[0].rows if self.changes else ()


class UnknownCall(Invalid):
    """The server has no such call, which came with a later release."""


class StreamEnded(Invalid):
    """A stream was asked for more that was closed, or has come to its end."""


class NotFound(LakestoreError):
    """A named thing does not exist."""

    kind = "NotFound"
    renamed_to: str = ""
    """The present name of a renamed table, beside the server alone: the message tells it to callers who see it."""
    dropped_as: str = ""
    """The name of a dropped table that can be undropped, beside the server alone as well."""


class PlanExpired(NotFound):
    """The lease of a read ran out before the read was done."""

    kind = "PlanExpired"


class Conflict(LakestoreError):
    """The thing exists already, or somebody else changed it first."""

    kind = "Conflict"


class Fenced(LakestoreError):
    """A newer epoch has taken over; this process must stop writing."""

    kind = "Fenced"
    buckets: tuple[tuple[str, int], ...] = ()
    """Table and number of each bucket that an acknowledgement of a shared subscription did not move; its other buckets
    count. Empty if nothing of the acknowledgement counts, and in every other error."""


class ProducerForgotten(Fenced):
    """The server no longer knows the producer, so it cannot tell a retry from a new commit, and applies neither.

    A named producer was dropped, by somebody or for its age; one with a random name had rested too long. Nothing is
    applied by a call that ends so; `applied` is "unknown" where an earlier try of the same rows was not answered.
    """

    kind = "ProducerForgotten"


class Denied(LakestoreError):
    """The caller has no right to this; no retry mends it."""

    kind = "Denied"


class NotAuthenticated(Denied):
    """The caller did not show who it is: no token, or one that is not known or no longer valid."""

    kind = "NotAuthenticated"


class Unavailable(LakestoreError):
    """Not now; the same request may succeed later."""

    kind = "Unavailable"


class Stopped(Unavailable):
    """The connection was closed here, or the server in this process has ended: no later call of it succeeds.

    A server that ends over a network is an `Unavailable`: another process may answer under the same address.
    """


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
    """A file has a version that this release does not read."""


class NotFresh(LakestoreError):
    """The data of a read is not complete through the time that was required; nothing was read."""

    kind = "NotFresh"
    table: str = ""
    """The table that holds it back."""
    complete_through: datetime | None = None
    """The time through which that table is complete; None where it is not known."""


class PositionExpired(LakestoreError):
    """The changelog is no longer complete from the asked position, or the table can no longer be read there."""

    kind = "PositionExpired"
    earliest: str = ""
    """The token of the first position that can be read now, of all tables asked for; empty where that is not said."""


class OtherTimeline(PositionExpired):
    """The position, producer or stream belongs to another history: the server was restored from a backup since.

    Positions after the backup name nothing any more, and commits after the backup are gone. Begin anew: read a
    snapshot, open the producer or the subscription again.
    """

    kind = "OtherTimeline"


class Internal(LakestoreError):
    """A defect of Lakestore."""

    kind = "Internal"


KINDS: dict[str, type[LakestoreError]] = {
    error.kind: error
    for error in (
        Invalid,
        NothingToKeep,
        NotFound,
        PlanExpired,
        Conflict,
        Fenced,
        ProducerForgotten,
        Denied,
        NotAuthenticated,
        Unavailable,
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
    changes: Iterable[ChangeRows] = (),
    figures: Mapping[str, Any] | None = None,
) -> LakestoreError:
    """The error that a kind's name stands for."""
    outcome: Applied = "unknown" if applied == "unknown" else "no"
    made = KINDS.get(kind, Internal)(message, applied=outcome, retry_after=retry_after)
    if isinstance(made, Fenced):
        made.buckets = tuple(buckets)
    if isinstance(made, NothingToKeep):
        made.changes = tuple(changes)
    _put_figures(made, figures or {})
    return made


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def figures_of(error: LakestoreError) -> dict[str, Any]:
    """The figures of an error beside its message, as `error_of` takes them."""
    if isinstance(error, PositionExpired) and error.earliest:
        return {"earliest": error.earliest}
    if isinstance(error, NotFresh):
        through = error.complete_through
        micros = None if through is None else (through - _EPOCH) // timedelta(microseconds=1)
        return {"table": error.table, "complete_through_us": micros}
    return {}


def _put_figures(error: LakestoreError, figures: Mapping[str, Any]) -> None:
    if isinstance(error, PositionExpired):
        error.earliest = str(figures.get("earliest", ""))
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
    "NewerFormat",
    "NotAuthenticated",
    "NotFound",
    "NotFresh",
    "NothingToKeep",
    "OtherTimeline",
    "PlanExpired",
    "PositionExpired",
    "ProducerForgotten",
    "Stopped",
    "StreamEnded",
    "Unavailable",
    "UnknownCall",
]
