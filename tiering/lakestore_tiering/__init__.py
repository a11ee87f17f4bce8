"""The tiering service: flush, position deletes, compaction, expiry, by Iceberg's own Spark runtime."""

from lakestore_tiering.service import Outcome, Tierer

__all__ = ["Outcome", "Tierer"]
