"""Damage to files of a server that is down: flipped bits, ends that are cut off.

Damage must be found, and never served. A server that refuses to start, and reads that end in `Corrupt`, are right until
the good file is back; then everything that was acknowledged must be there. The key index is made from the logs, so
nobody brings its file back; nor a journal or a checkpoint without which a server did start. The last frame of the
journal is left alone, and the journal is never cut: a frame that is damaged or missing at the end looks like one that
was never finished.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jepsen.nemeses.disk import DISK
from jepsen.schedule import LEFT_OUT, Nemesis
from jepsen.system import System

FLIPS = 2
FRAME, FRAME_PLACE = bytes.fromhex("314a534c"), 64
"""First bytes of a journal's frame, and the multiple at which one begins."""
KINDS: Mapping[str, str] = {
    "journal": "journal-*[0-9]",
    "checkpoint": "checkpoint-*[0-9]",
    "segment": "segments/*/*.seg",
    "extent": "segments/extents/*.journal",
    "run": "index/*.run",
    "part": "parts/*.part",
}
LASTING = ("segment", "extent", "part")
"""Kinds of files that never change, so that the good one may come back to a server that has gone on without it."""
DERIVED = "run"
"""The kind of files that a server rebuilds from other files."""
ANY = ("flipped", "flipped", "cut")
_WAYS: Mapping[str, Sequence[str]] = {"journal": ("flipped",)}
"""By kind."""


class Damage:
    """Flipped bits or a cut in one file, while the server is down; it is started, and the file put right at the end."""

    name, needs = "damage", DISK
    excuses = frozenset({"Corrupt:"})

    def begin(self, system: System, chance: random.Random) -> Any:
        """Damage a file of one kind."""
        disk = system.disk
        if disk is None:
            return system.left_out("disk")
        if disk.is_damaged:
            return f"{LEFT_OUT}a file is damaged already"
        with system.server.down():
            disk.end_processes()
            found = {kind: [path for path in disk.data.glob(KINDS[kind]) if harmed(path, kind) > 0] for kind in KINDS}
            kind = chance.choice([kind for kind, files in found.items() if files])
            path = chance.choice(sorted(found[kind]))
            how, most = chance.choice(_WAYS.get(kind, ANY)), harmed(path, kind)
            change = _cut if how == "cut" else flipped
            disk.damage(path, lambda content: change(content, most, chance), is_kept=kind != DERIVED)
        said = system.server.try_start()
        if system.server.pid is not None and kind not in LASTING:
            disk.forget_damage()
        return {"file": str(path.relative_to(disk.data)), "how": how, "server": said[-300:]}

    def end(self, system: System) -> Any:
        """Bring the good file back."""
        if system.disk is None or not system.disk.is_damaged:
            return system.server.try_start()
        with system.server.down():
            system.disk.end_processes()
            mended = system.disk.restore()
        return {"restored": mended, "server": system.server.try_start()}


def harmed(path: Path, kind: str) -> int:
    """The bytes from the beginning of a file in which damage is no ordinary crash.

    A journal file that is kept for rows in it has a second name, by which it is damaged: as a journal it may go soon.
    """
    content = path.read_bytes()
    if kind != "journal":
        return len(content)
    if path.stat().st_nlink > 1:
        return 0
    places = range(0, len(content), FRAME_PLACE)
    return max((at for at in places if content.startswith(FRAME, at)), default=0)


def flipped(content: bytes, most: int, chance: random.Random) -> bytes:
    """The content with some bits of its first bytes flipped."""
    made = bytearray(content)
    for bit in chance.sample(range(8 * most), FLIPS):
        made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def _cut(content: bytes, most: int, chance: random.Random) -> bytes:
    return content[: chance.randrange(most)]


DAMAGES: tuple[Nemesis[System], ...] = (Damage(),)
