"""Operation: status, verify, metrics, calls, backup, restore and inspect.

- Everything here reads. Only a restore writes, into an empty folder.
- Status and metrics are computed on request from one view.
- A backup is a checkpoint and the journal after it up to one commit, taken while the server serves. It holds the lake's
  files if they are in the data folder, otherwise pointers to them.
- A restore checks every byte first and begins a new timeline, so positions of the old timeline are refused.
"""
