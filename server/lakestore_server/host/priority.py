"""The priority of threads: duties give way to whoever commits, and short work is begun as soon as it can be.

Two processors have a client, callers, the commit loop, a checkpoint and merges to run. Linux lets each thread have its
own niceness, and since 6.12 its own turn: a thread that asks for short ones goes before others when it wakes, and gets
no more of a processor by that. Where the system has neither, threads are as they were.
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
"""The niceness of a duty beyond the server's own: it gets a third of what a thread gets that is as busy."""
TURN_NS = 300_000
"""A turn of a thread that has short work; 1.4 to 2.8 ms are usual."""
SET_TURN = {"x86_64": 314, "aarch64": 274}
"""Numbers of Linux's call `sched_setattr`."""
ATTRIBUTES = struct.Struct("<IIQiIQQQ")
"""Its argument: size, policy, flags, niceness, priority, turn, and two times of other policies."""
NOT_INHERITED = 1
"""The flag by which threads and processes that this thread begins have usual turns."""


def give_way() -> None:
    """Have the calling thread's work wait for that of others."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)


def take_short_turns() -> None:
    """Have the calling thread begin soon after it is woken; for threads that mostly wait."""
    number = SET_TURN.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, NOT_INHERITED, niceness, 0, TURN_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, wanted, 0)  # a kernel that knows no turns, or forbids it, changes nothing
