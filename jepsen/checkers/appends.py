"""Lists that transactions append to and read: the order of versions, dependencies and anomalies, as Elle infers them.

A transaction is a list of micro-operations: `["append", key, value]`, and `["r", key, list]`. No value is appended to a
key twice, so each element names its writer, and each read shows the order of all that came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.cycles import Graph, Link
from jepsen.checkers.freshness import Bound
from jepsen.operation import Call, Kind

SHOWN_CHARS_MAX = 300
Key = Any


@dataclass(frozen=True, slots=True)
class Transaction:
    """Micro-operations that happen together, if they happen."""

    number: int
    """The index of its invocation."""
    process: int | str
    begin: int
    """Nothing that ended before it comes behind the transaction."""
    end: float
    """Nothing that begins behind it comes before the transaction; infinite where that is not known."""
    kind: Kind
    operations: tuple[tuple[str, Key, Any], ...]
    behind: int | None = None
    """For a read at a follower the last write of its own connection, by its number, or -1; None for all others."""

    @classmethod
    def of(cls, call: Call, bound: Bound | None = None) -> Transaction:
        """A call's transaction: as it was answered, else as it was asked for. `bound`: what a read must show."""
        index, micro = call.invoked.index, tuple((f, k, v) for f, k, v in call.value or ())
        begin = index if bound is None else bound.place
        behind = bound.own if bound is not None and bound.is_late else None
        return cls(index, call.process, begin, call.ended, call.kind, micro, behind)

    @property
    def is_late(self) -> bool:
        """Whether a follower answered it, so it may show less than an earlier read of its process."""
        return self.behind is not None

    def appended(self) -> dict[Key, list[Any]]:
        """Its own elements by key."""
        found: dict[Key, list[Any]] = {}
        for f, key, value in self.operations:
            if f == "append":
                found.setdefault(key, []).append(value)
        return found

    def reads(self) -> Iterator[tuple[Key, list[Any]]]:
        """The lists that were read, if the transaction was answered."""
        if self.kind is Kind.OK:
            yield from ((key, list(value or ())) for f, key, value in self.operations if f == "r")

    def shown(self) -> str:
        """The transaction in a few words."""
        text = " ".join(f"{f} {key} {value}" for f, key, value in self.operations)
        return f"[{text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + '…'}]"


class Lists:
    """The lists as all transactions of a history together tell of them."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        """`ValueError` if a value is appended to one key twice: the history then says nothing."""
        self.transactions = transactions
        self._writers: dict[tuple[Key, Any], Transaction] = {}
        for each in transactions:
            for key, values in each.appended().items():
                for value in values:
                    if self._writers.setdefault((key, value), each) is not each or values.count(value) > 1:
                        raise ValueError(f"the value {value} is appended to key {key} twice: values name their writers")
        self._reads: dict[Key, list[tuple[Transaction, list[Any]]]] = {}
        for each in transactions:
            for key, elements in each.reads():
                self._reads.setdefault(key, []).append((each, elements))
        self.orders: dict[Key, list[Any]] = {
            key: list(dict.fromkeys(max(reads, key=lambda each: len(each[1]))[1])) for key, reads in self._reads.items()
        }
        """The longest list that was read of each key."""
        seen = {(key, value) for key, order in self.orders.items() for value in order}
        observed = {self._writers[element].number for element in seen if element in self._writers}
        self.happened = [
            each
            for each in transactions
            if each.kind is Kind.OK or (each.kind is Kind.INFO and each.number in observed)
        ]
        """The transactions that were acknowledged, or are of unknown outcome and were seen by somebody."""

    def anomalies(self, extra: Iterable[tuple[int, int, Link, str]] = ()) -> list[Anomaly]:
        """All that no strictly serializable system shows; `extra` edges are known from elsewhere."""
        shown = {each.number: each.shown() for each in self.transactions}
        cycles = self.graph(extra).cycles()
        return [
            *self._elements(),
            *self._intermediate(),
            *self._incompatible(),
            *self._reordered(),
            *self._internal(),
            *self._lost(),
            *self._lost_updates(),
            *(Anomaly(each.name, each.sentence(shown), tuple(edge.start for edge in each.edges)) for each in cycles),
        ]

    def _elements(self) -> Iterator[Anomaly]:
        """Elements that should not be there: of failed transactions, of nobody, or twice in one list."""
        for key, reads in self._reads.items():
            known: set[Any] = set()
            for reader, elements in reads:
                for value in [each for each in elements if each not in known]:
                    writer = self._writers.get((key, value))
                    if writer is None:
                        sentence = f"key {key} holds {value}, which nobody has appended"
                        yield Anomaly("phantom", sentence, (reader.number,))
                    elif writer.kind is Kind.FAIL:
                        sentence = f"key {key} holds {value} of a transaction that has failed"
                        yield Anomaly("G1a", sentence, (reader.number, writer.number))
                known.update(elements)
                twice = [value for value, count in Counter(elements).items() if count > 1]
                if twice:
                    sentence = f"key {key} was read as {_short(elements)}, which has {twice[0]} more than once"
                    yield Anomaly("duplicate-elements", sentence, (reader.number,))

    def _intermediate(self) -> Iterator[Anomaly]:
        """Reads that end within another transaction's appends."""
        for key, reads in self._reads.items():
            for reader, elements in reads:
                writer = self._writers.get((key, elements[-1])) if elements else None
                if writer is None or writer is reader:
                    continue
                own = writer.appended()[key]
                if elements[-1] != own[-1]:
                    sentence = f"key {key} was read up to {elements[-1]}, but its transaction also appended {own[-1]}"
                    yield Anomaly("G1b", sentence, (reader.number, writer.number))

    def _incompatible(self) -> Iterator[Anomaly]:
        """Reads of one key of which neither is the beginning of the other."""
        for key, reads in self._reads.items():
            longest, order = max(reads, key=lambda each: len(each[1]))
            for reader, elements in reads:
                if elements != order[: len(elements)]:
                    sentence = f"key {key} was read as {_short(elements)} and as {_short(order)}"
                    yield Anomaly("incompatible-order", sentence, (reader.number, longest.number))
                    break

    def _reordered(self) -> Iterator[Anomaly]:
        """Elements of one transaction in another order than it appended them."""
        for key, order in self.orders.items():
            found: dict[int, list[Any]] = {}
            for value in order:
                if writer := self._writers.get((key, value)):
                    found.setdefault(writer.number, []).append(value)
            for each in self.happened:
                seen = found.get(each.number, [])
                if len(seen) > 1 and seen != [value for value in each.appended()[key] if value in seen]:
                    sentence = f"one transaction's elements of key {key} were read as {_short(seen)}, in another order"
                    yield Anomaly("reordered", sentence, (each.number,))

    def _internal(self) -> Iterator[Anomaly]:
        """Transactions whose reads do not fit what they did themselves before, or did only later."""
        for each in self.transactions:
            if each.kind is Kind.OK:
                yield from _disagreements(each)

    def _lost(self) -> Iterator[Anomaly]:
        """Acknowledged elements that the last read of their key lacks."""
        lasts = {key: max(reads, key=lambda each: each[0].begin) for key, reads in self._reads.items()}
        elements = {key: set(read) for key, (_, read) in lasts.items()}
        for (key, value), writer in self._writers.items():
            if key in lasts and writer.kind is Kind.OK and writer.end < lasts[key][0].begin:
                if value not in elements[key]:
                    sentence = f"{value} was appended to key {key} and acknowledged, and the last read lacks it"
                    yield Anomaly("lost", sentence, (writer.number, lasts[key][0].number))

    def _lost_updates(self) -> Iterator[Anomaly]:
        """Two transactions that read one version of a key and both appended to it."""
        updates: dict[tuple[Key, int, Any], Transaction] = {}
        for each in self.transactions:
            own, seen = each.appended(), set[Key]()
            for key, elements in each.reads():
                if key in seen or key not in own or set(own[key]) & set(elements):
                    continue
                seen.add(key)
                version = key, len(elements), elements[-1] if elements else None
                other = updates.setdefault(version, each)
                if other is not each:
                    sentence = f"two transactions read key {key} as {_short(elements)} and both appended to it"
                    yield Anomaly("lost-update", sentence, (other.number, each.number))

    def graph(self, extra: Iterable[tuple[int, int, Link, str]] = ()) -> Graph:
        """The dependencies of all transactions that happened."""
        graph = Graph()
        happened = {each.number for each in self.happened}
        unseen: dict[Key, list[tuple[Transaction, Any]]] = {}
        for each in self.happened:
            for key, values in each.appended().items():
                order = set(self.orders.get(key, ()))
                unseen.setdefault(key, []).extend((each, value) for value in values if value not in order)
        for key in {**self.orders, **unseen}:
            self._order_of(graph, key, unseen.get(key, []))
        _in_time(graph, self.happened)
        for start, end, link, because in extra:
            if start in happened and end in happened:
                graph.add(start, end, link, because)
        return graph

    def _order_of(self, graph: Graph, key: Key, unseen: Sequence[tuple[Transaction, Any]]) -> None:
        """The edges that one key gives. An element that the longest read lacks comes behind that read's elements."""
        order = [(value, self._writers.get((key, value))) for value in self.orders.get(key, ())]
        for (value, writer), (later, overwriter) in pairwise(order):
            if writer and overwriter:
                graph.add(writer.number, overwriter.number, Link.WW, f"{later} follows {value} in key {key}")
        last, writer = order[-1] if order else (None, None)
        for each, value in unseen if writer else ():
            assert writer is not None
            graph.add(writer.number, each.number, Link.WW, f"{value} is not in key {key} up to {last}")
        following: list[list[tuple[Transaction | None, Any]]] = [[(each, value)] for value, each in order]
        following.append(list(unseen))
        values = [value for value, _ in order]
        for reader, elements in self._reads.get(key, ()):
            seen = _without_own(elements, set(reader.appended().get(key, ())))
            if seen and (found := self._writers.get((key, seen[-1]))):
                graph.add(found.number, reader.number, Link.WR, f"{seen[-1]} of key {key} was read")
            if seen == values[: len(seen)]:
                for next_writer, value in following[len(seen)]:
                    if next_writer is not None:
                        because = f"key {key} was read without {value}"
                        graph.add(reader.number, next_writer.number, Link.RW, because)


def _without_own(elements: list[Any], own: set[Any]) -> list[Any]:
    count = len(elements)
    while count and elements[count - 1] in own:
        count -= 1
    return elements[:count]


def _disagreements(each: Transaction) -> Iterator[Anomaly]:
    own = each.appended()
    known: dict[Key, list[Any]] = {}
    """The list of each key as it must be, if it was read before."""
    added: dict[Key, list[Any]] = {}
    for f, key, value in each.operations:
        if f == "append":
            added.setdefault(key, []).append(value)
            if key in known:
                known[key] = [*known[key], value]
            continue
        elements, done = list(value or ()), added.get(key, [])
        later = set(own.get(key, ())) - set(done)
        if later & set(elements):
            sentence = f"key {key} was read with {min(later & set(elements))}, which the same transaction appends later"
            yield Anomaly("future-read", sentence, (each.number,))
        elif key in known and known[key] != elements:
            sentence = f"key {key} was read as {_short(elements)}, where {_short(known[key])} was due"
            yield Anomaly("internal", sentence, (each.number,))
        elif done and elements[-len(done) :] != done:
            sentence = f"key {key} was read as {_short(elements)} behind the transaction's own append of {done[-1]}"
            yield Anomaly("internal", sentence, (each.number,))
        known[key] = elements


def _in_time(graph: Graph, happened: Sequence[Transaction]) -> None:
    """Edges of processes and of time; of time only those that others do not imply."""
    newest: dict[int | str, list[Transaction]] = {}
    """By process what no later transaction of it implies: the last one, and reads at followers since."""
    moments: list[tuple[float, bool, Transaction]] = []
    for each in sorted(happened, key=lambda each: each.number):
        own = newest.setdefault(each.process, [])
        for before in own:
            if before.number == each.behind or before.end <= each.begin:
                graph.add(before.number, each.number, Link.PROCESS, f"process {each.process} did both")
        newest[each.process] = [*own, each] if each.is_late else [each]
        moments += [(each.begin, False, each)] + ([(each.end, True, each)] if each.end != float("inf") else [])
    frontier: list[Transaction] = []
    for _, is_end, each in sorted(moments, key=lambda moment: (moment[0], moment[1], moment[2].number)):
        if is_end:
            frontier = [*(other for other in frontier if other.end >= each.begin), each]
            continue
        for other in frontier:
            graph.add(other.number, each.number, Link.REALTIME, "it had ended before")


def _short(elements: Sequence[Any]) -> str:
    """The end of a list."""
    return f"[{'… ' if len(elements) > 12 else ''}{' '.join(str(each) for each in elements[-12:])}]"


def writers(transactions: Iterable[Transaction]) -> Mapping[tuple[Key, Any], Transaction]:
    """The transaction that appended each element."""
    return {(key, value): each for each in transactions for key, values in each.appended().items() for value in values}
