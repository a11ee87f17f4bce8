"""Rows as Arrow: rows of users and messages as batches, casts, keys and their buckets, hashes, conditions.

Bytes from outside are validated before anything touches them, and cast losslessly or refused by column, row and rule.
Keys, buckets, row hashes and live sums are for ever: golden tests hold their bytes. A condition is a filter, and its
SQL text another module. No loop over rows, but where a handful is cheaper so.
Not here: the formats of files (`lakestore_server.files`), plans of reads (`union`).
"""
