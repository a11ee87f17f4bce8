"""Algorithms on numpy and Arrow arrays: grouping, integers, equal rows, sizes, byte strings, hash tables.

Values in, values out: no table, clock, file or thread, and no loop over rows.
"""
