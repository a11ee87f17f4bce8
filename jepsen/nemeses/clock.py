"""The server's wall clock: jumps of minutes to a day either way, strobes, stands still, drifts."""

from __future__ import annotations

import random
from typing import Any

from jepsen.system import System
from jepsen.system.clock import STANDS_STILL, MovedClock

JUMPS_SECONDS = 0.5, 5.0, 60.0, 600.0, 3_600.0, 86_400.0
CLOCK = frozenset({"clock"})
CONFIRM_SECONDS = 300.0
"""The server's setting where a run says no other."""


class Clock:
    """One fault of the clock; the end is a jump back to true time."""

    name = "clock"
    needs = CLOCK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Break it."""
        if system.clock is None:
            return system.left_out("clock")
        return {**broken(system.clock, chance), "confirm": _confirm(system)}

    def end(self, system: System) -> str:
        """True time."""
        if system.clock is not None:
            system.clock.mend()
        return "true"


class ClockKill:
    """The server is killed, and finds another time when it starts; and again with the true time."""

    name = "clock-kill"
    needs = CLOCK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Kill it, break the clock, start it."""
        if system.clock is None:
            return system.left_out("clock")
        system.server.kill()
        done = {**broken(system.clock, chance), "confirm": _confirm(system)}
        system.server.try_start()
        return done

    def end(self, system: System) -> str:
        """The same with true time."""
        if system.clock is None:
            return "left out"
        system.server.kill()
        system.clock.mend()
        return system.server.try_start()


def _confirm(system: System) -> float:
    """Seconds for which a clock that jumps has to stand before the server believes it."""
    return float(system.settings.get("LAKESTORE_LIMITS_CLOCK_CONFIRM_SECONDS", CONFIRM_SECONDS))


def broken(clock: MovedClock, chance: random.Random) -> dict[str, Any]:
    """Break a clock."""
    how = chance.choice(("jump", "jump", "strobe", "stands still", "drift"))
    jump = chance.choice(JUMPS_SECONDS) * chance.choice((-1, 1)) * chance.uniform(0.5, 1.0)
    if how == "jump":
        clock.move(jump)
    elif how == "strobe":
        every = chance.uniform(0.002, 0.1)
        clock.strobe((0.0, jump), every)
        return {"how": how, "seconds": round(jump, 3), "every": round(every, 4)}
    else:
        millionths = STANDS_STILL if how == "stands still" else chance.choice((-500_000, -20_000, 20_000, 2_000_000))
        clock.move(0.0, millionths)
        return {"how": how, "millionths": millionths}
    return {"how": how, "seconds": round(jump, 3)}


CLOCKS = (Clock(), ClockKill())
