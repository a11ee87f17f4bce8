"""The formats of everything on disk: one module a format, which encodes and decodes.

All numbers are little-endian but those in keys. Every file begins with a magic and a version; an older version is
read, a newer one refused with the release to run. A CRC covers all bytes. A file is written aside, synced, renamed,
and its folder synced, before anything names it: it is there whole or not at all.

Rows are Arrow record batches without a schema; those of primary-key tables begin with `__change int8` and
`__prev int64` (-1: none). A run of rows in a segment or a journal part is of one version of its table. The meaning of
these bytes to the server is the room `state`.
"""
