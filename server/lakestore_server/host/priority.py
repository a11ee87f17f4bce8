"""Priorities of threads: duties give way to commits, and threads with short work start soon after they wake.

Few processors run client, callers, commit loop, checkpoints and merges. In Linux each thread can have its own niceness
and, since 6.12, its own time slice: a thread that asks for short slices runs before others when it wakes, and gets no
larger share of the processor. On other systems nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading

NICE = 5
"""Niceness of duties, added to the server's own. A duty gets a third of what an equally busy thread gets."""
TURN_NS = 300_000
"""Time slice of a thread with short work, in nanoseconds; 1.4 to 2.8 ms are usual."""
SET_TURN = {"x86_64": 314, "aarch64": 274}
"""Numbers of Linux's system call `sched_setattr`."""
ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""Its argument: size, policy, flags, niceness, priority, slice, and two times of other policies."""
NOT_INHERITED = 1
"""The flag by which children of this thread get the usual slice."""


def give_way() -> None:
    """Let the calling thread's work wait for that of others."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)


def take_short_turns() -> None:
    """Let the calling thread run soon after it is woken. For threads that mostly wait."""
    number = SET_TURN.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, NOT_INHERITED, niceness, 0, TURN_NS, 0, 0)
    # a kernel that does not know slices, or forbids them, changes nothing
    ctypes.CDLL(None).syscall(number, 0, wanted, 0)
