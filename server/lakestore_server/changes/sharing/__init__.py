"""Shared subscriptions: several consumers, the members, read one subscription's buckets together.

`assignment` decides which member reads which bucket, `members` knows the present reader (both without clock and lock).
`positions` knows how far each bucket is acknowledged. `group` joins the three and is thread-safe. `stream` sends a
member its changes.

- A bucket has one reader at a time; the next reader begins at the mark of the last one.
- Rows are noted before they are sent and acknowledgements count by session and run, so no row is skipped.
- A row is sent twice only if its reader was gone or overdue before it acknowledged the row.
- Marks are journaled, members are in memory.
"""
