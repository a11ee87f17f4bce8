"""The parts of documents that no test runs, each with the reason; `tests/test_pages_run.py` holds the list true."""

from __future__ import annotations

WRITTEN = {
    "docs/cli.md": "tests/test_docs.py holds its blocks against the commands' own help",
    "docs/flight.md": "tests/network/test_flight_sql.py and test_flight_jdbc.py do the same on a port of theirs",
    "docs/internals/benches.md": "its commands measure for minutes; tests/unit/operate has the harness",
    "docs/internals/child-processes.md": "its block is a picture",
    "docs/internals/kafka-in.md": "its block is a picture",
    "docs/internals/presented-cuts.md": "its block is a picture",
    "docs/internals/replication.md": "its blocks are pictures",
    "docs/internals/sql-door.md": "its blocks are a picture and signatures",
    "docs/internals/stores.md": "its block is a picture",
    "docs/internals/tiering.md": "its block is a picture",
    "docs/architecture.md": "its blocks are pictures; tests/test_tidy.py holds the rooms in them against the imports",
}
"""Page to the reason why none of its blocks is run."""

_MACHINE = "changes the machine as root; tests/test_deploy.py holds the files and commands that it is about"
_SYSTEMD = "wants systemd as the machine's first process; tests/test_deploy.py reads the units"
_CONTAINER = (
    "wants a container runtime; tests/test_deploy.py checks the file against its schema, and in its long form installs "
    "and starts what the Containerfile does"
)
_ROW_REPLAY = "wants rows that broke a rule; tests/unit/loading/test_row_replay.py runs it"
_SUITE = "runs for minutes or hours; tests/jepsen and tests/simulation run the same in short"
_WHOLE = "installs all that is pinned from an index; the long form of tests/test_deploy.py does the same for the image"
_MAKE = "runs for minutes; tests/test_pages_run.py sees that the target is there"
_ADOPTING = "takes a table of another engine: tests/network/test_adoption.py and tests/lake/test_adoption.py run it"
_ERASING = "waits for a tierer; tests/lake/test_erase.py runs it with one"
_DBT = "a file of dbt, which is not among the tests' packages; dbt 1.10 took it on 28 November 2026"
_DEPLOY, _JEPSEN = "docs/deployment.md", "docs/jepsen.md"
NOT_RUN = {
    (
        "docs/deletion.md",
        "lakestore erase shop.orders --where \"customer = 'ann'\" --wait --yes --certificate ann.json",
    ): _ERASING,
    ("docs/deletion.md", "lakestore verify --erased ann.json"): _ERASING,
    ("docs/postgres.md", 'psql "host=localhost port=7342 user=ann dbname=shop"'): (
        "wants a server with the port; tests/network/test_postgres_port.py connects by libpq"
    ),
    ("docs/postgres.md", "SELECT $__timeGroup(loaded_at, '5m') AS time, sum(amount) AS amount"): (
        "is a text of Grafana; tests/unit/queries/client_texts has what Grafana makes of its macros"
    ),
    ("docs/postgres.md", "lakestore:                 # profiles.yml"): _DBT,
    ("docs/postgres.md", "lakestore:                 # profiles.yml for dbt-duckdb"): _DBT,
    ("docs/postgres.md", "sources:                   # models/sources.yml"): _DBT,
    ("docs/adopting.md", "lakestore adopt lake.sales.orders --as shop.orders --key order_id"): _ADOPTING,
    ("docs/adopting.md", "lakestore adopt prod.sales.orders --as shop.orders --key order_id"): (
        "takes a table of an outside catalog: tests/interop/test_outside_adoption.py runs it"
    ),
    ("docs/adopting.md", "lakestore tier --once --table shop.orders"): _ADOPTING,
    ("docs/adopting.md", "lakestore release shop.orders --to sales.orders"): _ADOPTING,
    (
        "README.md",
        "producers ──gRPC──► server: commit loop ─ journal ─ index ─ segments ──► look-ups, change streams",
    ): ("a picture"),
    ("README.md", "make demo"): "tests/network/test_demo_kafka.py and tests/unit/cli run the demo in short",
    ("README.md", "make test"): _MAKE,
    ("README.md", "make lint"): _MAKE,
    ("README.md", "make jepsen"): _MAKE,
    ("README.md", "make bench"): _MAKE,
    ("README.md", "make site"): "tests/test_site.py builds the site",
    ("README.md", "make help"): _MAKE,
    (
        _DEPLOY,
        "spark-submit --master spark://host:7077 \\",
    ): "wants a cluster; the long form of tests/lake/test_tier_cluster.py runs it on one",
    (_DEPLOY, "make wheel"): "tests/test_wheel.py builds the wheel",
    (_DEPLOY, "python3 -m venv /opt/lakestore/.venv"): _MACHINE,
    (_DEPLOY, "/opt/lakestore/.venv/bin/pip install -r requirements.lock"): _WHOLE,
    (
        _DEPLOY,
        "/opt/lakestore/.venv/bin/pip install --no-deps dist/lakestore-0.3.0.dev0-py3-none-any.whl",
    ): _WHOLE,
    (_DEPLOY, "useradd --system --home-dir /var/lib/lakestore lakestore"): _MACHINE,
    (_DEPLOY, "install -d -o root -g lakestore -m 0750 /etc/lakestore"): _MACHINE,
    (_DEPLOY, "cp examples/deploy/server.yaml /etc/lakestore/"): _MACHINE,
    (_DEPLOY, "$EDITOR /etc/lakestore/auth.yaml"): "a reader types it into an editor",
    (_DEPLOY, "chown lakestore: /etc/lakestore/auth.yaml /etc/lakestore/tierer.token"): _MACHINE,
    (_DEPLOY, "chmod 600 /etc/lakestore/auth.yaml /etc/lakestore/tierer.token"): _MACHINE,
    (
        _DEPLOY,
        "cp examples/deploy/lakestore.service examples/deploy/lakestore-tier.service /etc/systemd/system/",
    ): _MACHINE,
    (_DEPLOY, "systemctl daemon-reload"): _SYSTEMD,
    (_DEPLOY, "systemctl enable --now lakestore lakestore-tier"): _SYSTEMD,
    (_DEPLOY, "docker build -t lakestore -f examples/deploy/Containerfile ."): _CONTAINER,
    (
        _DEPLOY,
        "docker run -p 127.0.0.1:7340:7340 -p 127.0.0.1:7341:7341 -v lakestore:/data --stop-timeout 30 lakestore serve "
        "--data /data --host 0.0.0.0 --insecure",
    ): _CONTAINER,
    (_DEPLOY, "S3_PASSWORD=… PG_PASSWORD=… docker compose -f examples/deploy/compose.yaml up --build"): _CONTAINER,
    ("docs/errors.md", "LakestoreError"): "the tree of errors; tests/test_docs.py holds it against the classes",
    (
        "docs/operating.md",
        "Upkeep of shop.orders: compaction 812 (a rewrite is running), manifests 41",
    ): "a line of lakestore status; tests/lake/test_upkeep.py sees the debts",
    (
        "docs/operating.md",
        "Rounds of shop.orders come every 40 s instead of 10s: 25,000 files wait for compaction, more than upkeep_files"
        " (10,000)",
    ): "a line of lakestore status; tests/lake/test_upkeep.py reads it",
    (
        "docs/operating.md",
        "Table shop.orders is late: the oldest change that the lake lacks is 34 s old, and its freshness is 10s",
    ): "lines of lakestore status; tests/lake/test_tier_troubles.py reads them",
    ("docs/operating.md", "lakestore freshness price shop.orders"): (
        "six rounds of a tierer come before it; tests/lake/test_freshness_price.py runs it after them"
    ),
    ("docs/operating.md", "lakestore backup /backups/$(date +%s) && rsync -a /backups/ standby:/backups/"): (
        "copies to another machine; tests/network/test_cli_paths.py makes backups"
    ),
    **{
        ("docs/quickstart.md", line): "wants a certificate; tests/network/test_security.py has such a server"
        for line in (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -addext "
            "subjectAltName=DNS:localhost -keyout key.pem -out cert.pem",
            "lakestore token ann --grant read,write,admin:* --token-file ann.token",
            "lakestore serve --data ./data --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --auth auth.yaml",
            "lakestore login --profile safe --server localhost:7340 --tls-ca cert.pem --token-file ann.token",
            "lakestore tables --profile safe",
        )
    },
    (_JEPSEN, "make jepsen"): _SUITE,
    (_JEPSEN, "make jepsen HOURS=8"): _SUITE,
    (_JEPSEN, "make jepsen SEED=1234.7"): _SUITE,
    (_JEPSEN, "make jepsen MUTANTS=1"): _SUITE,
    (_JEPSEN, "python -m jepsen run --light --seed 14 --processes 1 --operations 40 -n none"): _SUITE,
    (_JEPSEN, "python -m jepsen run -w bank -n power -n pause --seconds 30"): _SUITE,
    (_JEPSEN, "python -m jepsen run --servers 3 -w register -w log -n kill -n pause --seconds 30"): _SUITE,
    (_JEPSEN, "python -m jepsen suite --servers 3 --minutes 20"): _SUITE,
    (_JEPSEN, "python -m jepsen check bank.jsonl"): "wants the history of a run; tests/jepsen/test_run.py judges one",
    (
        _JEPSEN,
        "python -m jepsen run --server lake.example:7340 --seconds 300 --begin 'kubectl delete pod lakestore-0 "
        "--grace-period=0' --end 'kubectl wait --for=condition=Ready pod/lakestore-0'",
    ): "wants a Kubernetes cluster; tests/jepsen runs against a server that is there",
    (_JEPSEN, "python -m tests.simulation --seeds 0:500 --jobs 2"): _SUITE,
    (_JEPSEN, "python -m tests.simulation --seed 7 --workload bank --trace --shrink"): _SUITE,
    ("docs/contract-rules.md", "lakestore dlq list shop.orders"): _ROW_REPLAY,
    ("docs/contract-rules.md", "lakestore dlq replay shop.orders --code amount.minimum"): _ROW_REPLAY,
    ("docs/loading.md", "^C"): "an output over a long load; tests/unit/cli/test_write.py has the same sentence",
    ("docs/loading.md", "committed: 119,999 rows, to line 120,000 of big.csv; the same command goes on from there"): (
        "an output over a long load; tests/everyday has the same sentence of a short one"
    ),
    ("docs/reads.md", "shop.orders at 1a2b…: 1,204 of 9,310,000 rows"): (
        "an output over a table of nine million rows; tests/unit/union has the same lines of small ones"
    ),
    ("docs/operating.md", "queries  postgres 1,204 answered (1,190 by key), 3 failed; processes: 1 unused, 2 idle"): (
        "a line of lakestore status; tests/unit/operate/test_query_figures.py reads it"
    ),
    (
        "docs/operating.md",
        'warning queries slow query principal=ann door=postgres outcome=ok seconds=7.204 rows=12 text="SELECT …"',
    ): "a line of a log; tests/unit/operate/test_query_figures.py reads it",
    ("docs/operating.md", "The contract of shop.orders is not kept: delete ratio 14.2 % (10.0 % allowed, exceeded)"): (
        "an output about a lake; tests/network/test_cli.py has the same sentence of a promise, and"
        " tests/lake/test_upkeep.py has the figures"
    ),
    ("examples/shop/README.md", "export SHOP_KAFKA=localhost:9092"): "a variable; the test of the broker sets it",
    ("tests/golden/README.md", "python -m tests.support.golden"): "would write the files of a release over",
    ("tests/golden/README.md", "python -m tests.support.golden_replica"): "would write the files of a release over",
}
"""Page and first line to the reason."""
