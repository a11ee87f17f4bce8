"""The second wall around SQL: the operating system confines a process irreversibly, by Landlock and seccomp.

1. `confine_files` must run before the first library starts a thread: Landlock confines a thread and its children.
`confine_calls` must run before the first foreign byte; it confines all threads.
2. Both are allow lists. A path that no rule names cannot be opened. A system call in no list fails with EPERM; one of
`_DEADLY` ends the process, because no honest query makes it.
3. If the kernel lacks a part, the rest still applies. `support` tells what is missing, and the server reports it.

docs/internals/sandbox.md explains the choice. The numbers come from Linux's user API and never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

WALLS = ("landlock", "seccomp")
_NOBODY = 65534
_PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 4, 15, 38
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_FILTER, _SECCOMP_ACTION, _SECCOMP_ALL_THREADS = 1, 2, 1
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _RULE_PATH_BENEATH = 1, 1
_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR = 1, 2, 4, 8
_FS_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))
"""(ABI of Landlock, number of file rights that it has)."""
_NET_SINCE, _SCOPE_SINCE = 4, 6
_READ = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
_SYSTEM_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_SYSTEM_FILES = (
    "/dev/null", "/dev/urandom", "/etc/ld.so.cache", "/etc/localtime", "/proc/meminfo", "/proc/cpuinfo",
    "/sys/fs/cgroup", "/sys/devices/system/cpu",
)  # fmt: skip
_OWN_FILES = ("/proc/self/statm", "/proc/self/cgroup")
"""Files of the process itself. A rule for such a file lasts while a descriptor keeps it in memory, so it stays open."""
_SITE = ("site-packages", "dist-packages")

_RET_KILL, _RET_ERRNO, _RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16
_CLONE_THREAD = 0x10000
_F_COMMANDS = (0, 1, 2, 3, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. F_SETOWN and F_SETSIG are missing: they send signals to any
process.
"""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_CALLS: dict[str, tuple[int, int]] = {
    # name: (x86_64, aarch64); -1 if the machine has no such call.
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "poll": (7, -1), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "ioctl": (16, 29), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, -1), "pipe": (22, -1), "select": (23, -1), "sched_yield": (24, 124), "mremap": (25, 216),
    "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, -1), "nanosleep": (35, 101),
    "alarm": (37, -1), "setitimer": (38, 103), "getpid": (39, 172), "clone": (56, 220), "exit": (60, 93),
    "uname": (63, 160), "fcntl": (72, 25), "getdents": (78, -1), "getcwd": (79, 17), "readlink": (89, -1),
    "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177),
    "getppid": (110, 173), "sigaltstack": (131, 132), "prctl": (157, 167), "arch_prctl": (158, -1),
    "gettid": (186, 178), "time": (201, -1), "futex": (202, 98), "sched_setaffinity": (203, 122),
    "sched_getaffinity": (204, 123), "getdents64": (217, 61), "set_tid_address": (218, 96),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "tgkill": (234, 131), "openat": (257, 56),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72),
    "ppoll": (271, 73), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "dup3": (292, 24),
    "pipe2": (293, 59), "prlimit64": (302, 261), "getcpu": (309, 168), "getrandom": (318, 278),
    "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293), "clone3": (435, 435), "faccessat2": (439, 439),
    "get_mempolicy": (239, 236), "sched_getscheduler": (145, 120), "sched_getparam": (143, 121),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "rt_sigtimedwait": (128, 137),
    "statfs": (137, 43), "fstatfs": (138, 44), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "execve": (59, 221), "execveat": (322, 281), "bpf": (321, 280), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "mount": (165, 40), "unshare": (272, 97),
    "setns": (308, 268),
}  # fmt: skip
_DEADLY = frozenset(
    "process_vm_readv process_vm_writev ptrace execve execveat bpf kcmp pidfd_open pidfd_getfd mount unshare"
    " setns".split()
)
"""Calls that no query makes: they reach into other processes, or start programs."""
_CHECKED = frozenset("open openat ioctl clone clone3 prctl prlimit64 tgkill fcntl sched_setaffinity".split())
"""Calls that are allowed or refused by their arguments."""


@dataclass(frozen=True, slots=True)
class Support:
    """The parts of the sandbox that this machine has."""

    landlock: int
    """The ABI of Landlock; 0 if the kernel lacks it or has it disabled."""
    seccomp: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """The walls that this machine lacks, and what that means."""
        return (
            *(() if self.landlock else ("Landlock: a query's process may read what the server's user may read",)),
            *(() if self.seccomp else ("seccomp: a query's process may make any system call",)),
        )

    def __str__(self) -> str:
        parts = (f"Landlock (ABI {self.landlock})" if self.landlock else "", "seccomp" if self.seccomp else "")
        return " and ".join(part for part in parts if part) or "none"


def support() -> Support:
    """Find out which parts this machine has. Confines nothing."""
    if sys.platform != "linux" or platform.machine() not in _ARCHES:
        return Support(0, seccomp=False)
    libc = _libc()
    abi = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    action = ctypes.c_uint32(_RET_KILL)
    known = libc.syscall(_SECCOMP[platform.machine()], _SECCOMP_ACTION, 0, ctypes.byref(action)) == 0
    return Support(max(abi, 0), seccomp=known)


def code_paths(packages: Iterable[str]) -> list[str]:
    """The folders and files from which Python loads code: its library, site-packages, and these packages.

    The search also fills the caches of Python's import finders, which are used again after confinement.
    """
    paths = sysconfig.get_paths()
    found = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], f"{sys.base_prefix}/lib"}
    found |= {path for path in sys.path if Path(path).name in _SITE}
    for name in packages:
        spec = find_spec(name)
        if spec is not None:
            found.update(spec.submodule_search_locations or [str(spec.origin)])
    return sorted(path for path in found | set(_SYSTEM_FOLDERS) if Path(path).exists())


def confine_files(paths: Sequence[str]) -> None:
    """The first half, while there is one thread: from now on this process opens only these paths, and no TCP port.

    Raises `OSError` if the kernel has Landlock and refuses, or if there are several threads. A process of root becomes
    user nobody if nobody may read the paths, and otherwise stays root without privileges.
    """
    if sys.platform != "linux":
        return
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError(errno.EBUSY, "Landlock confines one thread, and this process has more")
    _leave_root(paths)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    abi = support().landlock
    if abi:
        _restrict_files(abi, paths)


def confine_calls() -> None:
    """The second half, for all threads: from now on only the listed system calls work. Raises `OSError` if the
    kernel refuses.
    """
    if support().seccomp:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _restrict_calls()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int) -> None:
    _checked(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option})")


def _leave_root(paths: Sequence[str]) -> None:
    if os.geteuid() != 0:
        return
    if all(_is_public(Path(path)) for path in (*paths, sys.executable)):
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        return
    header, data = struct.pack("Ii", 0x20080522, 0), bytes(24)  # version 3 of capset; no capability at all
    _checked(_libc().capset(header, data), "capset")


def _is_public(path: Path) -> bool:
    """Whether anybody may reach and read a file or folder."""
    real = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in real.parents) and bool(real.stat().st_mode & 0o004)


def _restrict_files(abi: int, paths: Sequence[str]) -> None:
    """Landlock: only these files, no TCP port, no signal and no abstract socket outside of this process."""
    libc = _libc()
    count = next(number for since, number in reversed(_FS_RIGHTS) if abi >= since)
    rules = struct.pack("Q", (1 << count) - 1)
    if abi >= _NET_SINCE:
        rules += struct.pack("Q", 0b11)
    if abi >= _SCOPE_SINCE:
        rules += struct.pack("Q", 0b11)
    ruleset = _checked(libc.syscall(_LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), 0), "landlock_create_ruleset")
    for path in (*paths, *_SYSTEM_FILES, *_OWN_FILES):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rights = _READ if Path(path).is_dir() else _FS_READ_FILE
        rights |= _FS_WRITE_FILE if path == "/dev/null" else 0
        rule = struct.pack("=Qi", rights, place)
        _checked(libc.syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
        if path not in _OWN_FILES:
            os.close(place)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _restrict_calls() -> None:
    """seccomp: only the listed calls, for all threads."""
    program = b"".join(_program(platform.machine(), os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    number = _SECCOMP[platform.machine()]
    _checked(_libc().syscall(number, _SECCOMP_FILTER, _SECCOMP_ALL_THREADS, ctypes.c_char_p(head)), "seccomp")


def _program(machine: str, pid: int) -> Iterator[bytes]:
    """The BPF filter, an instruction at a time: the call's number is compared with each list in turn."""
    column = 0 if machine == "x86_64" else 1
    number = {name: numbers[column] for name, numbers in _CALLS.items() if numbers[column] >= 0}
    yield _instruction(_LOAD, _ARCH_AT)
    yield _instruction(_EQUAL, _ARCHES[machine], 1, 0)
    yield _instruction(_RETURN, _RET_KILL)
    yield _instruction(_LOAD, _NR_AT)
    for name in sorted(_DEADLY & number.keys()):
        yield from _case(number[name], [_instruction(_RETURN, _RET_KILL)])
    for name, body in _judged(pid):
        if name in number:
            yield from _case(number[name], body)
    for name in sorted(number.keys() - _DEADLY - _CHECKED):
        yield from _case(number[name], [_instruction(_RETURN, _RET_ALLOW)])
    yield _instruction(_RETURN, _RET_ERRNO | errno.EPERM)


def _judged(pid: int) -> Iterator[tuple[str, list[bytes]]]:
    """The calls that are decided by their arguments."""
    yield "open", _if_masked(1, _WRITING, 0, errno.EACCES)
    yield "openat", _if_masked(2, _WRITING, 0, errno.EACCES)
    yield "clone", _if_masked(0, _CLONE_THREAD, _CLONE_THREAD, errno.EPERM)
    yield "prctl", _if_masked(0, 0xFFFFFFFF, _PR_SET_NAME, errno.EPERM)
    yield "tgkill", _if_masked(0, 0xFFFFFFFF, pid, errno.EPERM)
    yield "fcntl", _if_one_of(1, _F_COMMANDS, errno.EPERM)
    yield "sched_setaffinity", _if_masked(0, 0xFFFFFFFF, 0, errno.EPERM)  # of the calling thread only
    # prlimit64 may read a limit but not set one: its third argument must be a null pointer.
    yield "prlimit64", _if_masked(2, 0xFFFFFFFF, 0, errno.EPERM)
    yield "clone3", [_instruction(_RETURN, _RET_ERRNO | errno.ENOSYS)]  # glibc falls back to clone
    yield "ioctl", [_instruction(_RETURN, _RET_ERRNO | errno.ENOTTY)]  # no terminal to type into


def _case(number: int, body: list[bytes]) -> Iterator[bytes]:
    yield _instruction(_EQUAL, number, 0, len(body))
    yield from body


def _if_masked(argument: int, mask: int, wanted: int, refusal: int) -> list[bytes]:
    """Allow a call if the lower half of an argument, under a mask, equals a value."""
    return [
        _instruction(_LOAD, _ARGS_AT + 8 * argument),
        _instruction(_AND, mask),
        _instruction(_EQUAL, wanted, 0, 1),
        _instruction(_RETURN, _RET_ALLOW),
        _instruction(_RETURN, _RET_ERRNO | refusal),
    ]


def _if_one_of(argument: int, values: Sequence[int], refusal: int) -> list[bytes]:
    """Allow a call if the lower half of an argument is one of a few values."""
    return [
        _instruction(_LOAD, _ARGS_AT + 8 * argument),
        *(_instruction(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)),
        _instruction(_RETURN, _RET_ERRNO | refusal),
        _instruction(_RETURN, _RET_ALLOW),
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
