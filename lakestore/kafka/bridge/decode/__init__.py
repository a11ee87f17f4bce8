"""Decoders of record formats. A decoder turns the bytes of a block of records into columns."""
