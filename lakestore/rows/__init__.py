"""Rows as Arrow: batches from users and messages, casts, keys and buckets, hashes, conditions.

- Bytes from outside are validated before any other use. A cast loses nothing, or the row is refused with column, row
  and rule.
- Keys, buckets, row hashes and live sums never change their bytes: golden tests hold them.
- Code works on whole columns. It loops over rows only if a few rows are faster that way.

File formats are in `lakestore_server.files`, plans of reads in `union`.
"""
