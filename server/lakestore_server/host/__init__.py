"""The layer below the server: disk, clock, crash points, worker threads, quotas, log lines.

Nothing here knows tables. Clock and disk are parameters, so tests can replace them. Every durable step passes a crash
point.
"""
