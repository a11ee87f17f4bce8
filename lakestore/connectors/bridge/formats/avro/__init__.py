"""Avro: blocks of records to columns, by compiled readers where the schema allows, exact in every case."""
