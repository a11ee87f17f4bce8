"""The making of a commit upon a state: its record, its bytes and the view after it; or why there is none.

Until it is made nothing is written or applied, so whatever fails here is of the requests alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lakestore.errors import Internal, LakestoreError
from lakestore.limits import Limits
from lakestore.wire import errors
from lakestore_server.commit.build import build
from lakestore_server.commit.draft import GroupTooLarge, RequestRefused
from lakestore_server.commit.flight import Underway
from lakestore_server.commit.request import Request
from lakestore_server.files.journal import encode
from lakestore_server.host.stages import stage
from lakestore_server.index.key_index import Index
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.journal import Buffer
from lakestore_server.state.state import State

log = logging.getLogger("lakestore.engine")


class Unmade(Exception):
    """A group that became no commit."""

    def __init__(self, error: LakestoreError, *, is_of_one: bool) -> None:
        super().__init__(error.message)
        self.error, self.is_of_one = error, is_of_one
        """Whether the error may be one request's, and others of the group do without."""


class GaveWay(Exception):
    """A group that waits again: a stage of its making was where others went before."""


def defect(error: Exception, what: str, count: int) -> Internal:
    """The error of an exception that nobody foresaw."""
    log.error("%s %d not made, nothing of that is written", what, count, exc_info=error)
    return errors.defect(error, "no")


def made(
    group: Sequence[Request], state: State, index: Index, record: CommitRecord, limits: Limits
) -> tuple[Underway, Sequence[Buffer]]:
    """The commit that these requests are, and its bytes; or `RequestRefused`, `Unmade` or `GaveWay`."""
    try:
        commit = build(group, state.view, index, record, limits)
        stage()
        view, encoded = state.view_after(commit.record), encode(commit.record)
    except (RequestRefused, GaveWay):
        raise
    except GroupTooLarge as large:
        raise Unmade(large.error, is_of_one=True) from large
    except LakestoreError as error:
        raise Unmade(error, is_of_one=False) from error
    except Exception as error:  # whatever one request does to the code, others of its group go on
        raise Unmade(defect(error, "requests:", len(group)), is_of_one=True) from error
    queued = [request.queued for request in group]
    answers = [(request.answer, answer) for request, answer in zip(group, commit.answers, strict=True)]
    return Underway(commit.record, view, commit.entries, queued, answers), encoded
