"""Values that a condition computes: arithmetic, functions, CASE, fields and elements, as DuckDB says.

A `Value` is a typed step over whole columns. Constants are folded when they are read, so that statistics see literals.
A row on which a value overflows is an error, but only where the condition asks for that row: the right side of AND and
OR, and the branches of CASE and coalesce, are computed on the rows that the left side leaves open. Integers have 64
bits whatever their columns are; where DuckDB calls a narrow type's overflow an error, the answer here is exact.
"""
