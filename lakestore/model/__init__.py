"""Tables as values: columns, types, options, merge engines, times, tokens and settings.

- Columns are identified by id, never by name.
- A definition is stored and sent as JSON in one form. Steps of `lakestore.evolution` change it (`altered`), and
  `projection` converts rows between versions.
- Values are checked when they are made, and read strictly from outside (`typed`, `shapes`). Stored definitions of older
  releases are read leniently.

Pure: no rows, clock, file or thread. Rows are in `rows`, messages in `wire`.
"""
