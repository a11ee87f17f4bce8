"""Spark: session, attach, union reads in SQL and as DataFrames."""

from lakestore.spark.session import attach, session
from lakestore.spark.sql import SparkLake, SparkLakeAt

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]
