"""The sink of Spark without Spark: tasks, drivers and their replays, in any order that Spark may have them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.datasource import WriterCommitMessage

import lakestore as ls
from lakestore.client import parts as client_parts
from lakestore.errors import Conflict, Corrupt, Fenced, Invalid, LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source import table_writer
from lakestore_spark.source.lakestore_source import LakestoreSource
from lakestore_spark.source.table_writer import RUNS_KEPT, Epoch, StreamWriter, TableWriter, TaskParts, register_of
from tests.support.seeds import seeded
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
SPARK = st.StructType().add("id", "long").add("v", "long")
CHANGED = st.StructType().add("__change", "string").add("id", "long").add("v", "long").add("__offset", "long")


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("sink") / "data", limits=Limits(commit_rows=1_000), ports=True) as served:
        yield served


@pytest.fixture(name="tables")
def _tables(served: Served, request: pytest.FixtureRequest) -> Iterator[tuple[ls.Table, ls.Table]]:
    log = served.lake.create_table("k.log", SCHEMA, buckets=2)
    keyed = served.lake.create_table("k.keyed", SCHEMA, primary_key=["id"], buckets=2)
    yield log, keyed
    served.lake.drop_table("k.log")
    served.lake.drop_table("k.keyed")
    served.lake.drop_registers([each.name for each in served.lake.list_registers("spark/")])
    served.lake.transport.drop_parts(pb.DropPartsRequest(parts=list(served.engine.parts._parts)))


def source(served: Served, table: str, **options: str) -> LakestoreSource:
    return LakestoreSource({"server": served.server.about["grpc"], "table": table, **options})


def job(served: Served, table: str, schema: st.StructType = SPARK) -> TableWriter:
    made = source(served, table).writer(schema, overwrite=False)
    assert isinstance(made, TableWriter)
    return made


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in (0, 1)]
    return pa.record_batch(columns, schema=SCHEMA)


def held(table: ls.Table) -> list[tuple[int, int]]:
    rows = table.scan().to_arrow().to_pylist()
    return sorted((row["id"], row["v"]) for row in rows)


class Run:
    """One start of a streaming query: a driver that makes its writer anew for each step, as Spark does."""

    def __init__(self, served: Served, run: str, query: str = "q", table: str = "k.log", **options: str) -> None:
        self._source, self._run, self._query = source(served, table, **options), run, query

    def _writer(self) -> StreamWriter:
        made = self._source.streamWriter(SPARK, overwrite=False)
        found: StreamWriter = pickle.loads(pickle.dumps(made))
        return found

    def task(self, *batches: pa.RecordBatch) -> TaskParts:
        done = replace(self._writer().write(iter(batches)), query=self._query, run=self._run)
        sent: TaskParts = pickle.loads(pickle.dumps(done))
        return sent

    def fails(self) -> None:
        """A task that fails when it has uploaded some of its rows."""
        self._writer().write(_failing())

    def commit(self, number: int, *messages: WriterCommitMessage | None) -> None:
        self._writer().commit(list(messages), number)

    def batch(self, number: int, *rows: tuple[int, int]) -> None:
        self.commit(number, *[self.task(batch(row)) for row in rows])

    def abort(self, number: int, *messages: WriterCommitMessage | None) -> None:
        self._writer().abort(list(messages), number)


def test_a_batch_that_is_asked_for_again_is_a_no_op(served: Served, tables: tuple[ls.Table, ls.Table]) -> None:
    log, _ = tables
    run = Run(served, "run-1")
    tasks = [run.task(batch((1, 1))), run.task(batch((2, 2)))]
    before = served.engine.view.lsn
    run.commit(0, *tasks)
    assert served.engine.view.lsn == before + 2  # the register is opened, then one commit
    run.commit(0, *tasks)  # the same tasks
    run.batch(0, (1, 1), (2, 2))  # run again, by the same run
    Run(served, "run-2").batch(0, (1, 1), (2, 2))  # and by the next one
    assert held(log) == [(1, 1), (2, 2)]
    assert served.engine.parts.count == 0


def test_a_run_that_another_one_took_over_from_is_fenced(served: Served, tables: tuple[ls.Table, ls.Table]) -> None:
    log, _ = tables
    first, second = Run(served, "run-1"), Run(served, "run-2")
    first.batch(0, (0, 0))
    first.batch(1, (1, 1))
    second.batch(1, (1, 1))  # replayed: from here on the query is the second run's
    for number in (1, 2, 3):
        with pytest.raises(Fenced, match="another run"):
            first.batch(number, (9, 9))
    second.batch(2, (2, 2))
    with pytest.raises(Fenced, match="another run"):
        first.batch(3, (9, 9))
    with pytest.raises(Conflict, match="older than its table"):
        second.batch(1, (9, 9))
    assert held(log) == [(0, 0), (1, 1), (2, 2)]


def test_queries_do_not_meddle_and_a_new_checkpoint_is_a_new_query(
    served: Served, tables: tuple[ls.Table, ls.Table]
) -> None:
    log, _ = tables
    for query in ("a", "b"):
        Run(served, "run-1", query).batch(7, (7, 7))
    assert held(log) == [(7, 7), (7, 7)]
    served.lake.registers(["spark/c"])
    with served.lake.registers(["spark/c"]).commit({"spark/c": "mine"}):
        pass
    with pytest.raises(Corrupt, match="no sink of Spark wrote"):
        Run(served, "run-1", "c").batch(0, (1, 1))


def test_only_the_tasks_that_spark_counts_are_committed(served: Served, tables: tuple[ls.Table, ls.Table]) -> None:
    log, _ = tables
    run = Run(served, "run-1")
    slow, fast = run.task(batch((1, 1))), run.task(batch((1, 1)))
    other = run.task(batch((2, 2)), batch((3, 3)))
    with pytest.raises(ValueError, match="a task fails"):
        run.fails()
    run.commit(0, fast, other)
    assert held(log) == [(1, 1), (2, 2), (3, 3)]
    assert list(served.engine.parts._parts) == [change.part for change in slow.parts()]
    served.clock.advance(served.engine.limits.part_seconds + 1)
    served.run()
    assert served.engine.parts.count == 0


def _failing() -> Iterator[pa.RecordBatch]:
    for _ in range(3):
        yield batch(*[(number, 0) for number in range(600)])
    raise ValueError("a task fails")


def test_a_failed_task_and_an_aborted_job_leave_nothing(
    served: Served, tables: tuple[ls.Table, ls.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = tables
    monkeypatch.setattr(client_parts, "PART_BYTES", 4_000)
    run = Run(served, "run-1")
    with pytest.raises(ValueError, match="a task fails"):
        run.fails()
    run.abort(0, run.task(batch((1, 1))), None)
    writer = job(served, "k.log")
    writer.abort([writer.write(iter([batch((1, 1))])), None])
    assert (served.engine.parts.count, held(log)) == (0, [])
    done = run.task(batch((1, 1)))
    run.commit(0, done)
    run.abort(0, done)  # Spark aborts after a commit whose outcome it did not learn
    assert held(log) == [(1, 1)]


def test_a_job_is_one_commit_in_the_order_of_its_partitions(
    served: Served, tables: tuple[ls.Table, ls.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, keyed = tables
    monkeypatch.setattr(client_parts, "PART_BYTES", 1_000)
    writer = job(served, "k.keyed")
    later = writer.write(iter([batch((1, 2), *((number, 2) for number in range(100, 400)))]))
    first = writer.write(iter([batch((1, 1), (2, 1))]))
    before = served.engine.view.lsn
    writer.commit([first, later, writer.write(iter([]))])
    assert served.engine.view.lsn == before + 1
    assert held(keyed)[:3] == [(1, 2), (2, 1), (100, 2)]
    with pytest.raises(Conflict, match="committed once"):
        writer.commit([first])
    many = [writer.write(iter([batch(*[(number, 3) for number in range(600)])])) for _ in range(2)]
    with pytest.raises(Invalid, match=r"1200 rows, more than limits\.commit_rows=1000"):
        writer.commit(many)
    assert held(keyed)[0] == (1, 2)


def changes(*rows: tuple[str | None, int, int]) -> pa.RecordBatch:
    kinds, ids, values = zip(*rows, strict=True)
    columns = [pa.array(kinds, pa.string()), pa.array(ids, pa.int64()), pa.array(values, pa.int64())]
    return pa.record_batch([*columns, columns[1]], names=["__change", "id", "v", "__offset"])


@pytest.mark.parametrize("engine", ["upsert", "partial", "first_row"])
def test_changes_are_applied_in_the_order_of_each_key(served: Served, engine: str) -> None:
    chance = seeded(7)
    for _ in range(2):
        table = served.lake.create_table("k.cdc", SCHEMA, primary_key=["id"], buckets=2, merge=engine)
        twin = served.lake.create_table("k.twin", SCHEMA, primary_key=["id"], buckets=2, merge=engine)
        kinds = ("+I", "-U", "+U", "-D")
        rows = [(chance.choice(kinds), chance.randrange(12), number) for number in range(80)]
        for kind, key, value in rows:
            if kind == "-D":
                twin.delete([{"id": key}])
            elif kind != "-U":
                twin.upsert([{"id": key, "v": value}])
        writer = job(served, "k.cdc", CHANGED)
        before = served.engine.view.lsn
        writer.commit([writer.write(iter([changes(*rows[:40]), changes(*rows[40:])]))])
        assert served.engine.view.lsn == before + 1
        assert held(table) == held(twin)
        for name in ("k.cdc", "k.twin"):
            served.lake.drop_table(name)


def test_keys_of_one_hash_keep_their_order() -> None:
    deletes = np.array([False, True, False, False, True, True, False])
    hashes = np.array([5, 5, 5, 6, 5, 6, 6], dtype=np.int32)
    assert table_writer._turns(hashes, deletes).tolist() == [0, 1, 2, 0, 3, 1, 2]
    assert table_writer._turns(hashes[:0], deletes[:0]).tolist() == []


def refusal(served: Served, table: str, schema: st.StructType, *, overwrite: bool = False, **options: str) -> str:
    with pytest.raises(LakestoreError) as error:
        source(served, table, **options).writer(schema, overwrite=overwrite)
    return error.value.message


def test_what_the_driver_can_see_is_refused_before_a_task_runs(
    served: Served, tables: tuple[ls.Table, ls.Table]
) -> None:
    wrong = st.StructType().add("id", "long").add("w", "long")
    assert "has no column 'w'" in refusal(served, "k.log", wrong)
    keeps = st.StructType([*SPARK.fields, st.StructField("__keep_v", st.BooleanType())])
    assert "has no column '__keep_v'" in refusal(served, "k.keyed", keeps)
    assert "'id', which it needs" in refusal(served, "k.keyed", st.StructType().add("v", "long"))
    assert "is not overwritten" in refusal(served, "k.log", SPARK, overwrite=True)
    assert "modes append and changes, not 'upsert'" in refusal(served, "k.log", SPARK, mode="upsert")
    assert "modes upsert, delete and changes" in refusal(served, "k.keyed", SPARK, mode="append")
    assert "option mode is one of" in refusal(served, "k.keyed", SPARK, mode="merge")
    assert "needs the column '__change'" in refusal(served, "k.keyed", SPARK, mode="changes")
    assert "would take all of them as upserts" in refusal(served, "k.keyed", CHANGED, mode="upsert")
    assert "is not one of df.write" in refusal(served, "k.keyed", SPARK, columns="id")
    assert "no option 'speed'" in refusal(served, "k.keyed", SPARK, speed="1")


def test_values_and_changes_that_a_table_does_not_take_fail_the_task(
    served: Served, tables: tuple[ls.Table, ls.Table]
) -> None:
    keyed = job(served, "k.keyed", CHANGED)
    for kind in ("?", None):
        with pytest.raises(Invalid, match="__change is"):
            keyed.write(iter([changes(("+I", 1, 1), (kind, 2, 2))]))
    log = job(served, "k.log", CHANGED)
    with pytest.raises(Invalid, match="'-D' in a row"):
        log.write(iter([changes(("+I", 1, 1), ("-D", 2, 2))]))
    plain = job(served, "k.log")
    with pytest.raises(Invalid, match="'v'"):
        plain.write(iter([pa.record_batch([pa.array([1]), pa.array(["x"])], names=["id", "v"])]))
    log.commit([log.write(iter([changes(("+I", 1, 1))]))])
    assert (held(tables[0]), served.engine.parts.count) == ([(1, 1)], 0)


def test_an_epoch_remembers_the_runs_that_are_over_and_fits_its_register() -> None:
    epoch, runs = Epoch(), [f"{number:013d}-and-more" for number in range(RUNS_KEPT + 60)]
    for number, run in enumerate(runs):
        epoch = Epoch.of(epoch.after(10**15 + number, run, "q").value, "q")
    assert len(epoch.value) < Limits().register_bytes
    for run in runs[60:-1]:
        with pytest.raises(Fenced):
            epoch.after(10**16, run, "q")
    assert epoch.after(10**16, runs[-1], "q").over == epoch.over
    assert register_of("q") == "spark/q"


def test_drivers_that_die_anywhere_and_their_zombies_commit_each_batch_once(
    served: Served, tables: tuple[ls.Table, ls.Table]
) -> None:
    """Two drivers at a time, steps at random, against a model of what Spark's checkpoint promises."""
    log, _ = tables
    chance = seeded(11)
    runs = [Run(served, "run-0")]
    done = -1
    """The last batch of Spark's own log of commits."""
    for step in range(25):
        number = done + 1
        run = chance.choice(runs[-2:])
        try:
            tasks: Sequence[Any] = [run.task(batch((number, part))) for part in range(2)]
            if chance.random() < 0.2:
                continue  # killed before the commit
            run.commit(number, *tasks)
        except Fenced:
            runs.remove(run)
            if not runs:
                runs.append(Run(served, f"run-{step}"))
            continue
        if chance.random() < 0.3:
            runs.append(Run(served, f"run-{step + 1}"))  # killed after it, and begun again
            continue
        done = number
    wanted = [(number, part) for number in range(done + 1) for part in range(2)]
    assert [row for row in held(log) if row[0] <= done] == wanted
    assert len(held(log)) in (len(wanted), len(wanted) + 2)
