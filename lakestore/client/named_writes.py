"""`lake.producer("name")`: commits of several tables under a name, each with its progress.

The server stores the progress with the rows in one commit. The next opening of the name returns it and fences the
previous owner. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from lakestore.client.commit import Commit
from lakestore.client.connection import Connection
from lakestore.client.producer import Producer, is_over
from lakestore.client.transport import PROCESS
from lakestore.errors import Invalid, LakestoreError
from lakestore.v1 import lakestore_pb2 as pb


class NamedWrites:
    """The commits of one opening of a named producer. A context manager."""

    def __init__(self, connection: Connection, name: str) -> None:
        info = connection.transport.open_producer(pb.OpenProducerRequest(producer=name))
        self._connection, self._producer = connection, Producer.opened(name, info)
        self._end = ""
        """Why there can be no more commits; empty if there can."""
        self._is_sending = False

    @property
    def name(self) -> str:
        """The producer's name."""
        return self._producer.name

    @property
    def progress(self) -> str:
        """The progress of the newest commit under this name, also of an earlier process; empty before the first."""
        return self._producer.progress

    @contextmanager
    def commit(self, progress: str = "") -> Iterator[Commit]:
        """Changes to several tables and the progress, committed together at the end of the block. An error discards
        them.

        After an error with `applied="unknown"` open the name again: its progress shows whether the commit happened.
        """
        with Commit(self._connection) as commit:
            yield commit
            if progress and commit.is_empty:
                raise Invalid("progress is kept with rows, and this commit has none: add some, or leave the commit out")
            if not commit.is_empty:
                commit.send(lambda changes: self._committed(changes, progress))

    def _committed(self, changes: Sequence[pb.Change], progress: str) -> pb.CommitAnswer:
        PROCESS.check()
        if self._end:
            raise Invalid(f"producer {self.name!r} {self._end}: open it again, its progress says how far it came")
        if self._is_sending:
            raise Invalid(f"a commit of producer {self.name!r} is still running: wait for its end")
        request = self._producer.request(changes, progress)
        self._is_sending = True
        try:
            answer = self._connection.transport.commit(request)
        except LakestoreError as error:
            if error.applied == "unknown":
                self._end = "has a commit whose outcome is unknown"
            elif is_over(error):
                self._end = "is no longer known to the server in this history"
            self._producer.sequence -= 1
            raise
        finally:
            self._is_sending = False
        self._producer.progress = progress or self._producer.progress
        return answer

    def close(self) -> None:
        """Accept no more commits. The server keeps the name and its progress."""
        self._end = self._end or "is closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
