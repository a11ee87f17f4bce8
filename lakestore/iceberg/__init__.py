"""Files of an Iceberg table as values: manifests, their lists, position deletes, vectors, metrics, partition values.

1. Readers and writers follow Iceberg's specification, format versions 2 and 3. They take bytes and return bytes.
2. A damaged file raises `Corrupt` with the file's name.
3. Only `places` and `cache` touch files.

A manifest's entries are arrays (`manifest_entries`), because a table may have 100,000 files. The offset index of a data
file lists the rows in the file.
Not here: catalogs, metadata documents and commits; which files a read needs (`union`).
"""
