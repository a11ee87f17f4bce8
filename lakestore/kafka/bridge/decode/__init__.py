"""Formats of records: a decoder each, from a block's bytes to columns."""
