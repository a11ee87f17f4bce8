"""Upserts into a table of 10 M keys by one producer: uniform and skewed ones."""

from __future__ import annotations

from tests.bench.peers.workloads.upserts import SKEWED, UNIFORM, workload

WORKLOAD = workload("Upserts, 10 M keys", 10_000_000, 0, (UNIFORM, SKEWED))
