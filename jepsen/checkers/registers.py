"""Histories of keyed rows, judged: each key is a register with the table's merge engine, and reads are at one cut.

Shapes of values. A *key* is a text; *columns* are {a, b, v}, those that are named; a *row* is [a, b, v].

`write`   {form, kind: upsert | delete, rows: [[key, columns]…]} -> {token, said}, a count's name for a single row
`insert`  {row: [key, columns]} -> {token, said, row}
`lookup`  {keys, by: now | token | snapshot} -> {token, rows: {key: row}, also, torn}; the same for `prefix`, `scan`:
          keys that are not among the rows were absent; keys of None are all keys of the history, and `also` is None
          or what a look-up at the same token gave
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jepsen.anomaly import Anomaly, few
from jepsen.checkers.counterexample import Keys, check_keys
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.checkers.linear import IMPOSSIBLE, Impossible, Model, State, Step
from jepsen.history import History
from jepsen.operation import NEVER, Call, Kind

WRITES = ("write", "insert")
READS = ("lookup", "prefix", "scan")
COLUMNS = ("a", "b", "v")
OWN = "own"
TWIN = "twin"
Row = tuple[Any, ...]


def model(engine: str) -> Model:
    """A key under a merge engine. A state is (row or None, the version that is remembered of a deleted row)."""

    def step(state: Any, asked: Any, answer: Any) -> State | Impossible:
        after: State
        after, said = (state, "") if asked[0] == "read" else _effect(engine, state, asked)
        if asked[0] == "read":
            return after if answer == state[0] else IMPOSSIBLE
        if answer is None or answer == "done":
            return after
        if asked[0] != "insert":
            return after if answer == said else IMPOSSIBLE
        return after if answer == (said, _row_of(after)) else IMPOSSIBLE

    return step


INITIAL: State = (None, None)


def _row_of(state: Any) -> Row | None:
    row: Row | None = state[0]
    return row


def _effect(engine: str, state: Any, asked: Any) -> tuple[Any, str]:
    """The state behind a change, and the name under which its row is counted."""
    kind, columns = asked[0], dict(asked[1])
    row, remembered = state
    held = remembered if row is None else row[2]
    is_old = engine == "versioned" and "v" in columns and held is not None and columns["v"] < held
    if kind == "delete":
        if is_old:
            return state, "not_found" if row is None else "ignored"
        return (None, columns.get("v")), "not_found" if row is None else "deleted"
    if is_old or (row is not None and (kind == "insert" or engine == "first_row")):
        return state, "ignored"
    old = dict(zip(COLUMNS, row, strict=True)) if row is not None and engine == "partial" else {}
    made = tuple({**old, **columns}.get(name) for name in COLUMNS)
    return (made, None), "inserted" if row is None else "updated"


@dataclass
class Facts:
    """The facts that checks ask for."""

    freshness: Freshness
    reads: list[Call] = field(default_factory=list)
    writes: list[Call] = field(default_factory=list)
    """Inserts are among them."""
    keys: set[str] = field(default_factory=set)
    given: dict[str, tuple[int, float, int]] = field(default_factory=dict)
    """Token to the places between which a server had its cut, and the write that it lies behind (-1 for none)."""

    @classmethod
    def of(cls, history: History) -> Facts:
        """The facts of a history."""
        made = cls(Freshness(history, history.calls(*WRITES)))
        for call in history.calls(*WRITES, *READS):
            (made.reads if call.f in READS else made.writes).append(call)
            rows = _rows(call) if call.f not in READS else ()
            made.keys |= {key for key, _ in rows} | set(call.invoked.value.get("keys") or ())
            if call.kind is Kind.OK and call.value["token"] and call.invoked.value.get("by") != "token":
                made._give(call)
        return made

    def _give(self, call: Call) -> None:
        """The call of a token: a write if several were given the token, else the first."""
        assert call.completed is not None
        is_write = call.f not in READS
        if is_write or call.value["token"] not in self.given:
            bound = self.bound(call)
            behind = call.invoked.index if is_write else bound.own
            self.given[call.value["token"]] = bound.place, call.completed.index, behind

    def bound(self, call: Call) -> Bound:
        """The writes that a read must show. A write comes after every write that was acknowledged before it."""
        return self.freshness.bound(call) if call.f in READS else Bound(call.invoked.index)

    def asked(self, call: Call) -> Iterable[str]:
        """The keys that a read was to give."""
        keys = call.invoked.value["keys"]
        return self.keys if keys is None else keys

    def seen(self) -> Iterator[tuple[Call, str, Row | None]]:
        """Every key of every read that was answered, with its row."""
        for call in self.reads:
            if call.kind is Kind.OK:
                for key in self.asked(call):
                    row = call.value["rows"].get(key)
                    yield call, key, None if row is None else tuple(row)


def _rows(call: Call) -> Sequence[Sequence[Any]]:
    value = call.invoked.value
    return [value["row"]] if call.f == "insert" else value["rows"]


def steps(history: History) -> dict[str, list[Step]]:
    """Each key's calls for the search."""
    facts = Facts.of(history)
    found: dict[str, list[Step]] = defaultdict(list)
    for call in facts.writes:
        if call.kind is not Kind.FAIL:
            for key, columns in _rows(call):
                kind = "insert" if call.f == "insert" else call.invoked.value["kind"]
                found[key].append(_step(call, (kind, tuple(sorted(columns.items()))), _told(call), call.ended))
    for call, key, row in facts.seen():
        token, by = call.value["token"], call.invoked.value["by"]
        if by != "token" or not token:
            bound = facts.bound(call)
            found[key].append(_step(call, ("read",), row, call.ended, bound.place, bound.own))
        elif token in facts.given:
            begins, ends, behind = facts.given[token]
            if ends != NEVER:
                found[key].append(_step(call, ("read",), row, ends, begins, behind))
    return {key: _placed(each) for key, each in found.items()}


def _told(call: Call) -> Any:
    if call.kind is not Kind.OK:
        return None
    if call.f == "insert":
        row = call.value["row"]
        return call.value["said"], None if row is None else tuple(row)
    return call.value["said"] or "done"


def _step(call: Call, asked: Any, answer: Any, ended: float, begins: int = -1, after: int = -1) -> Step:
    completed = call.completed
    return Step(
        begins=call.invoked.index if begins < 0 else begins,
        ends=ended,
        asked=asked,
        answer=answer,
        process=call.process,
        reads=asked[0] == "read",
        after=after,
        operation=call.invoked.index,
        seconds=(call.invoked.time / 1e9, completed.time / 1e9 if completed and ended != NEVER else NEVER),
    )


def _placed(found: list[Step]) -> list[Step]:
    """Without the `after` of reads whose write is of other keys."""
    own = {each.operation for each in found}
    return [each if each.after in own or each.after < 0 else _free(each) for each in found]


def _free(step: Step) -> Step:
    return Step(step.begins, step.ends, step.asked, step.answer, step.process, True, -1, step.operation, step.seconds)


@lru_cache(maxsize=2)
def judge(history: History, engine: str) -> tuple[list[Anomaly], Keys]:
    """All anomalies, of each name the first few, and the verdict of the search; a history is searched once."""
    facts = Facts.of(history)
    found = [each for check in CHECKS for each in check(facts)]
    keys = check_keys(model(engine), INITIAL, steps(history))
    found += [each.anomaly for each in keys.counterexamples]
    if 2 * len(keys.undecided) > keys.keys:
        found.append(Anomaly("undecided", f"the search gave up on {len(keys.undecided)} of {keys.keys} keys"))
    return few(found), keys


def unwritten(facts: Facts) -> Iterator[Anomaly]:
    """A read has a value that nobody wrote to the key, or that a failed write would have written."""
    tried: dict[tuple[str, str, Any], Call] = {}
    for call in facts.writes:
        for key, columns in _rows(call):
            for name, value in columns.items():
                before = tried.setdefault((key, name, value), call)
                if before.kind is Kind.FAIL:
                    tried[key, name, value] = call
    for call, key, row in facts.seen():
        for name, value in zip(COLUMNS, row or (), strict=False):
            writer = tried.get((key, name, value))
            if value is not None and (writer is None or writer.kind is Kind.FAIL):
                anomaly = "phantom" if writer is None else "aborted-read"
                operations = (call.invoked.index, *([writer.invoked.index] if writer else []))
                yield Anomaly(anomaly, f"key {key} was read with {name} {value}, which was not written", operations)
    for call in facts.reads:
        if call.kind is Kind.OK and (alien := set(call.value["rows"]) - set(facts.asked(call))):
            yield Anomaly(
                "phantom", f"a {call.f} gave the row of {min(alien)}, which was not asked for", (call.invoked.index,)
            )


def torn(facts: Facts) -> Iterator[Anomaly]:
    """Columns of one row are of two, or of twins, which are only written together, one read shows different rows."""
    for call in facts.reads:
        if call.kind is not Kind.OK:
            continue
        if call.value["torn"]:
            yield Anomaly(
                "torn-row", f"columns do not belong together in {call.value['torn'][:3]}", (call.invoked.index,)
            )
        asked = set(facts.asked(call))
        for key in sorted(asked):
            other = key.removesuffix("1") + "2"
            if TWIN in key and key.endswith("1") and other in asked:
                first, second = (call.value["rows"].get(each) for each in (key, other))
                if first != second:
                    said = f"a {call.f} shows {key} as {first} and {other}, written with it, as {second}"
                    yield Anomaly("torn-commit", said, (call.invoked.index,))


def changed(facts: Facts) -> Iterator[Anomaly]:
    """Two reads at one token differ, or a scan and the look-up at its token."""
    held: dict[tuple[str, str], tuple[Row | None, int]] = {}
    for call, key, row in facts.seen():
        token = call.value["token"]
        if token:
            before, operation = held.setdefault((token, key), (row, call.invoked.index))
            if before != row:
                said = f"at one token key {key} is {before} and {row}"
                yield Anomaly("cut-changed", said, (operation, call.invoked.index))
        also = call.value["also"]
        if also is not None and (None if key not in also else tuple(also[key])) != row:
            said = f"a {call.f} has key {key} as {row}, and a look-up at the same cut as {also.get(key)}"
            yield Anomaly("lookup-differs", said, (call.invoked.index,))


def sessions(facts: Facts) -> Iterator[Anomaly]:
    """Reads of keys that one process alone writes, ascending, older than what they must show (R31).

    At the leader that is all that was acknowledged or read before. At a follower it is what `freshness` says.
    """
    events = list[tuple[int, str, Call, int]]()
    newest: dict[str, int] = {}
    for call, key, row in facts.seen():
        if OWN in key and call.invoked.value["by"] != "token" and call.completed:
            events.append((call.completed.index, key, call, row[0] if row else -1))
    for call in facts.writes:
        if call.kind is Kind.OK and call.completed:
            for key, columns in _rows(call):
                if OWN in key:
                    events.append((call.completed.index, key, call, columns["a"]))
    events.sort(key=lambda each: each[0])
    history: dict[str, list[tuple[int, int, Call]]] = defaultdict(list)
    for ended, key, call, value in events:
        known = [each for each in history[key] if _is_due(facts, call, *each)]
        latest = max(known, key=lambda each: each[1], default=None)
        if call.f in READS and latest is not None and value < latest[1]:
            name = _session_name(call, latest[2])
            said = f"process {call.process} read {key} as {value}, and {latest[1]} was {latest[2].f} before"
            yield Anomaly(name, said, (latest[2].invoked.index, call.invoked.index))
        if value > newest.get(key, -1):
            newest[key] = value
            history[key].append((ended, value, call))


def _is_due(facts: Facts, call: Call, ended: int, _: int, before: Call) -> bool:
    """Whether a call must show what another one wrote or read."""
    bound = facts.bound(call)
    if not bound.is_late:
        return ended < bound.place
    return before.f not in READS and bound.covers(before)


def _session_name(read: Call, before: Call) -> str:
    if read.process != before.process:
        return "stale-read"
    return "nonmonotonic-read" if before.f in READS else "read-your-writes"


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (unwritten, torn, changed, sessions)
