"""Duties: background work of the server, one duty a file.

- A duty has `run_once()` for tests, is built by `main` and changes state only through the commit loop.
- A failed duty is logged and tried again. A failed checkpoint leaves the last one valid.
- A log start is a commit end. It is durable before a row leaves the view, and never passes the tier point of the newest
  usable snapshot, a lease or a subscription. While the clock is in doubt, age moves no log start.
"""
