"""Lakestore in Spark: a session, and this lake attached to one."""

from lakestore.release import needs_extra

with needs_extra("spark", "Lakestore in Spark"):
    from lakestore_spark import SparkLake, SparkLakeAt, attach, session

__all__ = ["SparkLake", "SparkLakeAt", "attach", "session"]
