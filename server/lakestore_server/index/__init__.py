"""The key index: key to the offset of its live version. Derived data: it is rebuilt from segments and journal when
lost.

- The overlay, in memory, has the entries since the last checkpoint. Older entries are in runs: sorted files that are
  searched as arrays (0.2 µs a number, 0.6 µs a key of bytes, measured) and merged beside serving, large ones in a
  process of lower priority (`merge_apart`). The checkpoint names the runs and the commit at which the index stands.
- Keys stay in arrays from request to run: numbers in a hash table of one array, others as padded bytes. Python
  dictionaries took 2.4 to 5 times the processor time.
- Keys of large requests are looked up in the runs before they are queued (`hints`).
- A flagged value is the offset of a tombstone. Rows are not in the index.
"""
