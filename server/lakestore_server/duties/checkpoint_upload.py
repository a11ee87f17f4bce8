"""The duty that puts the leader's checkpoints into a store, so that a server on an empty disk starts from there.

- It works on the newest checkpoint, beside the commit loop, from the open maps of its segments.
- It claims before it puts a file, and puts files before the manifest and the manifest before the head. A claim of
  another server makes what it put void.
- The journal keeps what the kept checkpoints of the store need. A file goes once no kept head names it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from lakestore.errors import Corrupt, NotFound
from lakestore.rows.ipc import crc32c
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.duties.checkpoint import Checkpointer, CheckpointFile, DurableCheckpoint
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.worker import Worker
from lakestore_server.journals.checkpoint_store import (
    FILES,
    PART_BYTES,
    CheckpointStore,
    StoredCheckpoint,
    StoredFile,
    StoreHead,
    head_name,
    new_id,
)
from lakestore_server.journals.shared_journal import SharedJournal, position_of
from lakestore_server.state.commit_record import BEGINNING

log = logging.getLogger("lakestore.store")
PAUSE_SECONDS = 10.0
"""Time from one upload to the next one."""
KEEP_SECONDS = 3600.0
"""Time for which a checkpoint is kept that a newer one has replaced."""
KEPT_MIN = 2
"""Checkpoints that are always kept."""
PUTS = 8
"""Parts on their way at once."""
GIVEN_SECONDS = 0.005
"""The longest wait for small commits before each part."""


@dataclass(slots=True)
class UploadFigures:
    """The state of the uploads. The duty changes it, any thread may read it."""

    url: str
    lsn: int = -1
    """The LSN of the newest checkpoint in the store, as far as this server knows; -1 before it knows one."""
    behind_since: float | None = None
    """Monotonic time of the oldest checkpoint on disk that the store lacks; None if it lacks none."""
    problem: str = ""
    """Why the last upload failed; empty if it did not."""
    uploads: int = 0
    sent_bytes: int = 0
    """Bytes of the parts that were put since the start."""

    def behind_seconds(self, now: float) -> float:
        """Seconds for which the store lacks a checkpoint that is on disk."""
        return 0.0 if self.behind_since is None else max(now - self.behind_since, 0.0)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A checkpoint to upload."""

    made: DurableCheckpoint
    at: float


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """A file whose parts are in the store. The open map tells whether a file of its path is the same one."""

    data: pa.Buffer
    file: StoredFile

    def has_bytes_of(self, data: pa.Buffer) -> bool:
        return bool(self.data.address == data.address and self.data.size == data.size)


@dataclass(frozen=True, slots=True)
class _KeptHead:
    """A head that is kept, and the monotonic time since which there is a newer one."""

    head: StoreHead
    replaced_at: float | None = None

    @property
    def manifest(self) -> str:
        return self.head.checkpoint.manifest if self.head.checkpoint else ""


class _Overtaken(Exception):
    """Another server put a head, so what this one put is void."""


class _Closing(Exception):
    """The server ends during an upload."""


class CheckpointUpload:
    """The duty of one server. It does nothing while the server follows."""

    def __init__(
        self,
        loop: CommitLoop,
        checkpointer: Checkpointer,
        store: CheckpointStore,
        clock: Clock,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        assert isinstance(loop.journal, SharedJournal), "checkpoints go to a store beside a shared journal alone"
        self._loop, self._checkpointer, self._journal = loop, checkpointer, loop.journal
        self._store, self._clock, self._keep_seconds = store, clock, keep_seconds
        self.figures = UploadFigures(store.url)
        self._writer = new_id()
        self._lock = threading.Lock()
        self._offer: _Offer | None = None
        self._head: StoreHead | None = None
        """The newest head, which this server put; None before the claim."""
        self._kept: deque[_KeptHead] = deque()
        self._known: dict[str, _KnownFile] = {}
        """By path: files that this server put, or found to be the same as the store's."""
        self._own = range(0)
        """Numbers of heads that nobody but this server can have put on top of what it knows."""
        self._base: dict[str, StoredFile] | None = None
        """Files of the checkpoint on which the claim stands, by path; None before they are needed."""
        self._named: dict[str, int] | None = None
        """File id or manifest to the number of the newest head that names it; None before the first sweep."""
        self._told_place = BEGINNING
        self._uploaded_at = self._swept_at = float("-inf")
        self._worker = Worker(
            supervisor=loop.supervisor,
            name="checkpoint-upload",
            work=self.run_once,
            failed=self._failed,
            every=PAUSE_SECONDS,
            first=1.0,
        )
        store.is_closing = lambda: self._worker.is_closing
        checkpointer.on_durable(self.offer)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.close()

    def offer(self, made: DurableCheckpoint) -> None:
        """Take a checkpoint to upload in place of the last one that waits."""
        if not self._loop.is_leading:
            return
        now = self._clock.monotonic()
        with self._lock:
            self._offer = _Offer(made, now)
            if self.figures.behind_since is None:
                self.figures.behind_since = now
        if now - self._uploaded_at >= PAUSE_SECONDS:
            self._worker.wake()

    def run_once(self) -> None:
        """Claim if this server leads and has not, and upload the newest checkpoint."""
        epoch = self._journal.leader.epoch  # before the question who leads
        if not self._loop.is_leading:
            self._forget()
            return
        try:
            if self._head is None and not self._claim(epoch):
                return
            if self._offer is not None:
                self._upload(self._newest(), self._offer, epoch)
            self._drop()
            self._sweep(self._newest())
        except _Overtaken:
            self._head = None
            event_log.event(log, logging.WARNING, "another server put a checkpoint", store=self._store.url)
        except _Closing:
            return
        self.figures.problem = ""

    def _newest(self) -> StoreHead:
        assert self._head is not None, "a claim comes first"
        return self._head

    def _failed(self, error: Exception) -> None:
        if not self.figures.problem:
            log.error("no checkpoint reaches %s, those on disk go on: %s", self._store.url, error)
        self.figures.problem = str(error)

    def _forget(self) -> None:
        """Keep no maps of files while another server leads."""
        with self._lock:
            self._offer = self.figures.behind_since = None
        self._head = self._base = self._named = None
        self._known, self._own, self._told_place = {}, range(0), BEGINNING
        self._kept.clear()

    # The head.

    def _claim(self, epoch: int) -> bool:
        """Put a head that repeats the newest checkpoint; False if a later leader has put one."""
        timeline = self._journal.timeline()
        found = self._store.heads(timeline)
        newest = found.newest
        is_own = (
            newest is not None
            and newest.writer == self._writer
            and newest.number in self._own
            and newest.number + 1 == found.next_number
        )
        if newest is not None and not is_own and newest.epoch > epoch:
            log.info("a server of epoch %d has put a checkpoint, this one has epoch %d", newest.epoch, epoch)
            return False
        if not is_own:  # another server may have removed what no head names
            self._known = {}
        self._base = self._named = None
        self._kept = deque(map(_KeptHead, found.heads))
        checkpoint = newest.checkpoint if newest else None
        self._put_head(StoreHead(found.next_number, timeline, epoch, self._writer, checkpoint))
        self.figures.lsn = checkpoint.lsn if checkpoint else -1
        self._swept_at = float("-inf")
        if checkpoint is None and self._offer is None and self._loop.view.lsn:
            self._checkpointer.wake()  # the journal may have lost its beginning before this setting was made
        return True

    def _put_head(self, head: StoreHead) -> None:
        """Put a head on top of the newest one. `_Overtaken` if another server was faster. After any error a claim
        follows, which reads what the store has."""
        self._head = None
        self._own = range(head.number - 1, head.number + 1)
        if not self._store.put_head(head):
            raise _Overtaken
        if self._store.numbers()[-1] != head.number:  # a number that was removed can be put again
            self._store.remove([head_name(head.number)])
            raise _Overtaken
        now = self._clock.monotonic()
        self._kept = deque(replace(each, replaced_at=each.replaced_at or now) for each in self._kept)
        self._kept.append(_KeptHead(head))
        self._head = head

    # The files.

    def _upload(self, head: StoreHead, offer: _Offer, epoch: int) -> None:
        began, content = self._clock.monotonic(), offer.made.content
        if head.checkpoint and position_of(content.place) < position_of(head.checkpoint.place):
            log.info("the store has a newer checkpoint than LSN %d", content.lsn)
            self._settle(offer)
            return
        sent = self.figures.sent_bytes
        files = self._stored_files(head, offer.made)
        size = sum(file.size for file in files)
        manifest = self._store.put_manifest(files)
        checkpoint = StoredCheckpoint(content.lsn, content.place, manifest, size)
        self._put_head(replace(head, number=head.number + 1, epoch=epoch, checkpoint=checkpoint))
        self._base = {}  # a file that no later head names is removed one day
        if self._named is not None:
            self._named |= dict.fromkeys([manifest, *(file.file_id for file in files)], head.number + 1)
        self.figures.lsn, self.figures.uploads = content.lsn, self.figures.uploads + 1
        self._settle(offer)
        self._uploaded_at = self._clock.monotonic()
        seconds, sent = round(self._uploaded_at - began, 3), self.figures.sent_bytes - sent
        about = {"lsn": content.lsn, "files": len(files), "bytes": size, "sent": sent, "seconds": seconds}
        event_log.event(log, logging.INFO, "checkpoint is in the store", **about)

    def _settle(self, offer: _Offer) -> None:
        """Wait for the next checkpoint, unless there is one already."""
        with self._lock:
            if self._offer is offer:
                self._offer = None
            self.figures.behind_since = self._offer.at if self._offer else None

    def _stored_files(self, head: StoreHead, made: DurableCheckpoint) -> list[StoredFile]:
        """All files of a checkpoint, once they are in the store; the checkpoint file last."""
        sources = list(made.contents())
        same = ((source, self._known.get(source.path)) for source in sources)
        self._known = {source.path: known for source, known in same if known and known.has_bytes_of(source.data)}
        base = self._base_files(head)
        with ThreadPoolExecutor(PUTS, thread_name_prefix="checkpoint-puts") as pool:
            parts = _Parts(pool, self._store, self._known, self.figures)
            try:
                for source in sources:
                    if source.path not in self._known:
                        self._put_file(parts, source, base.get(source.path))
                parts.finish()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [self._known[source.path].file for source in sources]

    def _base_files(self, head: StoreHead) -> dict[str, StoredFile]:
        """The files of the checkpoint on which this server's claim stands, by path."""
        if self._base is None:
            try:
                files = self._store.files_of(head.checkpoint) if head.checkpoint else []
            except (NotFound, Corrupt) as error:
                log.warning("all files are put again: %s", error.message)
                files = []
            self._base = {file.path: file for file in files}
        return self._base

    def _put_file(self, parts: _Parts, source: CheckpointFile, base: StoredFile | None) -> None:
        """Put the parts of a file, unless the store has the same bytes."""
        if base is not None and base.size == source.data.size and base.crcs == tuple(self._crcs(source.data)):
            self._known[source.path] = _KnownFile(source.data, base)
            return
        for segment in source.segments:
            segment.check_all()
        file_id, crcs = new_id(), list[int]()
        for number, crc in enumerate(self._crcs(source.data)):
            crcs.append(crc)
            parts.put(file_id, number, _part_of(source.data, number))
        parts.end(source.path, _KnownFile(source.data, StoredFile(source.path, file_id, source.data.size, tuple(crcs))))

    def _crcs(self, data: pa.Buffer) -> Iterator[int]:
        """The checksum up to the end of each part. Small commits go first; `_Closing` if the server ends."""
        crc = 0
        for number in range(max(-(-data.size // PART_BYTES), 1)):
            if self._worker.is_closing:
                raise _Closing
            self._loop.priority.answered(GIVEN_SECONDS)
            crc = crc32c(_part_of(data, number), crc)
            yield crc

    # What is not needed any more.

    def _drop(self) -> None:
        """Drop heads that were replaced long ago, and let the journal remove what no kept checkpoint needs."""
        dropped = list[str]()
        while self._is_droppable():
            dropped.append(head_name(self._kept.popleft().head.number))
        if dropped:
            self._store.remove(dropped)
        kept = [each.head.checkpoint for each in self._kept if each.head.checkpoint is not None]
        if kept and kept[0].place != self._told_place:
            self._journal.stored(kept[0].place)
            self._told_place = kept[0].place

    def _is_droppable(self) -> bool:
        oldest = self._kept[0]
        if oldest.replaced_at is None or self._clock.monotonic() - oldest.replaced_at < self._keep_seconds:
            return False
        manifests = {each.manifest for each in list(self._kept)[1:]} - {""}
        return not oldest.manifest or oldest.manifest in manifests or len(manifests) >= KEPT_MIN

    def _sweep(self, head: StoreHead) -> None:
        """Remove files and manifests that no kept head names. Another server claims before it puts a file, so if the
        newest head is this one after the list was made, nobody else's files are in the list."""
        now = self._clock.monotonic()
        if now - self._swept_at < max(self._keep_seconds, PAUSE_SECONDS):
            return
        named = self._names() if self._named is None else self._named
        oldest = self._kept[0].head.number
        self._named = named = {name: number for name, number in named.items() if number >= oldest}
        own = {known.file.file_id for known in self._known.values()}
        objects = self._store.objects()
        if self._store.numbers()[-1] != head.number:
            raise _Overtaken
        needless = [name for name in objects if (owner := _owner(name)) not in named and owner not in own]
        if needless:
            self._store.remove(needless)
            event_log.event(log, logging.INFO, "objects removed from the store", objects=len(needless))
        self._swept_at = now

    def _names(self) -> dict[str, int]:
        """The files and manifests that kept heads name. A manifest that nobody can read names nothing."""
        named: dict[str, int] = {}
        known: dict[str, list[str]] = {}
        for kept in self._kept:
            checkpoint = kept.head.checkpoint
            if checkpoint is None:
                continue
            if kept.manifest not in known:
                try:
                    known[kept.manifest] = [file.file_id for file in self._store.files_of(checkpoint)]
                except (NotFound, Corrupt) as error:
                    log.warning("head %d is of no use: %s", kept.head.number, error.message)
                    known[kept.manifest] = []
            named |= dict.fromkeys([kept.manifest, *known[kept.manifest]], kept.head.number)
        return named


class _Parts:
    """Parts on their way, in order: a file is known once its last part, and so all of them, are in the store."""

    def __init__(
        self, pool: ThreadPoolExecutor, store: CheckpointStore, known: dict[str, _KnownFile], figures: UploadFigures
    ) -> None:
        self._pool, self._store, self._known, self._figures = pool, store, known, figures
        self._flights: deque[tuple[Future[None], int]] = deque()
        self._ends: deque[tuple[int, str, _KnownFile]] = deque()
        """The files that are on their way: number of parts up to their ends, path, file."""
        self._put = self._done = 0

    def put(self, file_id: str, number: int, data: pa.Buffer) -> None:
        """Put a part; waits for the first one on its way if there are enough."""
        if len(self._flights) >= PUTS:
            self._land()
        future = self._pool.submit(lambda: self._store.put_part(file_id, number, data.to_pybytes()))
        self._flights.append((future, data.size))
        self._put += 1

    def end(self, path: str, file: _KnownFile) -> None:
        """The parts so far are all parts of a file."""
        self._ends.append((self._put, path, file))

    def finish(self) -> None:
        """Wait for all parts."""
        while self._flights:
            self._land()
        self._tell()

    def _land(self) -> None:
        future, size = self._flights.popleft()
        future.result()
        self._done += 1
        self._figures.sent_bytes += size
        self._tell()

    def _tell(self) -> None:
        while self._ends and self._ends[0][0] <= self._done:
            _, path, file = self._ends.popleft()
            self._known[path] = file


def _part_of(data: pa.Buffer, number: int) -> pa.Buffer:
    at = number * PART_BYTES
    return data.slice(at, min(PART_BYTES, data.size - at))


def _owner(name: str) -> str:
    """The file id of a part; the name of a manifest."""
    folder, _, rest = name.partition("/")
    return rest.partition("/")[0] if folder == FILES else name
