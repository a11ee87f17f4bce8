"""The tiering service: flush, position deletes, compaction, expiry, by Iceberg's own Spark runtime."""
