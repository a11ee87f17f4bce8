"""Loads files into a table, exactly once, under a named producer.

- A source is a file, folder, glob, URI or stdin. Table and source name the producer, so two loads of one source fence
  each other.
- Each commit carries its place in the source (`progress`): the file, a byte or row offset, and a checksum of everything
  before it. A load continues there after any end, and a changed file is noticed.
- Finished files are remembered by fingerprint. The next run loads new files of a folder.
- Refused records go to a `skipped` file. Its length is part of the progress, and bytes that no commit covers are cut
  off.

`json_blocks`, `csv_blocks`, `columnar` and `events` each read a format as chunks. Any part of a chunk is a commit with
a place. `inference` derives a table from the first rows. A thread reads ahead; the caller's thread commits.
"""
