"""The duties over the commit loop: checkpoints, merges and rebuild of the index, and the scrub."""

from __future__ import annotations

import logging

from lakestore.errors import LakestoreError
from lakestore_server.commit.engine import Engine
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.duties.checkpoint_upload import KEEP_SECONDS, CheckpointUpload
from lakestore_server.duties.index_rebuild import IndexMerger, Rebuilder
from lakestore_server.duties.scrub import Scrubber
from lakestore_server.host.clock import Clock
from lakestore_server.journals.checkpoint_store import CheckpointStore
from lakestore_server.segments.integrity import Integrity

log = logging.getLogger("lakestore.checkpoint")


class Upkeep:
    """Built over a running loop and closed before the loop."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        store: CheckpointStore | None = None,
        store_keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        """`store` gets the checkpoints, and keeps a replaced one for `store_keep_seconds`."""
        loop, disk, limits = engine.loop, engine.disk, engine.limits
        self._loop = loop
        self.checkpointer = Checkpointer(engine.folder, disk, loop, limits, clock)
        self.upload: CheckpointUpload | None = None
        if store is not None:
            self.upload = CheckpointUpload(loop, self.checkpointer, store, clock, store_keep_seconds)
            self.upload.start()
        self._rebuilder = Rebuilder(loop, self.checkpointer.wake)
        self._merger = IndexMerger(loop, self.checkpointer.wake)
        self.checkpointer.on_done(self._merger.wake)
        self.integrity = Integrity(engine.folder, disk, loop.index, lambda: loop.view, lambda: loop.journal.written)
        self.scrubber = Scrubber(loop.supervisor, self.integrity, loop.index, lambda: loop.view, limits.scrub_bytes)

    def checkpoint(self) -> None:
        self.checkpointer.run_once()

    def merge_index(self) -> None:
        """Merge the index runs that are due and wait for the end."""
        self._merger.run_once()

    def forget_dead(self) -> bool:
        """Rewrite segments and index without dead rows of tables under erasure, and drop the journal before. False if
        the index could not be merged now."""
        self.checkpoint()
        self.checkpoint()  # its run forgets the keys of deletes that a `versioned` table remembered
        if not self._merger.merge_whole():
            return False
        self.checkpoint()  # it names the merged run, and the old ones are removed
        return True

    def close(self, *, checkpoint: bool = True) -> None:
        """Stop all duties, after a last checkpoint if the loop still runs; idempotent."""
        self.scrubber.close()
        if self.upload is not None:
            self.upload.close()
        self._merger.close()
        self.checkpointer.close()
        if checkpoint and self._loop.is_running:
            self._loop.supervisor.once("last-checkpoint", self._last_checkpoint).join()
        self._rebuilder.close()  # last, because a look-up may still find a problem of the index

    def _last_checkpoint(self) -> None:
        """Report unforeseen errors too: the folder is released in any case."""
        try:
            self.checkpoint()
        except (LakestoreError, OSError) as error:
            log.error("the last checkpoint failed, the next start reads the journal: %s", error)
