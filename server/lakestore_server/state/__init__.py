"""The server's memory as values, and the commit record that changes it.

- The commit loop owns `State`; readers get a `View`, the immutable value of one LSN.
- A record is applied by the same code at commit and at recovery.
- No file, clock or thread: the room `files` has the bytes.

A bucket's log is chunks in offset order with a commit index: LSN, time, end, live sum and live rows after each commit
of the bucket. The `base` of a bucket is its log start. A table keeps every version of its definition with its first
LSN, and a tier record for each snapshot from which reads may begin.
"""
