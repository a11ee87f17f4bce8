"""The write path, in the order in which a row takes it.

producers, request, queue, loop, build (numbering, merge, index), journal, state, wake-ups. Handler threads decode a
request under a bound of memory, cast it and sort its rows by bucket. One thread, the loop, owns all state: a group of
requests is one record and one LSN, each request seen whole, answered once it is durable. Offsets and `prev`s are
given there, after one look-up of the group's keys; epoch and sequence of a producer are in the record, so a retry
gets the first answer.

A row that only the loop can refuse (an overflowing sum) refuses its whole request, and the group is built again
without that. A few bytes of keys can name many bytes of rows: a group that would fetch more than
`batch_memory_bytes` of them becomes several commits. Recovery applies the same records. Nothing works here by itself.
"""
