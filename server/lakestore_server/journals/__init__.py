"""Journals that several servers share; docs/internals/replication.md describes them."""
