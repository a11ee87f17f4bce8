"""Loads: files into a table, exactly once, under a named producer: files, texts, chunks, changes, commits.

A source is a file, folder, glob, URI or stdin. The names of table and source make the producer's: two loads of one
source fence each other. Each commit carries the place in the source (`progress`): the file, a byte of a text or a row
of Parquet, a checksum of all before it. So a load that ended anyhow goes on there, and a file that changed is noticed;
files at their end are kept by fingerprint, and new ones in a folder are loaded by the next run. `json_blocks`,
`csv_blocks`, `columnar` and `events` read a format each, as chunks, any part of which is a commit with its place.
Refused records go to the file of `skipped`; its length is part of the progress, and what no commit covers is cut off.
`inference` makes a table of the first rows. A thread reads ahead, the caller's commits.
Not here: words of the command line (`cli`), rules of tables and merges.
"""
