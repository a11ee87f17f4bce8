"""A thread that reads a change stream ahead within a limit of bytes."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable

from lakestore.client.changes import ChangeBatch, ChangeStream
from lakestore.client.scope import SCOPE, Scope
from lakestore.errors import Internal, LakestoreError

JOIN_SECONDS = 5.0


class Ahead:
    """Batches of a stream as they arrive. For one reader."""

    def __init__(self, open_stream: Callable[[], ChangeStream], bytes_max: int) -> None:
        self._opened, self._bytes_max = open_stream, bytes_max
        self._changed = threading.Condition()
        self._batches: deque[ChangeBatch] = deque()
        self._bytes = 0
        self._error: LakestoreError | None = None
        self._ended = self._closed = self._whole = False
        self._stream: ChangeStream | None = None
        self._scope, context = Scope(), contextvars.copy_context()
        context.run(SCOPE.set, self._scope)
        self._thread = threading.Thread(target=context.run, args=(self._read,), name="lakestore-ahead", daemon=True)
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def has_ended(self) -> bool:
        """True if `take` will return no more batches."""
        return self._whole and not self._batches

    def take(self, seconds: float) -> ChangeBatch | None:
        """The next batch; None on timeout or at the end. Raises the stream's error."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._batches and not self._ended:
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return None
            if not self._batches:
                if not self._whole:
                    raise self._error or Internal("the thread that reads a change stream ended by a defect")
                return None
            batch = self._batches.popleft()
            self._bytes -= batch.table.nbytes
            self._changed.notify_all()
            return batch

    def ack(self, token: str) -> None:
        if self._stream is not None:
            self._stream.ack(token)

    def close(self) -> None:
        """End the stream. A stream of a server in this process ends by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._scope.cancel()
        self._thread.join(JOIN_SECONDS)  # a thread inside gRPC must not outlive the interpreter

    def _read(self) -> None:
        error: LakestoreError | None = None
        try:
            self._stream = self._opened()
            for batch in self._stream:
                if not self._put(batch):
                    break
            self._stream.close()
            self._whole = True
        except LakestoreError as failure:
            error = failure
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def _put(self, batch: ChangeBatch) -> bool:
        """Queue a batch. False if the reader has closed."""
        with self._changed:
            while self._bytes > self._bytes_max and not self._closed:
                self._changed.wait()
            self._batches.append(batch)
            self._bytes += batch.table.nbytes
            self._changed.notify_all()
            return not self._closed
