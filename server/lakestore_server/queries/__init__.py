"""Queries in SQL: sessions, the confined processes that answer them, and what the processes read.

docs/internals/sql-door.md has the design, docs/internals/sandbox.md the walls around a process.
"""
