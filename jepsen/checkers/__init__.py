"""Checkers: pure functions from calls to anomalies, each tested with a hand-made bad history of every anomaly.

Keys: `registers` by `linear` (the search), with `counterexample`. Logs: `logs`, which takes `log_facts` and looks at
`log_order`, `log_polls` and `log_cuts`. Lists: `appends` by `cycles`. Rows under a contract: `contracts`; rows that are
erased: `erasures`.
Changelogs: `consumers` by `changes`. Accounts: `audits`. Sums: `tallies`. Columns and tables that change: `versions`,
`passing`. Subscriptions: `positions`. Rows and logs that go: `expired`, `kept`, `emptied`. The lake: `lake`. Kafka:
`records`; positions that move with rows: `copied`.
What time may do: `clocks`. What a read must show, at the leader and at a follower: `freshness`.
"""
