"""Spark: session, attach, union reads in SQL and as DataFrames."""

from lakestore_spark.session import attach, session
from lakestore_spark.spark_lake import SparkLake, SparkLakeAt

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]
