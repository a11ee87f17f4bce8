"""The search for an order, held against every order of small histories, and against examples that are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen.checkers.counterexample import check_keys, counterexample
from jepsen.checkers.linear import IMPOSSIBLE, Answer, Impossible, State, Step, search
from jepsen.operation import NEVER
from tests.support.seeds import examples


def register(state: State, asked: object, answer: object) -> State | Impossible:
    """A register of `read`, `write v`, and `cas from to` that says whether it did."""
    assert isinstance(asked, tuple)
    if asked[0] == "read":
        return state if answer == state else IMPOSSIBLE
    if asked[0] == "write":
        return int(asked[1])
    does = asked[1] == state
    if answer is not None and answer != does:
        return IMPOSSIBLE
    return int(asked[2]) if does else state


def step(operation: int, begins: int, ends: float, asked: tuple[object, ...], answer: object = None) -> Step:
    """A call whose places are its times."""
    reads = asked[0] == "read"
    return Step(begins, ends, asked, answer, operation, reads, operation=operation, seconds=(begins, ends))


def has_order(steps: Sequence[Step]) -> bool:
    """Whether any order of all known calls and of some unknown ones is possible: every one is tried."""
    known = [each for each in steps if each.known]
    maybe = [each for each in steps if not each.known and not each.reads]
    for chosen in range(1 << len(maybe)):
        taken = [*known, *(each for at, each in enumerate(maybe) if chosen >> at & 1)]
        if any(is_possible(order) for order in permutations(taken)):
            return True
    return False


def is_possible(order: Sequence[Step]) -> bool:
    """Whether an order keeps real time, its `after`s and the model."""
    state: State = 0
    latest, behind = -1, set[int]()
    for each in order:
        if each.ends < latest or (each.after >= 0 and each.after not in behind):
            return False
        latest = max(latest, each.begins)
        behind.add(each.operation)
        found = register(state, each.asked, each.answer)
        if isinstance(found, Impossible):
            return False
        state = found
    return True


ASKED = st.one_of(
    st.just(("read",)),
    st.tuples(st.just("write"), st.integers(0, 2)),
    st.tuples(st.just("cas"), st.integers(0, 2), st.integers(0, 2)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Up to six calls in any overlap, with answers that may be wrong, reads at tokens among them."""
    count = draw(st.integers(1, 6))
    places = draw(st.permutations(range(2 * count)))
    found = list[Step]()
    for operation in range(count):
        begins, ends = sorted(places[2 * operation : 2 * operation + 2])
        asked = draw(ASKED)
        answer = draw(st.integers(0, 2) if asked[0] == "read" else st.booleans() if asked[0] == "cas" else st.none())
        is_known = asked[0] == "read" or draw(st.integers(0, 3)) > 0
        made = step(operation, begins, ends if is_known else NEVER, asked, answer if is_known else None)
        found.append(made)
    writes = [each for each in found if each.known and not each.reads]
    if writes and count < 6 and draw(st.booleans()):
        of = draw(st.sampled_from(writes))
        at = Step(of.begins, of.ends, ("read",), draw(st.integers(0, 2)), 9, True, of.operation, operation=9)
        found.append(at)
    return found


@settings(max_examples=examples(400), deadline=None)
@given(histories())
def test_the_search_agrees_with_every_order(steps: list[Step]) -> None:
    found = search(register, 0, steps)
    assert (found.answer is Answer.POSSIBLE) == has_order(steps)
    if found.answer is Answer.POSSIBLE:
        assert is_possible(found.order)
        assert {each.operation for each in steps if each.known} <= {each.operation for each in found.order}
    else:
        small = counterexample(register, 0, "k", steps)
        assert small.found.answer is Answer.IMPOSSIBLE
        assert len(small.steps) <= len(steps)
        assert not has_order([each for each in steps if each.operation in {known.operation for known in small.steps}])


def test_known_examples() -> None:
    """Those of Porcupine's own tests: overlapping writes whose order the reads agree on, or do not."""
    good = [
        step(0, 0, 100, ("write", 100)),
        step(1, 25, 75, ("read",), 100),
        step(2, 30, 60, ("read",), 0),
    ]
    bad = [
        step(0, 0, 100, ("write", 200)),
        step(1, 10, 30, ("read",), 200),
        step(2, 40, 90, ("read",), 0),
    ]
    assert search(register, 0, good).answer is Answer.POSSIBLE
    assert search(register, 0, bad).answer is Answer.IMPOSSIBLE


def test_an_unknown_write_may_come_late_or_never_but_not_go_again() -> None:
    late = [
        step(0, 0, NEVER, ("write", 1)),
        step(1, 1, 2, ("read",), 0),
        step(2, 3, 4, ("write", 2)),
        step(3, 5, 6, ("read",), 1),
    ]
    gone = [*late, step(4, 7, 8, ("read",), 2)]
    assert search(register, 0, late).answer is Answer.POSSIBLE
    assert search(register, 0, gone).answer is Answer.IMPOSSIBLE


def test_a_counterexample_has_only_the_calls_that_matter() -> None:
    chance = random.Random(1)
    steps, value = list[Step](), 0
    for number in range(60):
        asked, answer = (("write", value := number), None) if chance.random() < 0.5 else (("read",), value)
        steps.append(step(number, 2 * number, 2 * number + 1, asked, answer))
    steps += [step(60, 200, 201, ("write", 77)), step(61, 202, 203, ("read",), 5), step(62, 204, 205, ("read",), 5)]
    found = counterexample(register, 0, "k7", steps)
    written, over, read = (each.operation for each in found.steps)
    assert (written, read) == (5, 61)
    assert steps[over].asked != ("read",)
    assert "key k7" in found.sentence
    assert [str(each) for each in found.found.stuck] == ["read -> 5 (process 61, 202.0000-203.0000 s)"]
    assert [bar["stuck"] for bar in found.picture["bars"]][-1]


def test_a_budget_ends_in_unknown() -> None:
    steps = [step(number, number, 1000 + number, ("write", number)) for number in range(24)]
    steps.append(step(99, 5000, 5001, ("read",), 777))
    assert search(register, 0, steps, budget=500).answer is Answer.UNKNOWN
    assert check_keys(register, 0, {"k": steps}, budget=500).undecided == ("k",)


def linear_history(chance: random.Random, processes: int, calls: int, unknown: float) -> list[Step]:
    """A history of a real register: each call takes effect between its ends, some without an answer."""
    now, events = 0.0, list[tuple[float, float, float, tuple[object, ...]]]()
    free = [0.0] * processes
    for _ in range(calls):
        process = min(range(processes), key=free.__getitem__)
        begins = free[process] + chance.random()
        effect = begins + chance.random() * 3
        ends = effect + chance.random() * 3
        free[process] = ends
        drawn = chance.random()
        asked: tuple[object, ...] = ("read",) if drawn < 0.5 else ("write", len(events) + 1)
        asked = ("cas", chance.randrange(len(events) + 1), -len(events)) if drawn > 0.9 else asked
        events.append((begins, effect, ends, asked))
        now = max(now, ends)
    state: State = 0
    answers = dict[int, object]()
    for number in sorted(range(calls), key=lambda each: events[each][1]):
        asked = events[number][3]
        answers[number] = state if asked[0] == "read" else state == asked[1] if asked[0] == "cas" else None
        after = register(state, asked, answers[number])
        assert not isinstance(after, Impossible)
        state = after
    moments = sorted({moment for begins, _, ends, _ in events for moment in (begins, ends)})
    places = {moment: place for place, moment in enumerate(moments)}
    found = list[Step]()
    for number, (begins, _, ends, asked) in enumerate(events):
        lost = asked[0] != "read" and chance.random() < unknown
        until = NEVER if lost else places[ends]
        found.append(step(number, places[begins], until, asked, None if lost else answers[number]))
    return found


def test_ten_thousand_calls_of_a_hundred_keys_are_decided() -> None:
    chance = random.Random(3)
    keys = {key: linear_history(chance, 5, 100, 0.05) for key in range(100)}
    found = check_keys(register, 0, keys)
    assert (found.counterexamples, found.undecided, found.steps) == ((), (), 10_000)
