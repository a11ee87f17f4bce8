"""Spark: session, attach, union reads in SQL and as DataFrames."""
