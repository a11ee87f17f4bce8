"""JSON: blocks of records to columns, a record by itself where a block fails, and fields inferred from samples."""
