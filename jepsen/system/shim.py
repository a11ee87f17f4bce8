"""The shim: a small library in C, preloaded into the server's processes, that stands between them and their disk.

Faults are rules in shared memory: they are planted, met and lifted while the server runs. It also keeps the undo log
by which `power` puts the files into a state that a power cut could have left. `disk_shim.c` says how it works; the
layouts below are its own. Files that are written by a memory map are not seen; the server writes none so.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

from jepsen.system.preload import library

SOURCE = Path(__file__).with_name("disk_shim.c")
MAGIC = 0x4D494853
RULES = 32
_HEAD = struct.Struct("<IIQIIqI28x")
_RULE = struct.Struct("<IIIiqqQQ208s")
_SEQUENCE, _KEEPS_LOG, _OFF, _ROOM, _ARMED = 8, 16, 20, 24, 32
_HITS = 40
FOREVER = -1


class Operation(IntFlag):
    """A kind of call. A file that is made is `CREATE`, any other opening `OPEN`."""

    READ = 1
    WRITE = 2
    SYNC = 4
    SYNC_FOLDER = 8
    RENAME = 16
    REMOVE = 32
    TRUNCATE = 64
    CREATE = 128
    OPEN = 256
    FOLDER = 512
    LINK = 1024
    CLOSE = 2048


class Action(IntEnum):
    """The deed of a rule. A power switch stops all further changes by any process, and kills the one at hand."""

    ERROR = 1
    SHORT = 2
    """Half of a write, or of a read; then the error, and so on in turns."""
    DELAY = 3
    RATE = 4
    KILL_BEFORE = 5
    KILL_AFTER = 6
    FLIP = 7
    LIE = 8
    """Success is told, and nothing is done."""
    OFF_BEFORE = 9
    OFF_AFTER = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault of calls whose path, below the folder, matches a pattern; a renamed file has its new name."""

    operations: Operation
    pattern: str
    """As of a shell; a star goes over slashes as well."""
    action: Action
    number: int = 0
    """The error's number, or of how many bits are flipped."""
    value: int = 0
    """Microseconds of a delay, bytes per second of a rate, or the seed of flips."""
    skip: int = 0
    """Calls that match and are let through first."""
    times: int = FOREVER


class Planted:
    """A rule that is in force."""

    def __init__(self, shim: Shim, slot: int) -> None:
        self._shim, self._slot = shim, slot

        self._hits: int | None = None

    @property
    def hits(self) -> int:
        """The number of calls that met it."""
        return self._shim.hits(self._slot) if self._hits is None else self._hits

    def lift(self) -> None:
        """Let the rule do nothing any more; also when it has been lifted already."""
        if self._hits is None:
            self._hits = self._shim.lift(self._slot)


class Shim:
    """The shared memory of one folder's shim."""

    def __init__(self, side: Path, root: Path) -> None:
        """`side`: a folder of its own on the same file system, where control, undo log and removed files lie; `root`:
        the folder whose files get faults. `NoCompiler` where the library cannot be made."""
        self._library = library(SOURCE)
        self.side, self.root = side.resolve(), root.resolve()
        (self.side / "gone").mkdir(parents=True, exist_ok=True)
        control = self.side / "control"
        if not control.exists():
            head = _HEAD.pack(MAGIC, RULES, 1, 0, 0, -1, 0)
            control.write_bytes(head + bytes(RULES * _RULE.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words, self._longs = memoryview(self._map).cast("I"), memoryview(self._map).cast("q")
        self._free = set(range(RULES))

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a process that is to have this disk; its children have it, too."""
        preloaded = " ".join(filter(None, (str(self._library), os.environ.get("LD_PRELOAD", ""))))
        return {"LD_PRELOAD": preloaded, "JEPSEN_DISK_SHIM": str(self.side), "JEPSEN_DISK_ROOT": str(self.root)}

    def plant(self, rule: Rule) -> Planted:
        """Put a rule in force."""
        slot = min(self._free)
        self._free.remove(slot)
        pattern = os.fsencode(rule.pattern)
        if len(pattern) >= 208:
            raise ValueError(f"the pattern {rule.pattern} is longer than 207 bytes: shorten it")
        at = _HEAD.size + slot * _RULE.size
        said = int(rule.operations), int(rule.action), rule.number, rule.skip, rule.times, rule.value, 0, pattern
        self._map[at : at + _RULE.size] = _RULE.pack(0, *said)
        self._words[at // 4] = 1
        self._words[_ARMED // 4] += 1
        return Planted(self, slot)

    def lift(self, slot: int) -> int:
        """Free the slot of a rule; the number of calls that met it."""
        self._words[(_HEAD.size + slot * _RULE.size) // 4] = 0
        self._words[_ARMED // 4] -= 1
        self._free.add(slot)
        return self.hits(slot)

    def hits(self, slot: int) -> int:
        """The number of calls that have met the rule of a slot."""
        return self._longs[(_HEAD.size + slot * _RULE.size + _HITS) // 8]

    @property
    def room(self) -> int | None:
        """The bytes by which files may still grow, which is also what is told of free space; None for no limit."""
        room = self._longs[_ROOM // 8]
        return None if room < 0 else room

    @room.setter
    def room(self, nbytes: int | None) -> None:
        self._longs[_ROOM // 8] = -1 if nbytes is None else nbytes

    @property
    def keeps_log(self) -> bool:
        """Whether the undo log is kept, without which power cannot be cut."""
        return bool(self._words[_KEEPS_LOG // 4])

    @keeps_log.setter
    def keeps_log(self, keeps: bool) -> None:
        self._words[_KEEPS_LOG // 4] = int(keeps)

    @property
    def off(self) -> bool:
        """Whether power is off: no change of a file happens any more, and who asks for one waits for his end."""
        return bool(self._words[_OFF // 4])

    @off.setter
    def off(self, off: bool) -> None:
        self._words[_OFF // 4] = int(off)
