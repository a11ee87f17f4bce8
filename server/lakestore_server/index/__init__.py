"""The key index: key to the offset of its live version. Derived data, rebuilt from segments and journal when lost.

An overlay in memory holds the entries since the last checkpoint. Those before lie in runs: sorted files, searched in
arrays (0.2 µs a number, 0.6 µs a key of bytes, measured), merged beside serving, large ones in a process of lower
priority (`merge_apart`). The checkpoint names the runs and says where the index stands.

Keys stay in arrays from the request to the run: numbers in a hash table of one array, others as padded strings;
dictionaries of bytes took 2.4 to 5 times the processor. While the commit loop has other work, keys of large requests
are looked up in the runs before they are queued (`hints`). A flagged value is the offset of a tombstone; one whose
record is gone is no entry. Rows are not here.
"""
