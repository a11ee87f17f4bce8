"""A thread that syncs a file while its user goes on writing to it: what is written meanwhile is the next sync's."""

from __future__ import annotations

import threading

from lakestore_server.host import priority
from lakestore_server.host.disk import AppendFile


class SyncThread:
    """One sync at a time, of whichever file. Its user holds no lock while it waits; the thread begins when it must."""

    def __init__(self, changed: threading.Condition) -> None:
        """`changed` is notified when a sync is over."""
        self._changed = changed
        self._wanted = threading.Condition()
        """The thread's own condition: records that come in need not wake it."""
        self._file: AppendFile | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether the sync that was begun has ended."""
        return self._file is None

    def begin(self, file: AppendFile) -> None:
        """Begin to sync what the file has now."""
        with self._wanted:
            assert self._file is None, "one sync at a time"
            self._file, self._failure = file, None
            self._wanted.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-disk", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the end of the sync; raises what it raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._file is None)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread behind the sync that runs."""
        with self._wanted:
            self._is_closed = True
            self._wanted.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        priority.take_short_turns()
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._file is not None or self._is_closed)
                file = self._file
            if file is None:
                return
            failure: BaseException | None = None
            try:
                file.sync()
            except BaseException as error:  # the boundary of the thread: who waits raises it
                failure = error
            with self._changed:
                self._file, self._failure = None, failure
                self._changed.notify_all()
