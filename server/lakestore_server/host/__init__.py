"""The ground under the server: disk, clock, crash points, worker threads, permits, log lines.

Nothing here knows a table. Clock and disk are handed in, so that tests replace them; every durable step passes a
crash point.
"""
