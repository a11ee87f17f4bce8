"""The key index: key to the offset of its live version. Derived data, rebuilt from segments and journal when lost.

An overlay in memory holds the entries since the last checkpoint. Those before lie in runs: sorted files, searched in
arrays (0.2 µs a number, 0.5 µs a key of bytes) and merged beside serving, so that a checkpoint writes what has changed,
where a tree of pages writes 4 KB for each key of a large table. LMDB, in two small processes, says where the index
stands, and has the entries of earlier releases until they are lifted into runs.

Keys stay in arrays from the request to the run: up to 8 bytes as numbers in a hash table of one array, others as padded
strings (1 M upserts into 1 M keys of two strings take half of what dictionaries take, numbers a fifth). A flagged value
is the offset of a tombstone; one whose record is gone is no entry. Rows are not here.
"""
