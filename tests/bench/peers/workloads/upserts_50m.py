"""Uniform upserts into a table of 50 M keys by one producer. Only by name: the fill alone takes minutes."""

from __future__ import annotations

from tests.bench.peers.workloads.upserts import UNIFORM, workload

WORKLOAD = workload("Upserts, 50 M keys", 50_000_000, 0, (UNIFORM,))
