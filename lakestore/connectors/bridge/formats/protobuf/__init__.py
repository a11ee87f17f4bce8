"""Protobuf: blocks of records to columns, by a scan of all records at once."""
