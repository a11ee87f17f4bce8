"""The judge of a shared journal: all readers of a log decide alike, and only what the leader meant counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore_server.state.judge import (
    HEADER,
    NOBODY,
    Content,
    CountedMessage,
    ForeignLog,
    Judge,
    Kind,
    Standing,
    messages,
)

PART_BYTES = 8
"""Small, so that most records have several parts."""
LEFT = (0, b"", b"")


@dataclass
class Candidate:
    """A server that reads the log when told to, claims, and appends as if nobody else could."""

    name: int
    judge: Judge = field(default_factory=Judge)
    read: int = 0
    """Messages of the log that it has read."""
    writer: int = 0
    said: Standing = field(default_factory=Standing)
    """The standing after its messages, if all of them count."""
    meant: dict[int, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)
    """Writer to its messages (lsn, meta, body) in order; a leave is `LEFT`."""
    claims: int = 0

    def catch_up(self, log: list[bytes]) -> None:
        for position in range(self.read, len(log)):
            self.judge.take(position, log[position])
        self.read = len(log)

    def claim(self) -> list[bytes]:
        self.claims += 1
        self.writer = self.name << 32 | self.claims
        self.meant[self.writer] = []
        said, self.said = messages(self.judge.standing, Content(Kind.CLAIM, meta=b"me"), self.writer, PART_BYTES)
        return said

    def append(self, lsn: int, size: int) -> list[bytes]:
        meta, body = b"m" * (size % 5), bytes([lsn % 256]) * size
        self.meant[self.writer].append((lsn, meta, body))
        content = Content(Kind.RECORD, lsn, meta, [body])
        said, self.said = messages(self.said, content, self.writer, PART_BYTES)
        return said

    def leave(self) -> list[bytes]:
        self.meant[self.writer].append(LEFT)
        said, self.said = messages(self.said, Content(Kind.LEAVE), self.writer, PART_BYTES)
        return said


def judged(log: list[bytes], standing: Standing | None = None) -> list[CountedMessage]:
    judge = Judge(standing)
    first = judge.standing.position
    taken = (judge.take(position, log[position]) for position in range(first, len(log)))
    return [counted for counted in taken if counted is not None]


def meant_by(candidates: list[Candidate]) -> dict[int, list[tuple[int, bytes, bytes]]]:
    return {writer: said for candidate in candidates for writer, said in candidate.meant.items()}


KINDS = ["read", "read", "claim", "claim", "append", "append", "append", "append", "leave"]
ACTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.integers(0, 30)), max_size=40)
FAULTS = st.lists(st.tuples(st.sampled_from(["drop", "twice", "late", "stranger"]), st.integers(0, 10**6)), max_size=8)


def acted(acts: list[tuple[int, str, int]], candidates: list[Candidate]) -> list[bytes]:
    """The log that the candidates write if nothing goes wrong with it."""
    log: list[bytes] = []
    for lsn, (who, act, size) in enumerate(acts, 1):
        candidate = candidates[who]
        if act == "read":
            candidate.catch_up(log)
        elif act == "claim":
            log += candidate.claim()
        elif candidate.writer:
            log += candidate.leave() if act == "leave" else candidate.append(lsn, size)
    return log


def written(acts: list[tuple[int, str, int]], faults: list[tuple[str, int]]) -> tuple[list[bytes], list[Candidate]]:
    """A log that three candidates wrote, with messages that got lost, doubled, late, or came from elsewhere."""
    candidates = [Candidate(name) for name in range(3)]
    log = acted(acts, candidates)
    for fault, chance in faults:
        if not log:
            break
        at = chance % len(log)
        if fault == "drop":
            del log[at]
        elif fault == "twice":
            log.insert(min(at + chance % 5, len(log)), log[at])
        elif fault == "late":
            log.insert(min(at + 1 + chance % 5, len(log)), log.pop(at))
        else:
            log.insert(at, b"a stranger's message, as long as one of ours or longer than it, whatever it says")
    return log, candidates


@given(ACTS, FAULTS)
def test_what_counts_is_a_beginning_of_what_each_leader_meant(
    acts: list[tuple[int, str, int]], faults: list[tuple[str, int]]
) -> None:
    log, candidates = written(acts, faults)
    counted = judged(log)
    assert [each.after.number for each in counted] == list(range(1, len(counted) + 1))
    meant = meant_by(candidates)
    epoch, writer = 0, 0
    seen: dict[int, list[tuple[int, bytes, bytes]]] = {}
    for each in counted:
        if each.kind is Kind.CLAIM:
            assert each.after.epoch == epoch + 1
            epoch, writer = each.after.epoch, each.after.writer
            assert writer not in seen, "a claim counts once"
            seen[writer] = []
            continue
        assert writer != NOBODY, "nobody leads"
        seen[writer].append((each.lsn, *each.record()))
        writer = NOBODY if each.kind is Kind.LEAVE else writer
        assert (each.after.epoch, each.after.writer) == (epoch, writer)
    for writer, said in seen.items():
        assert said == meant[writer][: len(said)]


@given(ACTS, FAULTS, st.integers(0, 10**6))
def test_a_reader_that_continues_from_a_place_judges_like_one_that_read_everything(
    acts: list[tuple[int, str, int]], faults: list[tuple[str, int]], chance: int
) -> None:
    log, _ = written(acts, faults)
    counted = judged(log)
    at = chance % (len(counted) + 1)
    standing = counted[at - 1].after if at else Standing()
    assert Standing.parse(str(standing)) == standing
    assert judged(log, standing) == counted[at:]


def sealed(head: bytes, data: bytes) -> bytes:
    """A message with these bytes in its header, whose checksum fits."""
    return head + crc32c(data, crc32c(head)).to_bytes(4, "little") + data


def forged(message: bytes, field: int, by: int = 1) -> bytes:
    """The message with one field of its header changed, and a checksum that fits."""
    values = list(HEADER.unpack_from(message))
    values[field] += by
    return sealed(HEADER.pack(*values)[:-4], message[HEADER.size :])


def test_a_message_with_any_byte_changed_is_refused_or_void() -> None:
    leader = Candidate(1)
    (claim,), (record,) = leader.claim(), leader.append(1, 2)
    for at in range(len(record)):
        judge = Judge()
        assert judge.take(0, claim) is not None
        damaged = record[:at] + bytes([record[at] ^ 16]) + record[at + 1 :]
        if at < 4:
            assert judge.take(1, damaged) is None
        else:
            with pytest.raises(ForeignLog, match="position 1 is damaged"):
                judge.take(1, damaged)


@pytest.mark.parametrize(("name", "field"), [("shard", 4), ("epoch", 5), ("number", 6), ("writer", 7), ("chain", 9)])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_record_counts_only_if_each_field_fits(name: str, field: int, by: int) -> None:
    leader = Candidate(1, Judge(Standing(4, 9, 3, 77), shard=1))
    (claim,) = messages(leader.judge.standing, Content(Kind.CLAIM), 5, PART_BYTES, shard=1)[0]
    held = leader.judge.take(0, claim)
    assert held is not None
    (record,) = messages(held.after, Content(Kind.RECORD, 1, b"m"), 5, PART_BYTES, shard=1)[0]
    assert leader.judge.take(1, forged(record, field, by)) is None
    assert leader.judge.standing == replace(held.after, position=2), name
    assert leader.judge.take(2, record) is not None


@pytest.mark.parametrize("field", [5, 6])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_claim_counts_only_at_the_next_epoch_and_number(field: int, by: int) -> None:
    judge = Judge(Standing(4, 9, 3, 77))
    (claim,) = messages(judge.standing, Content(Kind.CLAIM), 5, PART_BYTES)[0]
    assert judge.take(0, forged(claim, field, by)) is None
    assert judge.take(1, claim) is not None


def test_a_claim_that_has_not_read_everything_is_void() -> None:
    log: list[bytes] = []
    leader, other = Candidate(1), Candidate(2)
    log += leader.claim()
    other.catch_up(log)
    log += leader.append(1, 3)
    log += other.claim()
    assert [each.kind for each in judged(log)] == [Kind.CLAIM, Kind.RECORD]
    other.catch_up(log)
    log += other.claim()
    log += leader.append(2, 3)
    assert [each.after.writer >> 32 for each in judged(log)] == [1, 1, 2]


def test_a_claim_between_the_parts_of_a_record_voids_them() -> None:
    log: list[bytes] = []
    leader, other = Candidate(1), Candidate(2)
    log += leader.claim()
    other.catch_up(log)
    parts = leader.append(1, 3 * PART_BYTES)
    log += [*parts[:2], *other.claim(), *parts[2:]]
    assert [(each.kind, each.after.writer >> 32) for each in judged(log)] == [(Kind.CLAIM, 1), (Kind.CLAIM, 2)]


def test_void_messages_are_counted_and_parts_that_a_claim_voids_keep_no_memory() -> None:
    leader, other, judge = Candidate(1), Candidate(2), Judge()
    log = leader.claim()
    other.catch_up(log)
    parts = leader.append(1, 3 * PART_BYTES)
    log += [*parts[:2], b"a stranger", *other.claim(), *parts[2:]]
    void = []
    for position, message in enumerate(log):
        judge.take(position, message)
        void.append(judge.void)
    assert void == [0, 0, 0, 1, 3, *range(4, 4 + len(parts) - 2)]
    assert not judge._parts


def test_after_a_leave_only_a_claim_counts() -> None:
    log: list[bytes] = []
    leader, other = Candidate(1), Candidate(2)
    log += [*leader.claim(), *leader.append(1, 3), *leader.leave()]
    assert judged(log)[-1].after.writer == NOBODY
    late, _ = messages(judged(log)[-1].after, Content(Kind.RECORD, 2, b"m"), leader.writer, PART_BYTES)
    by_nobody, _ = messages(judged(log)[-1].after, Content(Kind.RECORD, 2, b"m"), NOBODY, PART_BYTES)
    log += [*leader.append(2, 3), *late, *by_nobody]
    assert judged(log)[-1].kind is Kind.LEAVE
    other.catch_up(log)
    log += other.claim()
    assert judged(log)[-1].after.writer == other.writer


def test_the_body_of_a_record_lies_as_arrow_wants_it() -> None:
    leader = Candidate(1)
    for size in range(3, 3 * PART_BYTES, 7):
        log = [*leader.claim(), *leader.append(1, size)]
        leader.catch_up(log)
        meta, body = judged(log)[-1].record()
        assert (meta, body) == leader.meant[leader.writer][0][1:]
        assert body.address % 64 == 0
        leader = Candidate(1)


def test_nothing_counts_before_the_first_claim() -> None:
    record, _ = messages(Standing(), Content(Kind.RECORD, 1, b"m"), NOBODY, PART_BYTES)
    assert judged(record) == []


def test_of_two_claims_at_one_number_the_first_counts() -> None:
    one, two = Candidate(1), Candidate(2)
    log = [*one.claim(), *two.claim()]
    assert [each.after.writer >> 32 for each in judged(log)] == [1]


def test_equal_records_of_two_epochs_are_told_apart() -> None:
    log: list[bytes] = []
    one = Candidate(1)
    log += one.claim()
    log += (late := one.append(1, 2))
    one.catch_up(log)
    log += one.claim()
    assert judged([*log, *late]) == judged(log)


def test_a_log_that_goes_back_is_another_log() -> None:
    judge = Judge(Standing(position=5))
    with pytest.raises(ForeignLog, match="created again"):
        judge.take(4, b"")


def test_a_message_of_a_newer_release_stops_the_reader_before_it_applies_anything() -> None:
    one = Candidate(1)
    (claim,) = one.claim()
    newer = forged(claim, 1)
    judge = Judge()
    with pytest.raises(NewerFormat, match="newer release"):
        judge.take(0, newer)
    assert judge.standing == Standing()


def test_messages_of_another_shard_are_void() -> None:
    said, _ = messages(Standing(), Content(Kind.CLAIM), 7, PART_BYTES, shard=3)
    judge = Judge()
    assert judge.take(0, said[0]) is None
    assert judge.void == 1
    assert Judge(shard=3).take(0, said[0]) is not None


def test_the_report_of_a_void_claim_is_heard_like_any_report() -> None:
    """A server whose reports were lost, and whose claim came too late, still needs the log."""
    heard: list[bytes] = []
    judge = Judge(reported=heard.append)
    (claim,), _ = messages(Standing(), Content(Kind.CLAIM, meta=b"mine"), 1, 1 << 20)
    (late,), _ = messages(Standing(), Content(Kind.CLAIM, meta=b"late"), 2, 1 << 20)
    assert judge.take(0, claim) is not None
    assert judge.take(1, late) is None
    assert heard == [b"late"], "whoever judges hears a claim that counts by its record"
