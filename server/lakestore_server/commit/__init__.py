"""The write path, in the order in which a row takes it.

producers, request, queue, engine, build (draft, merge, index), journal, state, wake-ups.

- Handler threads decode a request under a memory bound, cast it and sort its rows by bucket.
- One thread, the commit loop, owns all state. A group of requests is one record and one LSN; each request is visible
  whole and answered once it is durable. Offsets and `prev`s are assigned there, after one look-up of the group's keys.
- The record holds epoch and sequence of a producer, so a retry gets the first answer. Recovery applies these records.
- A row that only the loop can refuse (an overflowing sum) refuses its whole request, and the group is built again
  without it.
- A few bytes of keys can name many bytes of rows: a group that would fetch more than `batch_memory_bytes` becomes
  several commits.
"""
