"""Change streams and subscriptions.

A stream begins with a snapshot or at a position, and gives whole commits in the order of their LSNs. A snapshot is
sent in pieces of the newest view less what died behind the cut: no view is kept for a slow consumer, but leases are,
and for an hour after a broken connection. Streams of one shape share their encoded messages.

A client that asks for progress is also sent tokens without rows, so that one with a narrow condition neither holds the
log nor reads it again. A message whose commits go on in the next one has the token before them; the client knows rows
it has had by bucket and offset. A subscription is a name, a position and an epoch, in journal and checkpoint; `shared`
divides the buckets of one among several consumers.
"""
