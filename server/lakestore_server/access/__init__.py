"""Rights: the callers of this server, and the one table that says what each of them may call.

Without `auth` everyone on 127.0.0.1 is an administrator; a server that listens elsewhere needs TLS and `auth`, or
`--insecure`. A principal is known by tokens, kept as hashes, or by client certificates, and has rights (read, write,
tier, admin) on patterns of tables. `policy` has one row for every RPC and route, which also says what of a call
belongs to its principal alone and which list of its answer is cut; a call without a row is denied, and a test walks
the descriptors. Catalog clients trade credentials for short-lived access tokens.

No transport and no engine here: ports bring the facts of a call to `Admission`, and `main` brings those of tables.
"""
