"""The table of the scripts: which fault each one is to show, and how its output says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One run of a script. `shows` is found in the output of a server with the fault, `reached` in any that got so far.

    `point` is the letter and number of issue 5 that names the script, or the number of another issue.
    """

    folder: str
    name: str
    point: str
    fault: str
    shows: str
    reached: str
    seconds: int = 120
    arguments: tuple[str, ...] = ()
    needs: str = ""

    @property
    def label(self) -> str:
        """What the runner calls it."""
        return " ".join((f"{self.folder}/{self.name}", *self.arguments))

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be asked for by."""
        return self.folder, self.name, f"{self.folder}/{self.name}", self.label


# fmt: off
CLIENT = (
    Case("client", "hello_serial", "5", "threads of a lake that has not greeted wait for one another's time-outs",
         r"timeout=2\): \[.*[3-9]\.\d", r"timeout=2\):"),
    Case("client", "idle_client_forgotten", "A3", "an idle client can never write again; its retry is applied twice",
         r"^append: Invalid|^rows with 7777: 2", r"^rows with 7777:"),
    Case("client", "insert_applied_no", "B4", "insert_if_absent says applied=no though the row is stored",
         r"applied = no", r"^stored: .*'k': 2"),
    Case("client", "late_within", "B4", "a call that begins after its deadline is sent, and even answered",
         r"'answered': [1-9]|Unavailable unknown", r"^upsert"),
    Case("client", "not_retried", "B5",
         "look-ups, scans, sql, snapshots, lake.table and named writers fail at once when a server restarts",
         r"^.+ Unavailable ", r"^writer\(producer=\)"),
    Case("client", "producer_forgotten", "A3",
         "after 60 other clients progress reads empty and a fenced predecessor may write",
         r"other clients: ''|was ACCEPTED", r"^progress after"),
    Case("client", "producer_forgotten_default", "A3", "the same with the default limit of 20,000",
         r"handed back: ''", r"handed back"),
    Case("client", "stop_stream", "B5",
         "a reader that waits cannot be stopped: close() raises, within() does not end it",
         r"ValueError|: still waiting", r"^within\(2\)", 180),
)
SERVER = (
    Case("server", "poison", "C7", "definitions and alterations that end the commit loop",
         r"^KILLED", r"^killed by", 180),
    Case("server", "poison_ack", "C7", "forged positions of an Ack end the commit loop or raise bare errors",
         r"KILLED|RAW", r"list after s112tables"),
    Case("server", "t1_alter_kills", "C7", "one alter or create_table of the public API ends the server",
         r"exit code: 70", r"exit code: None"),
    Case("server", "t2_pool_stuck", "A1, A3",
         "a client is stuck for ever once its producer was forgotten or its server restored",
         r"^[AB]\. ", r"^upsert after restore"),
    Case("server", "t3_drop_index", "C11", "keys of dropped tables stay in the index",
         r"after restart Size\(keys=[1-9]", r"^after restart"),
    Case("server", "t5_buckets", "C11", "a checkpoint of 4,096 buckets takes more than 3 s",
         r"^4096 buckets.*checkpoint \((?:[3-9]|\d{2,})\.", r"^4096 buckets", 300, ("buckets",)),
    Case("server", "t5_buckets", "C11", "a checkpoint of 1,000 tables of 4 buckets takes more than 5 s",
         r"^1000 tables.*checkpoint \(wall,cpu\) \((?:[5-9]|\d{2,})\.", r"^1000 tables", 300, ("tables",)),
    Case("server", "t7_clock", "D12",
         "one reading far ahead stamps later commits; a start with a clock ahead deletes TTL rows",
         r"^years of commit times.*2036|clock 2 years ahead: 0", r"clock 2 years ahead"),
    Case("server", "t7b", "A2, D12",
         "retention stands still after such a reading; rows for a dropped table land in its namesake",
         r"still there: True|are now in the new table", r"^(?:writer:|rows of the dropped)"),
    Case("server", "t8_restore_consumer", "A1",
         "over a restore a subscription drops rows of the new history and acknowledges past them",
         r"handed to the consumer: (?!25 )\d+ ", r"handed to the consumer"),
    Case("server", "t8_restore_consumer", "A1", "the same for a shared subscription",
         r"handed to the consumer: (?!25 )\d+ ", r"handed to the consumer", 120, ("shared",)),
    Case("server", "t9_leases", "C11", "streams that end early keep their leases until reads are refused",
         r"Exhausted", r"^stream ok", 180),
    Case("server", "t10_join", "C7",
         "2 GB of strings in one bucket's journal end the server; it opens again without the last commit",
         r"ArrowInvalid|REOPEN FAILS", r"^reopened", 300),
    Case("server", "t11_restore_producer", "A1",
         "after a restore an epoch is given out twice, and an acknowledged row is not there",
         r"should be Fenced: \S", r"^stored:"),
    Case("server", "t15_hugerow", "C9", "a row just below the message limit is taken and can never be streamed",
         r"(?:scan|changes|snapshot).* -> |STUCK", r"^0 rows:", 240),
    Case("server", "t17_ack_grpc", "C7", "one Ack of a reader ends the server",
         r"exit code 70", r"exit code None"),
    Case("server", "t19_reopen", "C7", "folders that `poison` left hold definitions of wrong types, or do not open",
         r"OPEN FAILS|accepted: \[\(", r"tables; target_file_bytes", 120, (), "server/poison"),
    Case("server", "t20_duty", "C10", "one unexpected error ends the checkpoint thread, and status says serving",
         r"alive: False", r"thread alive"),
    Case("server", "t21_profile", "C11", "where a checkpoint of 4,096 buckets spends its time",
         r"^4096 buckets: .*wall (?:[3-9]|\d{2,})", r"^4096 buckets", 300),
)
SECURITY = (
    Case("security", "t_start", "E15", "data folder, index and lock are open to other users of the machine",
         r"^0o(?:755|644) \S*/data(?:/lock|/index/\S+)?$", r"^0o\d+ \S*/data$"),
    Case("security", "t_small", "C8, E15",
         "a condition of 20,000 terms ends the client; an empty bitmap is 'a defect'",
         r"a defect|in a client: rc -", r"in a client: rc"),
    Case("security", "t_sql", "E15", "lake.sql reads files of the machine where it runs",
         r"^ +(?:read_csv|read_text|file name|glob|server's own).*RUNS", r"^ +read_csv local file"),
    Case("security", "t_exactly_once", "A3",
         "a writer of one table ends exactly-once for another principal's producer",
         r"DUPLICATE|its progress: ''", r"its progress:"),
    Case("security", "t_leak_growth", "E13", "each malformed message without a token loses 19 KB for ever",
         r"5 s later (?:2[3-9]\d|[3-9]\d\d|\d{4,})$", r"5 s later"),
    Case("security", "t_stream_leak", "E13",
         "1,024 malformed messages make a connection useless, and their memory is lost",
         r"same connection, good call: UNAV|closed: rss (?:2[3-9]\d|[3-9]\d\d)", r"closed: rss"),
    Case("security", "t_preauth_log", "E13", "each malformed message without a token logs a traceback",
         r"tracebacks [1-9]\d", r"tracebacks \d"),
    Case("security", "t_preauth_grpc", "E13", "520 silent calls without a token stop everyone, health too",
         r"^(?:\(\d\)| +30 s later).*RESOURCE_EXHAUSTED", r"^alive True", 150),
    Case("security", "t_preauth_mem", "E13",
         "large messages without a token are received and unfolded before they are refused",
         r"x12: .* peak (?:[4-9]\d\d|\d{4,}) ", r"x12: .* peak", 180),
    Case("security", "t_preauth_oom", "E13", "half-sent messages without a token are held, 60 MB each",
         r"after the last byte: rss (?:[3-9]\d\d|\d{4,})", r"after the last byte: rss \d+ alive True", 150),
    Case("security", "t_http_slow", "E13", "520 slow bodies without a token stop HTTP for everyone",
         r"healthz 0/10", r"after 8\d?s, .* healthz", 180),
    Case("security", "t_misc", "E15",
         "foreign pages read and write, locations are squatted, idempotency keys cross principals",
         r"Origin evil: \(200|rebinding\): \(200|fin's folder: 200|exists: 404|a defect of", r"^restart ok", 180),
    Case("security", "t_mtls_etc", "E14, E15",
         "one reader's leases stop all reading; a lock held by another user stops the start",
         r"hr.salaries: Exhausted|lock: server does not start", r"^lock: server", 240),
    Case("security", "t_state_growth", "E14", "hundreds of MB of properties are kept for one principal",
         r"\[200, 200, 200, 200, 200\]", r"^5 x 30 MB", 180),
    Case("security", "t_floods", "E14",
         "one principal takes producers, leases, subscriptions, streams and threads from everyone",
         r"^   admin's new subscription: RES|admin's change stream: RES|admin's status: RES", r"^after restart", 400),
    Case("security", "t_arrow_bombs", "C9", "small Arrow messages unfold to gigabytes",
         r"^overlap.* peak \d{4,} ", r"^overlap 15 MB", 400),
    Case("security", "t_where", "C8", "80 KB of OR are a segmentation fault of the server",
         r"alive=False|a defect of", r"^dollar", 600),
)
LAKE = (
    Case("lake", "s1_expire_two_rewrites", "F17",
         "rewrite and expiry with retain_last 1 stop the tiering of a table for good",
         r"^\[FAIL.*round", r"^\[ok.*round by a new", 400),
    Case("lake", "s2_props", "F19", "table properties that others may set break rounds, rewrites and readers",
         r"PROBLEM", r"^history.expire.min-snapshots", 1500),
    Case("lake", "s3_service", "F18", "one table that cannot be tiered ends the service for all",
         r"^service alive after \d+ False", r"^good lake", 400),
    Case("lake", "s4_zombie", "F18",
         "a tierer that stops past its epoch leaves a compaction branch that no later round removes",
         r"refs after B's next=\['|good=False|verify=False", r"^expired:", 900),
    Case("lake", "s6_growth", "F20", "snapshots and metadata grow with every round; files that no snapshot names stay",
         r"^n=60 .*snapshots=(?:1[2-9]\d|[2-9]\d\d)", r"^n=60 ", 900, ("60",)),
    Case("lake", "s9_sql", "7", "forms of SQL over a union read, schema changes between rounds, reads at every token",
         r"^FAIL (?:DESC|TABLE |.* FROM (?:zz|vv|SHOP))|^ok +EXPLAIN .*Error|^EVO ", r"^verify", 600),
    Case("lake", "s10_metadata_gone", "F20",
         "a read with a valid lease fails after seven rounds: its metadata file is gone",
         r"^(?:reader|join's second table): ", r"^metadata files on disk", 240),
)
USER = (
    Case("user", "op4", "G22", "a backup in the default configuration does not bring back the lake",
         r"is gone: the read took|does not exist", r"^-- tier", 400),
    Case("user", "op5", "10", "what the command line and Python say to calls that are natural and not there",
         r"No such command|AttributeError|TypeError", r"^\$ lakestore version", 180),
    Case("user", "p5", "10", "change streams on the command line",
         r"has type null|is not understood", r"^== feed debezium in"),
    Case("user", "p6", "10", "a shared subscription on the command line",
         r"2 bu…|--start earliest: 0", r"^second got", 180),
    Case("user", "p8", "C8",
         "conditions of mixed types are 'a defect' or end a stream; decimals equal floats by rounding",
         r"ArrowInvalid|a defect of the server|^scan 1", r"^scan (?:\d|refused)"),
    Case("user", "p9", "G23", "datetime.now() in a row is stored hours off",
         r"off by -?(?:\d+ day|[1-9])", r"off by"),
    Case("user", "spark1", "7", "what a user of Spark tries first",
         r"^\[ERR\] (?:read\.|readStream l|write f)", r"^\['", 400),
    Case("user", "t_autocreate", "10", "a table made by `write --key` on a new server",
         r"which timestamp\[us\] does not take", r"^rc 0"),
    Case("user", "t_int2", "10", "Ctrl-C in `lakestore write`, and the same command again: rows come twice",
         r"^after re-run:[^\n]*\n *([\d,]+) +(?!\1\b)[\d,]+", r"^after re-run", 180),
    Case("user", "t_jsonspeed", "10", "which column makes JSON lines slow",
         r"^(?:items|address|attributes) .*\((?:\d{1,2},)?\d{1,3} rows/s", r"^gift", 400),
    Case("user", "t_rows", "10", "a bad row far inside a file, empty strings and nulls of CSV",
         r"in row 50001", r"^d +timestamptz", 180),
)
# fmt: on

CASES = (*CLIENT, *SERVER, *SECURITY, *LAKE, *USER)
