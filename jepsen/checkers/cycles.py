"""Cycles of dependencies between transactions, under the names of Adya's thesis and of Elle.

A graph has an edge for each reason why one transaction comes before another. Its strongly connected components are
searched for the shortest cycle of each name: G0 of ww edges alone, G1c with wr edges, G-single with exactly one rw
edge, G-nonadjacent with several that never follow one another, G2-item with any. Behind the name stands `-process` if
a cycle needs the order of one process, and `-realtime` if it needs that one transaction had ended before another began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

STARTS_MAX = 400
"""Edges of one component from which cycles of one name are searched, so that one huge component ends in time."""


class Link(StrEnum):
    """Why one transaction comes before another."""

    WW = "ww"
    """The later one overwrote, or added to, what the earlier one wrote."""
    WR = "wr"
    """The later one read what the earlier one wrote."""
    RW = "rw"
    """The earlier one did not see what the later one wrote."""
    PROCESS = "process"
    """One process did both, in this order."""
    REALTIME = "realtime"
    """The earlier one had ended before the later one began."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One reason for an order."""

    start: int
    end: int
    link: Link
    because: str


@dataclass(frozen=True, slots=True)
class Cycle:
    """A closed walk of edges, and its name."""

    name: str
    edges: tuple[Edge, ...]

    def sentence(self, shown: Mapping[int, str]) -> str:
        """The contradiction in words; `shown` tells what each transaction is."""
        names = {edge.start: f"T{number}" for number, edge in enumerate(self.edges, 1)}
        said = "; ".join(f"{name} is operation {node} {shown.get(node, '')}" for node, name in names.items())
        steps = ", ".join(
            f"{names[edge.start]} -{edge.link}-> {names[edge.end]} ({edge.because})" for edge in self.edges
        )
        return f"{said}: {steps}, a contradiction"


class Graph:
    """Transactions by number, and the edges between them."""

    def __init__(self) -> None:
        self._after: dict[int, dict[int, dict[Link, str]]] = {}

    def add(self, start: int, end: int, link: Link, because: str) -> None:
        """One edge; none from a transaction to itself. Of several with one reason the first is kept."""
        if start != end:
            self._after.setdefault(end, {})
            self._after.setdefault(start, {}).setdefault(end, {}).setdefault(link, because)

    def edges(self, within: frozenset[int]) -> Iterator[Edge]:
        """The edges between some transactions."""
        for start in sorted(within):
            for end, links in self._after[start].items():
                if end in within:
                    for link, because in links.items():
                        yield Edge(start, end, link, because)

    def components(self) -> list[frozenset[int]]:
        """Strongly connected components of more than one transaction, by Tarjan's algorithm without recursion."""
        found: list[frozenset[int]] = []
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        held: set[int] = set()
        for root in self._after:
            if root in order:
                continue
            work = [(root, iter(self._after[root]))]
            order[root] = low[root] = len(order)
            stack.append(root)
            held.add(root)
            while work:
                node, following = work[-1]
                for end in following:
                    if end not in order:
                        order[end] = low[end] = len(order)
                        stack.append(end)
                        held.add(end)
                        work.append((end, iter(self._after[end])))
                        break
                    if end in held:
                        low[node] = min(low[node], order[end])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == order[node]:
                        component = _popped(stack, held, node)
                        if len(component) > 1:
                            found.append(component)
        return found

    def cycles(self) -> list[Cycle]:
        """For each component the shortest cycle of each name that no found one implies; empty if there is none."""
        return [cycle for component in self.components() for cycle in self._named(component)]

    def _named(self, component: frozenset[int]) -> list[Cycle]:
        edges = list(self.edges(component))
        for suffix, extra in LEVELS:
            found: list[Cycle] = []
            for shape in SHAPES:
                if any(cycle.name.removesuffix(suffix) in shape.implied_by for cycle in found):
                    continue
                if walk := _shortest(edges, shape, extra):
                    found.append(Cycle(shape.name + suffix, walk))
            if found:
                return found
        return []


def _popped(stack: list[int], held: set[int], node: int) -> frozenset[int]:
    component = set()
    while True:
        each = stack.pop()
        held.discard(each)
        component.add(each)
        if each == node:
            return frozenset(component)


@dataclass(frozen=True, slots=True)
class Shape:
    """The edges that cycles of one name have."""

    name: str
    first: Link
    """One edge is of this kind at least."""
    others: frozenset[Link]
    apart: bool = False
    """Whether no two rw edges follow one another."""
    implied_by: frozenset[str] = frozenset()
    """Names of which one says all that this one would."""


_KNOWN = frozenset({Link.WW, Link.WR})
SHAPES = (
    Shape("G0", Link.WW, frozenset({Link.WW})),
    Shape("G1c", Link.WR, _KNOWN, implied_by=frozenset({"G0"})),
    Shape("G-single", Link.RW, _KNOWN),
    Shape("G-nonadjacent", Link.RW, _KNOWN | {Link.RW}, apart=True, implied_by=frozenset({"G-single"})),
    Shape("G2-item", Link.RW, _KNOWN | {Link.RW}, implied_by=frozenset({"G-single", "G-nonadjacent"})),
)
"""From the worst to the least."""
LEVELS: tuple[tuple[str, frozenset[Link]], ...] = (
    ("", frozenset()),
    ("-process", frozenset({Link.PROCESS})),
    ("-realtime", frozenset({Link.PROCESS, Link.REALTIME})),
)
"""The ending of each name, and the edges that such a cycle may have as well; a level is searched if the ones before
it have nothing."""


def _shortest(edges: list[Edge], shape: Shape, extra: frozenset[Link]) -> tuple[Edge, ...]:
    """The shortest cycle of a shape; empty if there is none."""
    allowed = shape.others | extra
    after: dict[int, list[Edge]] = {}
    for edge in edges:
        if edge.link in allowed:
            after.setdefault(edge.start, []).append(edge)
    best: tuple[Edge, ...] = ()
    for first in [edge for edge in edges if edge.link is shape.first][:STARTS_MAX]:
        rest = _path(after, first, apart=shape.apart, most=len(best) - 1 if best else len(edges))
        if rest:
            best = (first, *rest)
            if len(best) == 2:
                break
    return best


def _path(after: Mapping[int, list[Edge]], first: Edge, *, apart: bool, most: int) -> tuple[Edge, ...]:
    """The shortest way from the end of an edge to its start, in fewer than `most` edges, breadth first.

    Kept apart, an rw edge does not follow another one, and the last is none, as the first one is.
    """
    begin = first.end, apart
    came: dict[tuple[int, bool], tuple[tuple[int, bool], Edge] | None] = {begin: None}
    waiting = deque([(begin, 0)])
    while waiting:
        state, length = waiting.popleft()
        node, is_behind_rw = state
        if node == first.start and not (apart and is_behind_rw):
            return _walked(came, state)
        if length + 1 >= most:
            continue
        for edge in after.get(node, ()):
            if is_behind_rw and edge.link is Link.RW:
                continue
            following = edge.end, apart and edge.link is Link.RW
            if following not in came:
                came[following] = state, edge
                waiting.append((following, length + 1))
    return ()


def _walked(
    came: Mapping[tuple[int, bool], tuple[tuple[int, bool], Edge] | None], state: tuple[int, bool]
) -> tuple[Edge, ...]:
    walk: list[Edge] = []
    while (step := came[state]) is not None:
        state, edge = step
        walk.append(edge)
    return tuple(reversed(walk))
