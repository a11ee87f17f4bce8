"""How far back a table can be read: errors, `describe` and `status` say the first position, and it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lakestore.cli.main import cli
from lakestore.errors import Invalid, LakestoreError, NotFresh, PositionExpired
from lakestore.model.times import text_of
from lakestore.model.token import LogPosition, position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.read.readable_from import ReadableFrom
from lakestore_server.state.catalog_change import CatalogChange, SetPointer
from tests.support.log_start import move_log_start
from tests.support.served import SCHEMA, Served

KEYED, LOG = "t.keyed", "t.log"
ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, ports=True) as opened:
        yield opened


def token(served: Served, lsn: int) -> str:
    return str(LogPosition(served.engine.timeline, lsn))


def reach(served: Served, name: str) -> int:
    return ReadableFrom.first(served.engine.view, served.state(name), served.server.sources.leases).lsn


def check_every_position(served: Served, name: str) -> None:
    """Exactly the positions from the reach on can be planned, and the others say so."""
    first, table = reach(served, name), served.lake.table(name)
    for lsn in range(1, served.engine.view.lsn + 1):
        if lsn >= first:
            table.scan(at=token(served, lsn)).count()
            continue
        with pytest.raises((PositionExpired, Invalid)) as error:
            table.scan(at=token(served, lsn)).count()
        if isinstance(error.value, PositionExpired):
            assert position_of(error.value.earliest).lsn == first
        else:
            assert lsn < served.state(name).created_lsn


def test_a_keyed_table_is_read_from_its_log_start_on(served: Served) -> None:
    lake = served.lake
    table = lake.create_table(KEYED, ROWS, primary_key=["id"], buckets=2, retention="7d")
    lake.create_table(LOG, SCHEMA, buckets=1)
    check_every_position(served, KEYED)
    tokens, times = list[str](), list[str]()
    for number in range(6):
        served.clock.advance(60)
        tokens.append(str(table.upsert([{"id": number % 3, "v": number}])))
        times.append(text_of(served.engine.now_us()))
    start = move_log_start(served.engine, KEYED, position_of(tokens[3]).lsn)
    check_every_position(served, KEYED)
    sql = f"SELECT count(*) AS n FROM {KEYED} JOIN {LOG} ON id = log.v"
    reads: dict[str, Callable[[str], Any]] = {
        "scan": lambda at: table.scan(at=at).to_arrow(),
        "lookup": lambda at: table.lookup([{"id": 1}], at=at),
        "lookup of several": lambda at: table.lookup([{"id": 1}, {"id": 2}], at=at),
        "sql": lambda at: lake.sql(sql, at=at),
        "lake.at": lambda at: lake.at(at).scan(KEYED).count(),
        "changes": lambda at: list(table.changes(at, until="now")),
    }
    for name, read in reads.items():
        for at in (tokens[2], times[2]):
            with pytest.raises(PositionExpired) as error:
                read(at)
            assert position_of(error.value.earliest).lsn == start, name
            read(error.value.earliest)
            read(times[3] if name != "changes" else times[4])
    with pytest.raises(PositionExpired, match=r"retention of 7d, and LSN .* a longer retention keeps more"):
        table.scan(at=tokens[0]).count()


def test_the_earliest_position_is_that_of_all_tables_of_the_query(served: Served) -> None:
    names = ["t.a", "t.b"]
    for name in names:
        served.lake.create_table(name, ROWS, primary_key=["id"], buckets=1)
    first = served.lake.table("t.a").upsert([{"id": 1, "v": 1}])
    served.lake.table("t.b").upsert([{"id": 1, "v": 1}])
    starts = [move_log_start(served.engine, name) for name in names]
    with pytest.raises(PositionExpired) as error:
        served.lake.sql("SELECT * FROM t.a JOIN t.b USING (id)", at=first)
    assert position_of(error.value.earliest).lsn == max(starts)
    assert len(served.lake.sql("SELECT * FROM t.a JOIN t.b USING (id)", at=error.value.earliest)) == 1


@pytest.mark.parametrize("forgets", [False, True])
def test_a_log_table_needs_a_snapshot_of_its_columns_where_the_log_has_gone(served: Served, forgets: bool) -> None:
    lake = served.lake
    lake.create_table(LOG, SCHEMA, buckets=2, bucket_key=["v"], retention="7d")
    for each in range(4):
        served.append(LOG, each, each + 1)
    older = served.tier(LOG)
    served.append(LOG, 7)
    lake.table(LOG).alter(add={"w": pa.int64()})
    altered = served.engine.view.lsn
    served.append(LOG, 8)
    served.tier(LOG)
    served.append(LOG, 9)
    check_every_position(served, LOG)
    start = move_log_start(served.engine, LOG, altered - 3)
    if forgets:
        pointer = served.engine.view.pointers["t", "log"]
        gone = SetPointer("t", "log", pointer.location, pointer, (), (older,))
        served.server.catalog.ledger.commit(CatalogChange((gone,)))
    check_every_position(served, LOG)
    assert reach(served, LOG) == (altered if forgets else start)
    with pytest.raises(LakestoreError, match="no snapshot of its older columns" if forgets else "its log starts"):
        lake.table(LOG).scan(at=token(served, start - 1)).count()


def test_describe_and_status_say_since_when_and_why(served: Served) -> None:
    table = served.lake.create_table(KEYED, ROWS, primary_key=["id"], buckets=1)
    address = served.server.about["grpc"]

    def described() -> str:
        done = CliRunner().invoke(cli, ["describe", KEYED, "--server", address])
        assert done.exit_code == 0, done.output
        [line] = [line for line in done.output.splitlines() if line.startswith("readable from")]
        return line

    assert described().endswith(", because it was created then")
    served.clock.advance(60)
    table.upsert([{"id": 1, "v": 1}])
    start = move_log_start(served.engine, KEYED)
    assert described().endswith(", because its log starts there, by an earlier retention")
    status = served.server.service.status.now([KEYED]).tables[0].as_dict()
    assert (status["reads_from_lsn"], position_of(status["reads_from_token"]).lsn) == (start, start)
    assert text_of(status["reads_from_us"])[:19].replace("T", " ") in described()
    assert served.lake.transport.status(pb.StatusRequest(tables=[KEYED])).status.count("reads_from_why") == 1


def test_the_command_line_reads_at_a_position_and_refuses_less_than_is_required(served: Served) -> None:
    table = served.lake.create_table(KEYED, ROWS, primary_key=["id"], buckets=1)
    first = str(table.upsert([{"id": 1, "v": 1}]))
    served.clock.advance(60)
    table.upsert([{"id": 2, "v": 2}])
    served.clock.advance(60)
    count, address = f"SELECT count(*) AS n FROM {KEYED}", ["--server", served.server.about["grpc"]]
    for asked in (["read", KEYED, "--count"], ["sql", count, "--json"]):
        done = CliRunner().invoke(cli, [*asked, "--at", first, "--require-freshness", "5m", *address])
        assert done.exit_code == 0, done.output
        assert asked[0] == "sql" or done.output.strip() == "1"
        for demand in (
            ["--require-freshness", "10s"],
            ["--require-complete-through", text_of(served.engine.now_us() - 1)],
        ):
            refused = CliRunner().invoke(cli, [*asked, "--at", first, *demand, *address])
            assert isinstance(refused.exception, NotFresh), refused.output
