"""Changes of 100,000 orders into a table of 50 M orders. Only by name: the fills take minutes."""

from __future__ import annotations

from tests.bench.orders import MILLION
from tests.bench.peers.workloads.lake_changes import workload

WORKLOAD = workload("Changes into a lake of 50 M rows", ((50 * MILLION, 100_000),))
