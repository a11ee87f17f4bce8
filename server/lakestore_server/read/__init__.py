"""Reads at one cut: plans, leases, look-ups of keys, positions. Following changes is the room `changes`.

A reader holds one view, so commits never wait for it and it never waits for them. A plan is, for each table, the
newest usable tier record at or below the cut, the ranges of the log behind its tier point (hot), the `prev`s in
these, and a lease; the answer is the lake's rows whose (bucket, offset) is not dead, and the live rows of the hot
ranges. Snapshots and log that a plan names stay as long as its lease.

A look-up takes whole keys, or a leading part of the key that contains the bucket key. At a cut of the past, the first
change of a key behind the cut names by its `prev` what was live; a key without one is as the index says.
"""
