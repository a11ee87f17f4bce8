"""The move of a data folder to another journal, while no server runs on it: from files into a shared log, or back.

- The place in the folder's checkpoint names its journal, and the rename of a checkpoint changes it. A move that is
  killed leaves the folder with the former journal or with the new one; the same command again goes on.
- Timeline, LSNs, producers and subscriptions stay, so tokens and positions of consumers stay valid.
- Into a log: a claim and an empty commit are written there first. A server with an empty folder that has read the claim
  stops at this commit, whose LSN does not follow its own, before it could lead the log with another history.
- Out of a log: the log is ended first (`Kind.END`). Every other server of it stops at the end. Without it, two servers
  would continue one history.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lakestore.errors import Conflict, Invalid, LakestoreError, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore_server.commit.engine import LEASE_STRETCH, Engine
from lakestore_server.commit.recovery import JournalOf
from lakestore_server.duties.upkeep import Upkeep
from lakestore_server.files import checkpoint, data_folder, journal_file
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.journal import encode
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.clock import Clock, RealClock
from lakestore_server.host.disk import Disk, RealDisk
from lakestore_server.journals.log import Log
from lakestore_server.journals.shared_journal import POLL_SECONDS, JournalEnd, SharedJournal
from lakestore_server.operate.backup import write_file
from lakestore_server.state.commit_record import CommitRecord, Deposed, Place, Unknown

MARK = "move-journal"
"""A file of a folder that ends its log: the id of the end. It exists until the folder has a journal in files."""


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves one data folder."""

    folder: Path
    log_of: Callable[[], Log]
    """Returns a new end of the shared log. It is closed by its user."""
    lease_seconds: float = 3.0
    disk: Disk = RealDisk()  # noqa: RUF009 (it has no state)
    clock: Clock = RealClock()  # noqa: RUF009
    limits: Limits = DEFAULT

    def into_log(self) -> int:
        """Continue a folder with a journal in files in a log that nobody has led; returns its newest LSN. `Conflict` if
        the log has been led. Changes nothing if the folder continues this log already."""
        with self._locked() as held:
            if _is_shared(held.place):
                with closing(self.log_of()) as log:
                    log.open(_identity(held.place))
            else:
                held = self._moved_in(self._checkpointed(FileJournal))
            self._remove_files()
            return held.lsn

    def _moved_in(self, held: Checkpoint) -> Checkpoint:
        if not held.lsn:
            raise Invalid(f"{self.folder} has no commit to move: start a server on an empty folder and the journal")
        with closing(self._journal()) as journal, _answered("nothing was changed in the folder"):
            journal.begin(held.lsn)
            for _ in journal.lead(""):
                raise Conflict("another server writes into this journal: nothing was changed in the folder")
            place = journal.roll(held.lsn + 1)
            first = CommitRecord(held.lsn + 1, held.time_us + 1, in_doubt=True)
            journal.append(first.lsn, encode(first))
            journal.settle(held.lsn)
            journal.trim(place)  # a server with an empty folder sees that it must copy another one's checkpoint
            journal.leave()
        held = replace(held, place=place)
        self._write(data_folder.MOVED, b"")
        checkpoint.write(self.disk, self.folder, held)
        return held

    def into_files(self) -> int:
        """Continue a folder with a shared log in files, at the state that the end of the log says, and end the log;
        returns the LSN. `Conflict` while another server leads. Changes nothing if the folder has files already."""
        with self._locked() as held:
            if _is_shared(held.place):
                if not self._has_ended(held):
                    held = self._checkpointed(lambda _disk, _folder: self._journal())
                    self._end(held)
                with closing(FileJournal(self.disk, self.folder)) as files:
                    held = replace(held, place=files.roll(held.lsn + 1))
                checkpoint.write(self.disk, self.folder, held)
            self._remove(MARK)
            return held.lsn

    def _has_ended(self, held: Checkpoint) -> bool:
        """Whether an earlier run of this command has ended the log behind the folder's checkpoint."""
        if MARK not in self.disk.list(self.folder):
            return False
        mark = self.disk.read(self.folder / MARK).decode()
        with closing(self._journal()) as journal:
            try:
                for _ in journal.read(held.lsn, held.place):
                    return False
            except JournalEnd as end:
                if end.mark != mark:
                    raise
                return True
        return False

    def _end(self, held: Checkpoint) -> None:
        """End the log at a checkpoint that has all of it."""
        mark = secrets.token_hex(16)
        with closing(self._journal()) as journal, _answered("run the same command again, which finds out"):
            commits = list(journal.read(held.lsn, held.place))
            self._refuse_others(journal)
            commits += journal.lead("")
            if commits:
                raise Conflict("another server commits to this journal: stop it, then run the same command again")
            self._write(MARK, mark.encode())
            journal.end(mark)

    def _refuse_others(self, journal: SharedJournal) -> None:
        """Wait for a lease, unless the last leader has left; `Conflict` at a message of another server."""
        began = self.clock.monotonic()
        heard = journal.heard
        while not journal.leader.has_left and self.clock.monotonic() - began <= journal.silence_seconds * LEASE_STRETCH:
            if list(journal.follow(POLL_SECONDS)) or journal.heard != heard:
                leader = journal.leader.address or "another server"
                raise Conflict(f"{leader} leads this journal: stop all servers of the journal first")

    def _checkpointed(self, journal_of: JournalOf) -> Checkpoint:
        """A checkpoint at the end of the journal."""
        failures: list[BaseException] = []
        about = self.folder, self.disk, self.clock
        engine = Engine(*about, on_fatal=failures.append, limits=self.limits, journal_of=journal_of)
        try:
            upkeep = Upkeep(engine, self.clock)
            try:
                upkeep.checkpoint()
            finally:
                upkeep.close(checkpoint=False)
        except LakestoreError as error:
            raise (failures or [error])[0] from error
        finally:
            engine.loop.close()
        return self._newest()

    def _journal(self) -> SharedJournal:
        return SharedJournal(self.log_of(), self.clock, self.lease_seconds)

    def _newest(self) -> Checkpoint:
        held = checkpoint.newest(self.disk, self.folder)
        if held is None:
            raise Invalid(f"{self.folder} is no data folder of a server: it has no checkpoint")
        return held

    @contextmanager
    def _locked(self) -> Iterator[Checkpoint]:
        """The newest checkpoint of the folder, which no server has until the end of the block."""
        if not self.folder.is_dir():
            raise Invalid(f"{self.folder} is no folder")
        with data_folder.lock_folder(self.folder):
            data_folder.check_whole(self.folder)
            yield self._newest()

    def _write(self, name: str, data: bytes) -> None:
        """Write a small file durably, in the place of an earlier one."""
        self._remove(f"{name}.tmp")
        write_file(self.disk, self.folder / f"{name}.tmp", [data])
        self.disk.rename(self.folder / f"{name}.tmp", self.folder / name)
        self.disk.sync_folder(self.folder)

    def _remove(self, *names: str) -> None:
        there = set(self.disk.list(self.folder)).intersection(names)
        for name in sorted(there):
            self.disk.remove(self.folder / name)
        if there:
            self.disk.sync_folder(self.folder)

    def _remove_files(self) -> None:
        """Remove the files of a former journal, which the checkpoint has."""
        self._remove(*journal_file.names(self.disk, self.folder))


@contextmanager
def _answered(state: str) -> Iterator[None]:
    """Errors of a journal as errors for the user; `state` says what holds then."""
    try:
        yield
    except Deposed as error:
        raise Conflict(f"{error}: {state}") from error
    except Unknown as error:
        raise Unavailable(f"{error}: {state}", applied="unknown") from error


def _is_shared(place: Place) -> bool:
    return bool(place) and not place.startswith(journal_file.PREFIX)


def _identity(place: Place) -> str:
    return place.partition("/")[0]
