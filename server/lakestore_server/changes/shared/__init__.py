"""Shared subscriptions: several consumers, the members, read one subscription's buckets together.

`assignment` says which member is to read which bucket, `members` which member reads it now (both pure: no clock, no
lock). `positions` has how far each bucket is acknowledged, `group` joins the three, thread-safe; `stream` sends a
member its changes, `batches` cuts them. Marks are in the journal, members in memory only.
The theory: a bucket has one reader at a time, and its next reader begins at the mark that the last one has left.
Rows are noted before they are sent, and acknowledgements count by session and run, so a row is never passed over;
it is sent twice only if its reader was gone, or overdue, before it had acknowledged. A subscription with one
consumer does not belong here.
"""
