"""Which consumer reads which bucket: total, balanced, sticky, the same for the same input."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore_server.changes.sharing.members import Bucket, assign
from tests.support.seeds import examples

names = st.sets(st.sampled_from("abcdefgh"), min_size=1)
counts = st.integers(0, 20)


def buckets_of(count: int) -> list[Bucket]:
    return [(f"t{i % 2}", i // 2) for i in range(count)]


@st.composite
def situations(draw: st.DrawFn) -> tuple[set[str], list[Bucket], dict[Bucket, str]]:
    buckets = buckets_of(draw(counts))
    before = {bucket: draw(st.sampled_from("abcdefghij")) for bucket in buckets if draw(st.booleans())}
    return draw(names), buckets, before


@given(situations())
def test_every_bucket_has_one_member_and_shares_differ_by_one_at_most(
    situation: tuple[set[str], list[Bucket], dict[Bucket, str]],
) -> None:
    members, buckets, before = situation
    after = assign(members, buckets, before)
    assert set(after) == set(buckets)
    assert set(after.values()) <= members
    sizes = [list(after.values()).count(member) for member in members]
    assert max(sizes) - min(sizes) <= 1


@given(situations())
def test_no_balanced_assignment_moves_fewer_buckets(
    situation: tuple[set[str], list[Bucket], dict[Bucket, str]],
) -> None:
    members, buckets, before = situation
    after = assign(members, buckets, before)
    stays = sum(after[bucket] == before.get(bucket) for bucket in buckets)
    each, more = divmod(len(buckets), len(members))
    held = Counter(member for bucket, member in before.items() if member in members)
    most = sum(min(held[member], each) for member in members)
    most += min(more, sum(held[member] > each for member in members))
    assert stays == most


@given(situations())
def test_the_order_in_which_members_are_named_does_not_matter(
    situation: tuple[set[str], list[Bucket], dict[Bucket, str]],
) -> None:
    members, buckets, before = situation
    assert assign(sorted(members), buckets, before) == assign(sorted(members, reverse=True), buckets, before)


@given(situations())
def test_what_is_balanced_stays_as_it_is(situation: tuple[set[str], list[Bucket], dict[Bucket, str]]) -> None:
    members, buckets, before = situation
    after = assign(members, buckets, before)
    assert assign(members, buckets, after) == after


@settings(max_examples=examples(50))
@given(names, counts, st.data())
def test_one_who_leaves_moves_its_own_buckets_only(members: set[str], count: int, data: st.DataObject) -> None:
    before = assign(members, buckets_of(count), {})
    gone = data.draw(st.sampled_from(sorted(members)))
    after = assign(members - {gone}, buckets_of(count), before)
    assert all(after[b] == m for b, m in before.items() if m != gone and after)


def test_more_members_than_buckets_leave_some_idle() -> None:
    after = assign("abcd", buckets_of(2), {})
    assert sorted(after.values()) == ["a", "b"]
    assert sorted(assign("bcd", buckets_of(2), after).values()) == ["b", "c"]


def test_nobody_gets_nothing() -> None:
    assert assign([], buckets_of(3), {}) == {}
