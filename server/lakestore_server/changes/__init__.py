"""Change streams and subscriptions.

A stream begins with a snapshot or at a position, and gives whole commits in the order of their LSNs. `shared` divides
the buckets of one subscription among several consumers.
"""
