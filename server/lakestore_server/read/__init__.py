"""Reads at one cut: plans, leases, look-ups of keys, positions. The room `changes` follows changes.

- A reader holds one view, so commits and readers never wait for each other.
- A plan has for each table the newest usable tier record at or below the cut, the hot ranges of the log after its tier
  point, the `prev`s in them, and a lease. The answer is the lake rows whose (bucket, offset) is not dead, and the live
  rows of the hot ranges.
- Snapshots and log that a plan names stay as long as its lease.
- A look-up takes whole keys, or a leading part of the key with the bucket key. At a past cut, the first later change of
  a key names by its `prev` the row that was live; a key without one is as the index says.
"""
