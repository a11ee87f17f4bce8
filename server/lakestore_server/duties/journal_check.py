"""The check of a running server's shared journal: what no checkpoint of this server has is still in the log, and stays.

- If messages that this server needs are gone, it makes a checkpoint at once, because it has their commits in memory.
  Else its next start would be refused.
- If the log got a setting by which it may lose messages, the duty fails with the name of the setting, so status and
  alarm show it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakestore_server.commit.engine import Engine
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from lakestore_server.journals.shared_journal import SharedJournal

log = logging.getLogger("lakestore.journal")
CHECK_SECONDS = 60.0


class JournalCheck:
    """The check of one server."""

    def __init__(self, journal: SharedJournal, supervisor: Supervisor, checkpoint: Callable[[], None]) -> None:
        self._journal, self._checkpoint = journal, checkpoint
        self._worker = Worker(
            supervisor=supervisor, name="journal-check", work=self.run_once, failed=_failed, every=CHECK_SECONDS
        )
        self._worker.start()

    @classmethod
    def of(cls, engine: Engine, checkpoint: Callable[[], None]) -> JournalCheck | None:
        """The check of an engine's journal; None if it is not shared."""
        journal = engine.loop.journal
        return cls(journal, engine.supervisor, checkpoint) if isinstance(journal, SharedJournal) else None

    def run_once(self) -> None:
        """`Invalid` with the setting by which the log may lose messages."""
        if self._journal.is_cut():
            log.error("messages that only this server's memory has are gone from the journal: it makes a checkpoint")
            self._checkpoint()
        self._journal.check()

    def close(self) -> None:
        self._worker.close()


def _failed(error: Exception) -> None:
    log.error("the journal may lose commits, or does not answer: %s", error)
