"""Presented cuts: a table at a cut as an ordinary, read-only Iceberg table for other engines.

- The server half chooses a cut (`cut_key`), asks for its files, and answers with a metadata document that lists them
  (`document`, `presented`). Nothing is committed to the lake.
- The snapshot builder is a separate process (`worker`, started by `worker_client`), so neither the commit loop nor the
  interpreter's lock waits for it. `messages` has the values that cross the pipe.
- The builder fetches log ranges through the server as any reader does. It writes hot data files once, in *steps* that
  all later cuts share, and for each cut the deletes of rows that are not alive there. Files are not synced.

Modules of the builder import no engine, so that the process starts fast.
"""
