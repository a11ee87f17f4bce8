"""Commits of named producers, sent again until it is known whether they have happened."""

from __future__ import annotations

from collections.abc import Callable

import lakestore as ls

TRIES = 4


class Named:
    """A producer of one name. After an unknown outcome its progress says whether the commit has happened."""

    def __init__(self, lake: ls.Lake, name: str) -> None:
        self._lake, self._name = lake, name
        self._writes: ls.NamedWrites | None = None

    def commit(self, progress: str, add: Callable[[ls.Commit], None]) -> str:
        """The token of a commit of all that `add` adds, which progress names; empty if an earlier try has happened.

        The outcome is known in the end, unless the server stays away or has a defect, which no further try may hide.
        """
        unsure = False
        for tries_left in reversed(range(TRIES)):
            try:
                if self._writes is None:
                    self._writes = self._lake.producer(self._name)
                    if self._writes.progress == progress:
                        return ""
                    unsure = False  # and it never will: this opening has fenced the tries before
                with self._writes.commit(progress=progress) as commit:
                    add(commit)
                return commit.token
            except ls.LakestoreError as error:
                self._writes = None
                unsure = unsure or error.applied == "unknown"
                if not tries_left or not unsure or isinstance(error, ls.Internal | ls.Corrupt):
                    error.applied = "unknown" if unsure else "no"
                    raise
        raise AssertionError("the last try returns or raises")
