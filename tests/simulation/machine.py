"""The machine of the server: its disk over all lives, its process of the moment, and what befalls both."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from lakestore_server.commit.recovery import JournalOf
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.simulation import marks
from tests.simulation.disk import LifeDisk, Speed
from tests.simulation.wire import Life, Network
from tests.simulation.world import Killed, Process, World
from tests.support.present_stand_in import StandIn
from tests.support.world.disk import PowerLost, SimDisk

START_SECONDS = 0.2
"""The time between a process and the first thing it does."""


class Clock:
    """The clocks of the machine, as one of its processes reads them."""

    def __init__(self, world: World, rate: float = 1.0) -> None:
        """`rate` is how fast the monotonic clock runs."""
        self._world, self._rate = world, rate

    def now_us(self) -> int:
        """The wall clock."""
        return self._world.time_us()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._world.monotonic() * self._rate


class Machine:
    """One server after the other on what the last one left."""

    def __init__(
        self,
        world: World,
        network: Network,
        folder: Path,
        seed: str,
        limits: Limits,
        journal_of: JournalOf = FileJournal,
        name: str = "server",
        warehouse: str = "",
    ) -> None:
        self.world, self.network = world, network
        self._journal_of, self.name, self._warehouse = journal_of, name, warehouse
        self._folder, self.limits = folder, limits
        self.chance = random.Random(f"{seed} disk")
        self.speed = Speed()
        self._rebalance_seconds = random.Random(f"{seed} rebalance").choice((0.1, 1.0))
        self.disk = SimDisk(folder / "000")
        self.server: Server | None = None
        self.life: Life | None = None
        self._tail = marks.Tail(self.disk.root)
        self._lives = self._powered = 0
        self._crash_at: tuple[CrashPoint, int, bool] | None = None
        self._act_at: tuple[CrashPoint, Callable[[], None]] | None = None
        self.skew_us, self.clock_rate = 0, 1.0
        self.frozen_us: int | None = None
        self.failures: list[str] = []
        """What a server that was never interfered with said when it ended, or could not start."""

    @property
    def is_up(self) -> bool:
        """Whether a process runs, serving or not."""
        return self.life is not None and not self.life.process.is_dead

    def start(self) -> bool:
        """Start a process on what is there; whether it serves."""
        world = self.world
        self._lives += 1
        process = Process(f"{self.name}{self._lives}", skew_us=self.skew_us, frozen_us=self.frozen_us)
        self._tail = marks.Tail(self.disk.root)
        disk = LifeDisk(world, process, self.disk, self.speed)
        disk.on_reach = partial(self._reached, process)
        done: list[Server | BaseException] = []
        looker = world.current
        assert looker is not None

        def begin() -> None:
            try:
                done.append(self._server(process, disk))
            except Killed:
                done.append(PowerLost("killed while it started"))
                raise
            except (LakestoreError, OSError) as error:
                done.append(error)
            finally:
                world.wake(looker)

        self.life = Life(self._lives, process, None)
        world.note(f"{self.name} {self._lives} starts")
        world.spawn("start", process, begin)
        while not done and not process.is_dead:
            world.block(None, "the server's start")
        if not done or not isinstance(done[0], Server):
            said = done[0] if done else "killed"
            world.note(f"{self.name} {self._lives} did not start: {type(said).__name__}")
            if not process.is_dead:
                self.failures.append(f"start: {said}")
                world.mark(marks.NO_START)
                self._end()
            return False
        self.server = done[0]
        self.life = Life(self._lives, process, self.server.service)
        self.network.life = self.life
        world.note(f"{self.name} {self._lives} serves at LSN {self.server.engine.view.lsn}")
        return True

    def _server(self, process: Process, disk: LifeDisk) -> Server:
        self.world.sleep(START_SECONDS)
        settings = Settings(
            self.disk.root,
            limits=self.limits,
            retention_check_seconds=1.0,
            expiry_check_seconds=1.0,
            lease_grace_seconds=2.0,
            rebalance_seconds=self._rebalance_seconds,
            warehouse=self._warehouse,
        )
        made = Server(
            settings,
            disk=disk,
            clock=Clock(self.world, self.clock_rate),
            on_fatal=partial(self._fatal, process),
            journal_of=self._journal_of,
            presenter=StandIn(),
        )
        made.engine.loop.reachable_at(self.name)
        return made

    def _fatal(self, process: Process, error: BaseException) -> None:
        """A server that cannot go on ends its process."""
        if not process.is_dead:
            self.world.note(f"{process.name} ends itself: {type(error).__name__}")
            self.world.mark(marks.ENDED_ITSELF)
            self.world.spawn("reaper", self.world.outside, partial(self.kill, process))

    def _reached(self, process: Process, point: CrashPoint) -> None:
        self.network.watcher.passed(process.name, point)
        if point is CrashPoint.RECOVERY_DURABLE and self._tail.was_cut():
            self.world.mark(marks.TORN_TAIL)
        if self._act_at is not None and self._act_at[0] == point:
            (_, act), self._act_at = self._act_at, None
            act()
        if self._crash_at is None or self._crash_at[0] != point:
            return
        _, passes, loses_power = self._crash_at
        self._crash_at = point, passes - 1, loses_power
        if passes:
            return
        self._crash_at = None
        self.world.note(f"{process.name} crashes at {point}")
        self.world.mark(marks.CRASHED)
        if loses_power:
            self.disk.lose_power_after(0)
        self.world.spawn("reaper", self.world.outside, partial(self.kill, process))
        self.world.block(None, "its end")

    # What befalls it

    def crash_at(self, point: CrashPoint, passes: int, *, loses_power: bool) -> None:
        """Let the process end, maybe with the power, when it has passed a point so many times more."""
        self._crash_at = point, passes, loses_power

    def crash_nowhere(self) -> None:
        """Forget `crash_at`."""
        self._crash_at = None

    def act_at(self, point: CrashPoint, act: Callable[[], None]) -> None:
        """Call a function when the process next passes a point."""
        self._act_at = point, act

    def act_nowhere(self) -> None:
        """Forget `act_at`."""
        self._act_at = None

    @property
    def is_leading(self) -> bool:
        """Whether its server says that it leads. Another one may lead instead, and this one not know it yet."""
        return self.is_up and self.server is not None and self.server.engine.is_leading

    @property
    def is_broken(self) -> bool:
        """Whether the process of the moment cannot go on, and will not end by itself."""
        return self.server is not None and self.server.engine.loop.failure is not None

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock to so many seconds from the right time."""
        self.skew_us, self.frozen_us = int(seconds * 1e6), None
        self._set_clock()

    def freeze_clock(self) -> None:
        """Let the wall clock stand still."""
        self.frozen_us = self.world.time_us() + self.skew_us
        self._set_clock()

    def _set_clock(self) -> None:
        if self.life is not None:
            self.life.process.skew_us, self.life.process.frozen_us = self.skew_us, self.frozen_us

    def kill(self, process: Process | None = None) -> None:
        """End the process, as SIGKILL does; what was written is there."""
        life = self.life
        if life is None or (process is not None and life.process is not process):
            return
        if not life.process.is_dead:
            self.world.note(f"{life.process.name} is killed")
            self.network.watcher.ended(life.process.name)
            self.network.ended(life)
            self.world.kill(life.process)
            self._end()

    def _end(self) -> None:
        """What the system does for a process that has ended."""
        assert self.life is not None
        self.life.process.is_dead = True
        self.network.ended(self.life)
        self.server = None
        (self.disk.root / "lock").unlink(missing_ok=True)

    def lose_power(self, seed: int | None, *, lost: tuple[str, ...] = ()) -> None:
        """End everything on the machine; the disk keeps what was synced, and by the seed some of the rest."""
        self.disk.lose_power_after(0)
        self.kill()
        self.disk.close()
        self._powered += 1
        self.world.mark("power lost")
        self.world.note(f"power lost, lost also: {', '.join(lost) or 'nothing'}")
        self.disk = self.disk.crash(self._folder / f"{self._powered:03}", seed, lost=lost)

    def stop(self) -> None:
        """An orderly end, with a last checkpoint."""
        life, server = self.life, self.server
        if life is None or server is None or life.process.is_dead:
            return
        self.world.note(f"{life.process.name} is stopped")
        self.within(lambda: self._closed(server))
        self.kill()

    @staticmethod
    def _closed(server: Server) -> None:
        server.drain(1.0)
        server.close()

    def close(self) -> None:
        """End the process, and let go of the disk's files."""
        self.kill()
        self.disk.close()

    def within(self, work: Callable[[], object], seconds: float = 60.0) -> BaseException | None:
        """Run something in a task of the server's process, to its end or the process's; what it raised."""
        life = self.life
        looker = self.world.current
        assert life is not None
        assert looker is not None
        task = self.world.spawn("asked", life.process, lambda: self._told(work, lambda: self.world.wake(looker)))
        until = self.world.now + seconds
        while not task.is_over and not life.process.is_dead and self.world.now < until:
            self.world.block(min(until, self.world.now + 0.05), "what was asked for")
        return task.failure

    @staticmethod
    def _told(work: Callable[[], object], tell: Callable[[], None]) -> None:
        try:
            work()
        finally:
            tell()
