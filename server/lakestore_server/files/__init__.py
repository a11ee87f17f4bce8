"""The formats of all files on disk: one module for each format, which encodes and decodes it.

- Numbers are little-endian, except in keys.
- Every file begins with a magic number and a version. Older versions are read. A newer one is refused, and the error
  names the release that reads it.
- A CRC covers all bytes.
- A file is written under a temporary name, synced and renamed, and its folder is synced, before anything refers to it.
  So a file is complete or absent.
- Rows are Arrow record batches without their schema. Rows of keyed tables begin with `__change int8` and `__prev int64`
  (-1: none). All rows of a batch in a segment or journal frame have the same schema version.

The meaning of the contents to the server is the room `state`.
"""
