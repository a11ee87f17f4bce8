"""A visit: every look at a machine, and at the settings of a server where there are any."""

from __future__ import annotations

from collections.abc import Iterator

from lakestore_server.doctor import folder, machine, ports, warehouse
from lakestore_server.doctor.finding import Finding, Look, looked
from lakestore_server.settings import Settings


def findings(settings: Settings | None) -> Iterator[Finding]:
    """The findings of all looks, in the order in which a server would need what they look at."""
    looks: list[tuple[str, Look]] = [
        ("python", machine.software),
        ("system", machine.limits_of_system),
        ("sandbox", machine.sandbox_of),
        ("java", machine.java),
    ]
    if settings is not None:
        looks += [
            ("memory", lambda: machine.memory_of(settings.limits)),
            ("data folder", lambda: folder.data(settings.data, settings.limits)),
            ("ports", lambda: ports.free(settings)),
            ("exposure", lambda: ports.safe(settings)),
            ("warehouse", lambda: warehouse.takes(settings.warehouse_uri)),
        ]
    for about, look in looks:
        yield from looked(about, look)
