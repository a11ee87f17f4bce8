"""What works by itself beside the commit loop: one background duty a file.

Each has `run_once()` for tests, is built by `main` over the engine, and changes state only through the loop. A failed
duty is said and tried again; a failed checkpoint leaves the last one valid.
"""
