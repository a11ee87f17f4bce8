"""The key index's LMDB within the world: the server's own code on both sides, without the process and the pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from lakestore.errors import Unavailable
from lakestore_server.index.lmdb_store import LMDB_ERRORS, TEMPORARY_ERRORS, LmdbStore
from lakestore_server.index.packed import PackedKeys
from lakestore_server.index.pipe import DAMAGED_FILES, FAILED, Answer, Op, Request
from lakestore_server.index.worker import answered
from lakestore_server.index.worker_client import IndexWorker, taken
from tests.simulation.world import Killed, World

ASK_SECONDS, SYNC_SECONDS = 100e-6, 5e-3
"""The times of a look-up, and of a change with its sync, on average."""


class Stores:
    """The LMDB environments of one life of the server: one of each folder, whoever asks for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: dict[Path, LmdbStore] = {}
        self._users: dict[Path, int] = {}
        self.is_closed = False

    def of(self, folder: Path, _silence_seconds: float) -> IndexWorker:
        """The worker of a folder: the server's `IndexOf`."""
        self._users[folder] = self._users.get(folder, 0) + 1
        return _Worker(self, folder)

    def store(self, folder: Path) -> LmdbStore:
        """The environment, opened by the first request."""
        if self.is_closed:
            raise Killed
        if folder not in self._open:
            self._open[folder] = LmdbStore(str(folder))
        return self._open[folder]

    def left(self, folder: Path) -> None:
        """One worker less needs it."""
        self._users[folder] -= 1
        if not self._users[folder] and folder in self._open:
            self._open.pop(folder).close()

    def close(self) -> None:
        """End all, as the end of their processes does."""
        self.is_closed = True
        for store in self._open.values():
            store.close()
        self._open.clear()


class _Worker:
    """As an `IndexProcess`."""

    pid = None

    def __init__(self, stores: Stores, folder: Path) -> None:
        self._stores, self._folder = stores, folder
        self._is_closed = False

    def ask(
        self,
        op: Op,
        keys: Sequence[bytes] | PackedKeys = (),
        number: int = 0,
        *,
        again: bool = False,
    ) -> tuple[int, bytes]:
        """As an `IndexProcess`, whose answers come after a time."""
        message = Request.of(op, keys, number).encode()
        world = self._stores.world
        mean = SYNC_SECONDS if op in (Op.STAND_AT, Op.REMOVE, Op.CLEAR) else ASK_SECONDS
        world.sleep(world.chance.expovariate(1 / mean))
        if self._is_closed:
            raise Unavailable("the key index is closed: try again")
        answer = self._answered(Request.read(io.BytesIO(message)))
        world.point()
        return taken(answer)

    def _answered(self, request: Request) -> Answer:
        try:
            return answered(self._stores.store(self._folder), request)
        except TEMPORARY_ERRORS as error:
            return Answer(FAILED, str(error).encode())
        except LMDB_ERRORS as error:
            return Answer(DAMAGED_FILES, f"it cannot be opened: {error}".encode())

    def close(self) -> None:
        """Ask no more."""
        if not self._is_closed:
            self._is_closed = True
            self._stores.left(self._folder)
