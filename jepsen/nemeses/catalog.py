"""Troubles between a catalog or an object store and those who use it: 5xx, slow and broken answers, and answers
that are lost after the server has done the work."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from jepsen.system import System
from jepsen.system.http_proxy import WRITES, HttpProxy, Trouble, Weather

SECONDS = 0.2, 3.0
LOST = Trouble.LOSE, Trouble.HIDE, Trouble.REPEAT
KINDS: tuple[tuple[Trouble, ...], ...] = (
    (Trouble.REFUSE,),
    (Trouble.RESET,),
    (Trouble.SLOW,),
    (Trouble.STALL,),
    LOST,
    LOST,
    tuple(Trouble),
)


class Http:
    """Some requests have troubles; at times only those that write."""

    def __init__(self, name: str, needs: frozenset[str], proxy: Callable[[System], HttpProxy | None]) -> None:
        self.name, self.needs, self._proxy = name, needs, proxy

    def begin(self, system: System, chance: random.Random) -> dict[str, Any]:
        """Troubles of one kind or of all."""
        proxy = self._proxy(system)
        kinds, share = chance.choice(KINDS), chance.choice((0.2, 0.5, 1.0))
        methods = WRITES if chance.random() < 0.5 else frozenset[str]()
        seconds = round(chance.uniform(*SECONDS), 3)
        if proxy is not None:
            proxy.breaks(Weather(kinds, share, seconds, methods, chance.getrandbits(32)))
        return {"kinds": list(kinds), "share": share, "seconds": seconds, "only writes": bool(methods)}

    def end(self, system: System) -> dict[str, int]:
        """No trouble; how often there was which."""
        proxy = self._proxy(system)
        return proxy.mend() if proxy is not None else {}


CATALOG = Http("catalog", frozenset({"tierer"}), lambda system: system.catalog_proxy)
