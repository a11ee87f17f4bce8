"""Operation: status, verify, metrics, calls, backup, restore, inspect, for those who run the server.

Everything here reads, and nothing changes but by a restore into an empty folder. Status and metrics are figures of
one view, computed on request. `verify` folds the log and holds it against the index and the sums of the commits.

A backup is a checkpoint and the journal behind it up to one commit, taken while the server serves; of the lake it has
the files if they lie in the data folder, else pointers to them. A restore checks every byte first, begins a new
timeline, so that positions of the old history are refused, and brings log and lake into agreement. `calls` counts and
times the running calls, and ends them in order at a drain.
"""
