"""Files of an Iceberg table as values: manifests, their lists, position deletes, vectors, metrics, partition values.

Bytes in and bytes out, written and read here against Iceberg's specification, of the format versions 2 and 3. A file's
damage is `Corrupt` with its name. A manifest's entries are arrays (`manifest_entries`), for a table may have 100,000
files. A data file's offset index tells which rows it holds. `places` and `cache` alone touch files.
Not here: catalogs, metadata documents and commits; which files a read needs (`union`).
"""
