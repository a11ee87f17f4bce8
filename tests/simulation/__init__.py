"""The server, single-threaded, on a simulated clock, disk and network: one seed is one run, and the same run again."""
