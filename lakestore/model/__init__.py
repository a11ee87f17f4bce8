"""Tables as values: columns, types, options, merge engines, times, tokens and settings.

A definition is JSON in one form, stored and sent; a token is one of three positions with one text each. A definition
is changed by the steps of `lakestore.evolution`, applied in `altered`; batches of one version become another by
`projection`. Columns are told apart by id, never by name. Everything is checked when it is made,
and read strictly when it comes from outside (`typed`, `shapes`); stored definitions of older releases are not.
Pure: no rows, no clock, no file, no thread. Not here: rows (`rows`), messages and errors on the wire (`wire`).
"""
