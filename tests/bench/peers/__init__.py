"""Lakestore beside the systems that a user would pick instead: see docs/internals/benches.md."""
