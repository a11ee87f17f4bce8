"""The key index: key to the offset of its live version. Derived data, rebuilt from segments and journal when lost.

An overlay in memory holds the entries since the last checkpoint. Those before lie in runs: sorted files, searched in
arrays (0.2 µs a number, 0.6 µs a key of bytes, measured), merged beside serving, large ones in a process of lower
priority (`merge_apart`). LMDB says where the index stands, and has entries of earlier releases until they are lifted:
pages write 4 KB for each key of a large table, and py-lmdb needs two small processes and 2 to 3 µs a key.

Keys stay in arrays from the request to the run: numbers in a hash table of one array, others as padded strings;
dictionaries of bytes took 2.4 to 5 times the processor. While the commit loop has other work, keys of large requests
are looked up in the runs before they are queued (`hints`). A flagged value is the offset of a tombstone; one whose
record is gone is no entry. Rows are not here.
"""
