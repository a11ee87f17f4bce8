"""The server's memory as values, and the commit record that changes it.

`State` is owned by the commit loop; a `View` is the immutable value of one LSN that readers get. Applying a record is
the same code at commit and at recovery. No file, no clock, no thread: bytes are the room `files`.

A bucket's log is chunks in offset order with a commit index: LSN, time, end, live sum and live rows after each commit
that touched the bucket. The log start is the `base` of each bucket. A table keeps every version of its definition with
the LSN it begins at, and a tier record for each snapshot from which reads may begin.
"""
