"""Algorithms on numpy and Arrow arrays that know no table: grouping, integers, equal rows, sizes, byte
strings, hash tables.

Values in, values out: no clock, no file, no thread, and no loop over rows.
"""
