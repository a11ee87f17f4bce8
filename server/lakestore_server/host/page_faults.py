"""Page faults: reads of the disk that a thread has waited for in files that it has mapped."""

from __future__ import annotations

import resource

_WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
"""Linux counts for each thread; elsewhere the whole process is counted."""


def disk_reads() -> int:
    """The number of pages that this thread has waited for since its start."""
    return resource.getrusage(_WHO).ru_majflt
