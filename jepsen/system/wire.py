"""A network namespace of the server's own, and a wire into it on which single packets are late, lost or overtaken.

The wire is two TUN devices, between which a thread of ours carries packets. `tc netem` would do as much where the
kernel has it; this needs root, `ip`, `nsenter`, `unshare` and /dev/net/tun. The namespace lives as long as a process of
ours in it and the devices as long as their files, so that nothing is left behind.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jepsen.system.processes import Nursery

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
TUN = Path("/dev/net/tun")
PACKET_BYTES_MAX = 65_536
_NETS = itertools.count()


@dataclass(frozen=True, slots=True)
class Weather:
    """The lot of packets. Shares are of all packets, in either direction."""

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    """Each packet comes later by up to so much, and so before others that left earlier."""
    lost: float = 0.0
    doubled: float = 0.0
    to_server: bool = True
    """Whether packets to the server go through at all."""
    to_clients: bool = True
    """Whether packets from the server go through at all."""


FAIR = Weather()


class Wire:
    """The namespace and the way into it. `near` and `far` are the addresses of its ends; the server is far."""

    def __init__(self, nursery: Nursery) -> None:
        number = (os.getpid() * 64 + next(_NETS)) % (1 << 14)
        self._net = f"10.{200 + number // 4096}.{number // 16 % 256}.{number % 16 * 16}"
        base = self._net.rpartition(".")
        self.near, self.far = f"{base[0]}.{int(base[2]) + 1}", f"{base[0]}.{int(base[2]) + 2}"
        self.weather = FAIR
        self._chance = random.Random(0)
        self._holder = nursery.spawn(["unshare", "--net", "sleep", "infinity"])
        names = f"jep{number}n", f"jep{number}f"
        self._near, self._far = _tun(names[0]), _tun(names[1])
        self.inside = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        self._await_namespace()
        _ip("link", "set", names[1], "netns", str(self._holder.pid))
        _ip("addr", "add", self.near, "peer", self.far, "dev", names[0])
        _ip("link", "set", names[0], "up")
        for command in (
            ["link", "set", "lo", "up"],
            ["addr", "add", self.far, "peer", self.near, "dev", names[1]],
            ["link", "set", names[1], "up"],
            ["route", "add", "default", "dev", names[1]],
        ):
            _ip(*command, inside=self.inside)
        self._is_closed = False
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()

    def _await_namespace(self) -> None:
        ours = Path("/proc/self/ns/net").readlink()
        theirs = Path(f"/proc/{self._holder.pid}/ns/net")
        deadline = time.monotonic() + 60.0
        while theirs.readlink() == ours:
            if time.monotonic() > deadline:
                raise RuntimeError("the network namespace did not come to be")
            time.sleep(0.005)

    def _carry(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        poll.register(self._far, select.POLLIN)
        while not self._is_closed:
            wait = min(late[0][0] - time.monotonic(), 0.1) if late else 0.1
            ready = poll.poll(max(wait, 0.0) * 1000)
            for source, _ in ready:
                try:
                    packet = os.read(source, PACKET_BYTES_MAX)
                except OSError:  # The namespace has ended, and its device with it.
                    self._is_closed = True
                    break
                for due in self._lot(to_server=source == self._near):
                    target = self._far if source == self._near else self._near
                    heapq.heappush(late, (due, next(order), target, packet))
            while late and late[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(late)
                _deliver(target, packet)
        os.close(self._near)
        os.close(self._far)

    def _lot(self, *, to_server: bool) -> list[float]:
        """The times at which a packet comes; none for one that is lost."""
        weather = self.weather
        if not (weather.to_server if to_server else weather.to_clients) or self._happens(weather.lost):
            return []
        now = time.monotonic() + weather.delay_seconds
        times = [now] * (2 if self._happens(weather.doubled) else 1)
        return [each + self._chance.random() * weather.jitter_seconds for each in times]

    def _happens(self, share: float) -> bool:
        return share > 0 and self._chance.random() < share

    def close(self) -> None:
        """Take it down."""
        self._is_closed = True
        self._thread.join(2)
        self._holder.kill()
        self._holder.wait()


def obstacle() -> str:
    """The reason why this machine has no wire; empty if it can have one."""
    if os.uname().sysname != "Linux" or os.geteuid() != 0:
        return "network namespaces take root on Linux"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing or not TUN.exists():
        return f"network namespaces take {', '.join(missing) or TUN}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "this machine lets nobody make network namespaces" if tried.returncode else ""


def _deliver(target: int, packet: bytes) -> None:
    try:
        os.write(target, packet)
    except OSError:  # A device that is full or down has lost the packet, as networks do.
        return


def _tun(name: str) -> int:
    device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*arguments: str, inside: list[str] | None = None) -> None:
    done = subprocess.run([*(inside or []), "ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
