"""Checkers: pure functions from calls to anomalies, each tested with a hand-made bad history of every anomaly.

What knows a workload's own values stays in the workload; what several workloads or others' tools share lives here.
"""
