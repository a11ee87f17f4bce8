"""Reads at one cut: plans, leases, look-ups of keys, positions.

A reader holds one view; what it names stays readable as long as its lease. Following changes is the room `changes`.
"""
