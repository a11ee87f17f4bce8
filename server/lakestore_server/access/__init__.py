"""Rights: the callers of this server, and one table of what each of them may call.

- Without `auth` every caller on 127.0.0.1 is an administrator. A server that listens elsewhere needs TLS and `auth`, or
  `--insecure`.
- A principal is known by token hashes or client certificates and has rights (read, write, tier, admin) on table
  patterns.
- `policy` has one row for every RPC and route. A call without a row is denied, and a test walks the descriptors.

This room knows no transport and no engine: ports pass the facts of a call to `Admission`, and `main` passes the facts
of tables.
"""
