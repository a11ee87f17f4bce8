"""A suite that treats a Lakestore as a stranger's: it reaches it by the public client, by processes and by signals.

A run is a system, some workloads and some nemeses, all drawn from one seed. Clients do operations and a history
records them; nemeses break the system meanwhile; then everything heals, clients read to the end, and checkers search
the histories for anomalies. The server's own modules are never imported. From below upwards:

Values: `operation`, `history`, `anomaly`, `verdict` (all that is said of a run), `edn` and `others` (histories for
checkers that are not ours). Protocols: `workload` and `schedule` (of a nemesis, and when which breaks something).
Rooms: `checkers` (pure functions of histories), `workloads` (a generator, a client and a checker each), `system`
(processes), `nemeses` (faults), `mutants` (bugs that are planted). The way to others' things: `rows` (of Arrow),
`engines` (PyIceberg and DuckDB), `topics` (Kafka). Runs: `run` (the phases), `report` and `pictures`, `trial` (all that
one seed says), `shrinking`, `suite` (one trial after the other).
"""
