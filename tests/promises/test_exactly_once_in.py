"""Promise 8: a batch of a producer, or one that moves registers, is applied once, however often it is sent and whoever
crashes in between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakestore.errors import Conflict, Fenced
from lakestore.model.token import position_of
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([("v", pa.int64())])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("again"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["kill", "restart", "checkpoint"]), st.just(0)),
    ),
    min_size=1,
    max_size=14,
)


def request(epoch: int, sequence: int) -> pb.CommitRequest:
    """The producer's batch of that number: three rows."""
    values = [sequence * 10 + row for row in range(3)]
    rows = ipc.encode(SCHEMA, [pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)])
    change = pb.Change(table="a.log", kind=pb.APPEND, rows=rows, crc32c=ipc.crc32c(rows))
    progress = f"batch {sequence}"
    return pb.CommitRequest(changes=[change], producer="p", epoch=epoch, sequence=sequence, progress=progress)


def sent_again_after(*between: str) -> list[tuple[str, int]]:
    """Two batches, what happens then, and both again."""
    return [("send", 0), ("send", 0), *((verb, 0) for verb in between), ("again", 0), ("again", 1), ("send", 0)]


class Moves:
    """Batches that move two registers, the second one only every other time."""

    def __init__(self, served: Served) -> None:
        asked = pb.OpenRegistersRequest(registers=["k/0", "k/1"])
        self.opened = served.lake.transport.open_registers(asked)
        self.at = {"k/0": ("", 0), "k/1": ("", 0)}

    def request(self, number: int) -> pb.CommitRequest:
        """The batch of that number, from where the registers are."""
        made = pb.CommitRequest(changes=request(0, number).changes, timeline=self.opened.timeline)
        for name in ("k/0", "k/1")[: 1 + number % 2]:
            before, moved = self.at[name]
            epoch, after = self.opened.epoch, str(number)
            made.registers.add(register=name, epoch=epoch, before=before, after=after, moved=moved)
        return made

    def done(self, made: pb.CommitRequest, token: str) -> None:
        """Go on from where a batch has led."""
        self.at |= {move.register: (move.after, position_of(token).lsn) for move in made.registers}


@given(STEPS)
@example(sent_again_after())
@example(sent_again_after("kill"))
@example(sent_again_after("checkpoint", "kill"))
@example(sent_again_after("restart"))
@settings(max_examples=8)
def test_a_batch_that_moves_registers_is_applied_once_and_a_later_one_is_not_passed_over(
    steps: list[tuple[str, int]],
) -> None:
    with TemporaryDirectory() as folder, Served(Path(folder) / "data") as served:
        served.lake.create_table("a.log", schema=SCHEMA, buckets=1)
        moves, sent, tokens = Moves(served), list[pb.CommitRequest](), list[str]()
        for verb, back in steps:
            commit = served.lake.transport.commit
            if verb == "send":
                sent.append(moves.request(len(sent) + 1))
                tokens.append(commit(sent[-1]).token)
                moves.done(sent[-1], tokens[-1])
            elif verb == "again" and back < len(sent):
                again = len(sent) - 1 - back
                try:
                    answer = commit(sent[again])
                except Conflict:
                    assert back, "the newest batch is known again"  # a register has gone on since
                else:
                    assert (answer.token, answer.is_repeated) == (tokens[again], True)
            elif verb == "checkpoint":
                served.checkpoint()
            elif verb == "restart":
                served.restart()
            elif verb == "kill":
                served.kill()
                served.start()
        assert served.values("a.log") == [n * 10 + row for n in range(1, len(sent) + 1) for row in range(3)]
        later = moves.request(len(sent) + 1)
        reopened = Moves(served).opened
        assert [held.value for held in reopened.registers] == [moves.at["k/0"][0], moves.at["k/1"][0]]
        with pytest.raises(Fenced):
            served.lake.transport.commit(later)


@given(STEPS)
@example(sent_again_after())
@example(sent_again_after("kill"))
@example(sent_again_after("checkpoint", "kill"))
@example(sent_again_after("restart"))
@settings(max_examples=examples(20))
def test_a_batch_that_is_sent_again_is_answered_as_at_first_and_applied_once(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, Served(Path(folder) / "data") as served:
        served.lake.create_table("a.log", schema=SCHEMA, buckets=1)
        epoch = served.lake.transport.open_producer(pb.OpenProducerRequest(producer="p")).epoch
        answers: list[pb.CommitAnswer] = []
        for verb, back in steps:
            commit = served.lake.transport.commit
            if verb == "send":
                answers.append(commit(request(epoch, len(answers) + 1)))
            elif verb == "again" and back < len(answers):
                sequence = len(answers) - back
                assert commit(request(epoch, sequence)) == answers[sequence - 1], "another answer than the first"
            elif verb == "checkpoint":
                served.checkpoint()
            elif verb == "restart":
                served.restart()
            elif verb == "kill":
                served.kill()
                served.start()
        assert served.values("a.log") == [n * 10 + row for n in range(1, len(answers) + 1) for row in range(3)]
        opened = served.lake.transport.open_producer(pb.OpenProducerRequest(producer="p"))
        assert opened.progress == (f"batch {len(answers)}" if answers else "")
        with pytest.raises(Fenced):
            served.lake.transport.commit(request(epoch, len(answers) + 1))
