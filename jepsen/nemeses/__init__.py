"""The nemeses, one module for what is broken: processes, network, disk, clock, catalog and object store.

`NEMESES` names all of them for the command line. They break a `jepsen.system.System` and mend it again.
"""

from __future__ import annotations

from typing import Any

from jepsen.nemeses.crash import CRASHES
from jepsen.nemeses.damage import DAMAGES
from jepsen.nemeses.disk import DISKS
from jepsen.nemeses.kafka import KAFKA
from jepsen.nemeses.kill import KillServer
from jepsen.schedule import Nemesis

_ALL: tuple[Nemesis[Any], ...] = (KillServer(), *DISKS, *CRASHES, *DAMAGES, *KAFKA)
NEMESES: dict[str, Nemesis[Any]] = {each.name: each for each in _ALL}
