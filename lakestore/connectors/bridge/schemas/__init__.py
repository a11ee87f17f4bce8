"""Schemas of records: those of a registry, and those that bridge.yaml declares."""
