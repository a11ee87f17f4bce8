"""Duties: work that the server does by itself beside the commit loop, one duty a file.

Each has `run_once()` for tests, is built by `main` over the engine, and changes state only through the loop. A failed
duty is said and tried again; a failed checkpoint leaves the last one valid.

A checkpoint freezes the overlay and the tails on the loop, works beside it, and installs on the loop. The log start of
a table is one commit end: durable before a row leaves the view, never above the tier point of the newest usable
snapshot, a lease or a subscription; while the clock is in doubt nothing moves it by age. Below it a primary-key table
keeps its live rows (the base), and compaction drops the others at checkpoints. Expired rows are deleted by ordinary
commits.
"""
