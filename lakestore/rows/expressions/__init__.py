"""Values that a condition computes by DuckDB's rules: arithmetic, functions, CASE, fields and elements.

- A `Value` is a typed step over whole columns. Constants are folded when they are read, so statistics see literals.
- A row on which a value overflows is an error only if the condition needs that row. The right side of AND and OR, and
  the branches of CASE and coalesce, are computed only for rows that the left side leaves undecided.
- Integers have 64 bits for all column types. DuckDB refuses an overflow of a narrow type; here the result is exact.
"""
