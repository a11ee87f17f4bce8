"""Postgres's half of a query: its types, its rows as bytes, its dialect and its catalog. No socket."""
