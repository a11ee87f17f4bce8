"""A test suite that uses Lakestore from outside: by the public client, by processes and by signals.

A run is a system, some workloads and some nemeses, all drawn from one seed. Clients do operations, a history records
them, and nemeses break the system. Then everything heals, clients read to the end, and checkers search the histories
for anomalies. The server's modules are never imported.

- Values: `operation`, `history`, `anomaly`, `verdict`; `edn` and `others` write histories for foreign checkers.
- Protocols: `workload`, and `schedule` for nemeses. Rooms: `checkers` (pure functions of histories), `workloads`,
  `system` (processes), `nemeses` (faults), `mutants` (planted bugs).
- Foreign software: `rows` (Arrow), `raw_bytes` (files of all kinds), `engines` (PyIceberg, DuckDB), `topics` (Kafka).
- Runs: `run` (the phases), `trial` (the choices of one seed), `suite`, `shrinking`, `report`, `pictures`.
"""
