"""The key index: key to the offset of its live version. Derived data, rebuilt from segments and journal when lost.

An overlay in memory holds the entries since the last checkpoint. Those before lie in runs: sorted files, searched in
arrays (0.2 µs a number, 0.5 µs a key of bytes, measured) and merged beside serving, so that a checkpoint writes what
has changed. LMDB says where the index stands, and has the entries of earlier releases until they are lifted into runs:
a tree of pages writes 4 KB for each key of a large table, and py-lmdb, which gives up the interpreter lock at every
key, needs two small processes and 2 to 3 µs a key.

Runs never change, so while the commit loop has other work, the thread of a large request looks its keys up before it
queues them: the loop then asks the overlays and the runs that came since (`hints`). Large merges of runs are made by a
third process of lower priority, for they would take the loop's interpreter lock and processor (`merge_apart`).

Keys stay in arrays from the request to the pipe: up to 8 bytes as numbers in a hash table of one array, others as
padded strings. Against dictionaries of bytes the loop's CPU for 2 M upserts into 1 M numbers fell from 4.7 s to 0.9 s,
the server's for 1 M into 1 M keys of two strings from 2.4 s to 1.0 s, measured. A flagged value is the offset of a
tombstone; one whose record is gone is no entry. Rows are not here.
"""
