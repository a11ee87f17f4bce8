"""The network between clients, the tierer or the bridges and the server, broken by the proxy of each."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jepsen.nemeses.disk import until
from jepsen.system import System
from jepsen.system.bridges import COUNT
from jepsen.system.proxy import BLACK_HOLE, LOST, SOUND, Fault, Proxy
from jepsen.system.system import BRIDGES, DIRECT, TIERER

DELAY_SECONDS = 0.005, 0.4
SPREAD_SECONDS = 0.05, 1.0
BYTES_PER_SECOND = 2_000.0, 100_000.0
CUT_AFTER_BYTES = 20_000
AT_WORK_BYTES, AT_WORK_SECONDS = 2_000, 6.0

_Break = Callable[[Proxy, random.Random], Any]


def _delay(proxy: Proxy, chance: random.Random) -> str:
    fault = Fault(delay_seconds=chance.uniform(*DELAY_SECONDS))
    both = chance.random() < 0.5
    proxy.breaks(fault if both or chance.random() < 0.5 else SOUND, fault)
    return f"{fault.delay_seconds:.3f} s"


def _overtake(proxy: Proxy, chance: random.Random) -> str:
    fault = Fault(spread_seconds=chance.uniform(*SPREAD_SECONDS))
    proxy.breaks(fault, fault)
    return f"up to {fault.spread_seconds:.3f} s"


def _slow(proxy: Proxy, chance: random.Random) -> str:
    fault = Fault(bytes_per_second=chance.uniform(*BYTES_PER_SECOND))
    proxy.breaks(fault, fault)
    return f"{fault.bytes_per_second:.0f} bytes/s"


def _one_way(fault: Fault) -> _Break:
    def breaks(proxy: Proxy, chance: random.Random) -> str:
        to_server = chance.random() < 0.5
        proxy.breaks(fault if to_server else SOUND, SOUND if to_server else fault)
        return "to the server" if to_server else "to the client"

    return breaks


def _both_ways(fault: Fault) -> _Break:
    return lambda proxy, _: proxy.breaks(fault, fault)


def _half_close(proxy: Proxy, chance: random.Random) -> str:
    to_client = chance.random() < 0.5
    count = proxy.half_close(to_client=to_client)
    return f"{count} to the {'client' if to_client else 'server'}"


def _refuse(proxy: Proxy, chance: random.Random) -> str:
    proxy.refuses = True
    return f"{proxy.cut(reset=chance.random() < 0.5)} cut"


def _cut(proxy: Proxy, chance: random.Random) -> str:
    return f"{proxy.cut(reset=chance.random() < 0.5)} cut"


def _cut_after(proxy: Proxy, chance: random.Random) -> int:
    proxy.cut_after = chance.randrange(1, CUT_AFTER_BYTES)
    return proxy.cut_after


BREAKS: Mapping[str, _Break] = {
    "delay": _delay,
    "overtake": _overtake,
    "slow": _slow,
    "black-hole": _both_ways(BLACK_HOLE),
    "black-hole-one-way": _one_way(BLACK_HOLE),
    "lose": _both_ways(LOST),
    "lose-one-way": _one_way(LOST),
    "close": _one_way(Fault(closes=True)),
    "half-close": _half_close,
    "refuse": _refuse,
    "cut": _cut,
    "cut-after": _cut_after,
}


class Network:
    """One fault of the way of one client, of some or of all."""

    name = "network"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, chance: random.Random) -> dict[str, Any]:
        """Break them."""
        ways = [process for process in sorted(system.proxies()) if process > DIRECT]
        some = chance.sample(ways, chance.randint(1, len(ways))) if ways else []
        return _broken(system, chance, ways if chance.random() < 0.4 else some)

    def end(self, system: System) -> str:
        """Mend all ways of clients."""
        return _mended(system, [process for process in system.proxies() if process > DIRECT])


class OneNetwork:
    """One fault of the way that a part of the system has to the server."""

    def __init__(self, name: str, way: int, part: str) -> None:
        self.name, self._way, self.needs = name, way, frozenset({part})

    def begin(self, system: System, chance: random.Random) -> dict[str, Any]:
        """Break it."""
        return _broken(system, chance, [self._way] if self._way in system.proxies() else [])

    def end(self, system: System) -> str:
        """Mend it."""
        return _mended(system, [self._way])


class PartitionKill:
    """Nobody reaches the server, which is killed before the partition has healed."""

    name = "partition-kill"
    needs: frozenset[str] = frozenset()

    def begin(self, system: System, chance: random.Random) -> str:
        """Make the ways of all clients black holes, or those of the answers alone."""
        to_server = chance.choice((BLACK_HOLE, SOUND))
        for process, proxy in system.proxies().items():
            if process > DIRECT:
                proxy.breaks(to_server, BLACK_HOLE)
        return "both ways" if to_server.holds else "answers"

    def end(self, system: System) -> str:
        """Kill it, mend the ways, start it."""
        system.server.kill()
        _mended(system, [process for process in system.proxies() if process > DIRECT])
        return system.server.try_start()


class PartitionKillBridge:
    """The bridges hear nothing more of the server, and are killed before they do: nobody knows what it has done."""

    name = "partition-kill-bridge"
    needs = frozenset({"kafka"})

    def begin(self, system: System, chance: random.Random) -> str:
        """Once they are at work, make their way a black hole, or that of the answers alone."""
        to_server = chance.choice((BLACK_HOLE, SOUND, SOUND))
        if BRIDGES in system.proxies():
            way = system.proxies()[BRIDGES]
            before = way.answered
            until(lambda: way.answered > before + AT_WORK_BYTES, AT_WORK_SECONDS)
            way.breaks(to_server, BLACK_HOLE)
        return "both ways" if to_server.holds else "answers"

    def end(self, system: System) -> str:
        """Kill them, mend the way, start them."""
        if system.bridges is None:
            return "there are none"
        killed = [system.bridges.signal_bridge(number, signal.SIGKILL) for number in range(COUNT)]
        _mended(system, [BRIDGES])
        system.bridges.mend()
        return f"{sum(killed)} killed"


def _broken(system: System, chance: random.Random, ways: Sequence[int]) -> dict[str, Any]:
    name = chance.choice(sorted(BREAKS))
    proxies = system.proxies()
    seed = chance.random()
    # All of them get the same fault, of the same size and direction.
    done = {str(way): BREAKS[name](proxies[way], random.Random(seed)) for way in ways}
    return {"fault": name, "processes": done}


def _mended(system: System, ways: Sequence[int]) -> str:
    proxies = system.proxies()
    for way in ways:
        if way in proxies:
            proxies[way].mend()
    return "mended"


NETWORKS = (
    Network(),
    OneNetwork("network-tierer", TIERER, "tierer"),
    OneNetwork("network-bridge", BRIDGES, "kafka"),
    PartitionKill(),
    PartitionKillBridge(),
)
