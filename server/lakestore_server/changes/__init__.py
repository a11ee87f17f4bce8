"""Change streams and subscriptions.

`start` checks a request and finds its position, `snapshot` sends the rows that live there, `stream` follows the commits
behind in the order of their LSNs. A token is the whole state of a stream, so it can break anywhere and go on elsewhere.
A snapshot is sent in pieces of the newest view less what died behind the cut: no view is kept for a slow consumer, but
leases are (`snapshot_lease`), and for a while after a broken connection. Streams of one shape share encoded messages.
A client that asks for progress is also sent tokens without rows, so that one with a narrow condition neither holds the
log nor reads it again. A message whose commits go on in the next one has the token before them; the client knows rows
it has had by bucket and offset. A subscription is a name, a position and an epoch, in journal and checkpoint; `shared`
divides its buckets among several consumers, `ranges` a table's changes among readers without a position on the server.
Reads at one cut belong to the room `read`, wake-ups to `commit`.
"""
