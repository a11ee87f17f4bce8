"""Changelogs: the fold of a stream, and all that a change must not say of the row before it.

A change in a history is `[kind, bucket, offset, row, time]`, and a batch is a map of `table`, `whole`, `snapshot`,
`token`, `schema` and `rows`. Names of anomalies are those of etcd's guarantees of watches where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jepsen.anomaly import Anomaly

Row = dict[str, Any]
Change = Sequence[Any]
Batch = dict[str, Any]
SHOWN_CHARS_MAX = 300


class Fold:
    """The rows of one table by key, as one consumer holds them. Every change must fit what is there."""

    def __init__(self, name: str, key: Sequence[str], *, images: bool, whole_deletes: bool = False) -> None:
        """`images`: whether -U come, and -D carry the row; `whole_deletes`: whether -D carry it though -U do not come.

        `name` says in anomalies whose fold this is.
        """
        self._name, self._key = name, tuple(key)
        self._images, self._whole_deletes = images, images or whole_deletes
        self.rows: dict[Any, Row] = {}
        self._before: dict[Any, Row] = {}

    def add(self, changes: Iterable[Change], operation: int = 0) -> Iterator[Anomaly]:
        """These changes as well; what is wrong with each of them."""
        for change in changes:
            for name, sentence in self._added(change):
                place = f"{self._name}: {change[0]} at offset {change[2]} of bucket {change[1]}"
                yield Anomaly(name, f"{place} {sentence}", (operation,))

    def end(self, operation: int = 0) -> Iterator[Anomaly]:
        """Here whole commits have come: no -U is without its +U."""
        for key in self._before:
            yield Anomaly("unpaired-image", f"{self._name}: the -U of key {key} came without its +U", (operation,))
        self._before.clear()

    def key_of(self, row: Row) -> Any:
        """A row's key as one value."""
        values = tuple(row[name] for name in self._key)
        return values[0] if len(values) == 1 else values

    def _added(self, change: Change) -> Iterator[tuple[str, str]]:
        kind, row = change[0], change[3]
        key = self.key_of(row)
        held, before = self.rows.get(key), self._before.pop(key, None)
        if before is not None and kind != "+U":
            yield "unpaired-image", f"follows a -U of key {key}, whose +U has not come"
        if kind == "+I":
            if held is not None:
                yield "insert-of-present", f"inserts key {key}, which is there as {shown(held)}"
            self.rows[key] = row
        elif held is None:
            yield "change-of-absent", f"changes key {key}, which is not there"
            if kind == "+U":
                self.rows[key] = row
        else:
            yield from self._changed(kind, key, row, held, has_image=before is not None)

    def _changed(self, kind: str, key: Any, row: Row, held: Row, *, has_image: bool) -> Iterator[tuple[str, str]]:
        """A change of a key that is there."""
        is_image = kind == "-U" or (kind == "-D" and self._whole_deletes)
        if is_image and row != held:
            yield "false-before-image", f"says that key {key} was {shown(row)}, and it was {shown(held)}"
        if kind == "-U":
            self._before[key] = row
        elif kind == "+U":
            if self._images and not has_image:
                yield "no-before-image", f"of key {key} came without its -U"
            self.rows[key] = row
        elif kind == "-D":
            del self.rows[key]
        else:
            yield "unknown-change", f"of key {key} is no change"


def differences(name: str, folded: dict[Any, Row], read: dict[Any, Row], operation: int = 0) -> Iterator[Anomaly]:
    """The rows in which a fold and a read at the same position differ; one anomaly names the first and counts them."""
    keys = [key for key in {**folded, **read} if folded.get(key) != read.get(key)]
    if keys:
        key = min(keys, key=str)
        sides = f"{shown(folded.get(key))} by its changes and {shown(read.get(key))} by the read at their end"
        count = f", and {len(keys) - 1} more keys differ" if len(keys) > 1 else ""
        yield Anomaly("fold-is-not-the-table", f"{name}: key {key} is {sides}{count}", (operation,))


def shown(row: Row | None) -> str:
    """A row in a few words."""
    text = "absent" if row is None else str(row)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


class Places:
    """Every place of a changelog, (table, bucket, offset), with what all consumers were told of it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], tuple[Row, int]] = {}

    def add(self, table: str, changes: Iterable[Change], operation: int) -> Iterator[Anomaly]:
        """The changes that a consumer was told. A row may lack columns that the consumer did not ask for.

        Changes of rows only: a snapshot's rows stand at the places of their last changes.
        """
        for kind, bucket, offset, row, _ in changes:
            if kind == "-U":
                continue
            place = table, bucket, offset
            known, first = self._known.setdefault(place, (row, operation))
            common = known.keys() & row.keys()
            if any(known[name] != row[name] for name in common):
                sentence = f"{table}, bucket {bucket}, offset {offset} was {shown(known)}, and then {shown(row)}"
                yield Anomaly("changed-record", sentence, (first, operation))
            elif len(row) > len(known):
                self._known[place] = {**known, **row}, first


class Order:
    """One consumer's way through the buckets: Ordered and Unique, and where nothing is left out, dense."""

    def __init__(self, name: str, *, dense: bool, from_start: bool) -> None:
        """Not from the start, offsets are dense from the first change of each bucket on."""
        self._name, self._dense, self._from_start = name, dense, from_start
        self._begun: set[tuple[str, int]] = set()
        self._last: dict[tuple[str, int], int] = {}

    def snapshot(self, table: str, changes: Iterable[Change]) -> None:
        """Rows of a snapshot, in no order: changes come behind them."""
        for _, bucket, offset, *_ in changes:
            self._last[table, bucket] = max(self._last.get((table, bucket), -1), offset)

    def add(self, table: str, changes: Iterable[Change], operation: int = 0) -> Iterator[Anomaly]:
        """Changes that follow."""
        for kind, bucket, offset, *_ in changes:
            if kind == "-U":
                continue
            last = self._last.get((table, bucket), -1)
            place = f"{self._name}: {table}, bucket {bucket}: offset {offset} came behind {last}"
            if offset == last:
                yield Anomaly("not-unique", f"{place}, the same again", (operation,))
            elif offset < last:
                yield Anomaly("not-ordered", place, (operation,))
            elif self._dense and offset != last + 1 and (self._from_start or (table, bucket) in self._begun):
                yield Anomaly("not-reliable", f"{place}: what lies between was left out", (operation,))
            self._last[table, bucket] = max(offset, last)
            self._begun.add((table, bucket))
