"""A suite that treats a Lakestore as a stranger's: it reaches it by the public client, by processes and by signals.

A run is a system, some workloads and some nemeses, all drawn from one seed. Clients do operations and a history
records them; nemeses break the system meanwhile; then everything heals, clients read to the end, and checkers search
the histories for anomalies. Room by room, downwards: `operation` and `history` (values), `checkers` (pure functions of
histories), `workloads` (a generator, a client and a checker each), `system` (processes), `nemeses` (faults and their
schedule), `run` (the phases), `report`. The server's own modules are never imported.
"""
