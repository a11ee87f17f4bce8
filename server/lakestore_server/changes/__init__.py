"""Change streams and subscriptions.

`start` checks a request and finds its first position. `snapshot` sends the rows that were live at the cut. `stream`
then sends the later commits in LSN order. `shared` divides a subscription's buckets among several consumers, `ranges`
divides a table's changes among readers that keep their own position.

- A token is the whole state of a stream: a client can continue from it on any connection.
- A snapshot is read from the newest view minus the rows that died after the cut. A slow consumer holds leases, never a
  view.
- If a message ends inside a commit, its token is the position before that commit. The client skips rows it already has,
  by bucket and offset.
"""
