"""The server's memory as values, and the commit record that changes it.

`State` is owned by the commit loop; a `View` is the immutable value of one LSN that readers get. Applying a record is
the same code at commit and at recovery. No file, no clock, no thread: bytes are the room `files`.
"""
