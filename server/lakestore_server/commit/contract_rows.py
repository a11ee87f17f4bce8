"""Rows of a change under the rules of their table's contract: refused, dead letters, or counted.

- The caller's thread checks a batch before a row gets an offset, and the commit loop checks again if the contract
  changed while the request waited.
- A row that breaks several rules is one dead letter, with the first of the rules.
- Source and offset of a dead letter are functions of the request, so a retry makes no second letter.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid, RuleRows, Violated
from lakestore.model.contract.late_data import DROP, REWRITE
from lakestore.model.contract.rules import COUNT, DEAD_LETTER, REFUSE, REQUIRED, Rule
from lakestore.model.dead_letter_table import COMMIT, SCHEMA
from lakestore.model.table import Table
from lakestore.rows.distinct import distinct
from lakestore.rows.json_texts import PLAIN, objects
from lakestore.rows.row_checks import Flags, Ints, KeptValues, RowChecks, Violation
from lakestore_server.commit.contract_times import BAD, ContractTimes, TimedRows

GONE = (DEAD_LETTER, DROP)
"""Actions after which a row is not stored."""
STAGE = "contract"
"""The stage of a dead letter that a rule of a contract made."""
KIND, KEEP, AS_OF = "lakestore-change", "lakestore-keep", "lakestore-as-of"
"""Headers of a dead letter: the kind of the change, a column that the row keeps, and the time for which it was due."""
NEVER = (1 << 63) - 1
"""The time of a row without one: nothing is committed as late."""
TABLES_KEPT = 1_024
_compiled: dict[tuple[str, int, str], TableRules] = {}


@dataclass(frozen=True, slots=True)
class RuleCount:
    """A rule that rows of one change broke."""

    rule: str
    action: str
    """The fate of the rows: refuse, dead_letter or count."""
    rows: int


@dataclass(frozen=True, slots=True)
class Letters:
    """Rows of one change that become dead letters."""

    rows: pa.RecordBatch
    """In the table's columns, as far as the change gave them."""
    numbers: Ints
    """The number of each row in the message."""
    rules: tuple[Rule, ...]
    rule: npt.NDArray[np.int64]
    """The place of each row's rule in `rules`."""
    kept: tuple[tuple[str, Flags], ...] = ()
    """Columns that rows keep, with their rows."""
    as_of: Ints | None = None
    places: Ints | None = None
    """The rows' places in the checked batch."""
    sentences: Mapping[int, str] = field(default_factory=dict)
    """The sentences of rows that have one of their own."""

    def __len__(self) -> int:
        return len(self.numbers)

    def sentence_texts(self) -> list[str]:
        """The sentence of each row."""
        texts = [sentence_of(rule) for rule in self.rules]
        return [self.sentences.get(row, texts[rule]) for row, rule in enumerate(self.rule.tolist())]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the rules for one change."""

    broken: tuple[RuleCount, ...] = ()
    stays: Ints | None = None
    """The rows that stay; None: all."""
    letters: Letters | None = None
    late: tuple[tuple[str, int], ...] = ()
    """Closed partitions in which late rows are stored, with their number."""

    @property
    def dead_letters(self) -> int:
        return sum(each.rows for each in self.broken if each.action == DEAD_LETTER)

    @property
    def dropped(self) -> int:
        return sum(each.rows for each in self.broken if each.action == DROP)


class TableRules:
    """The rules of one version of a table. Thread-safe."""

    def __init__(self, table: Table) -> None:
        assert table.contract is not None
        self.table = table
        names = {column.id: column.name for column in table.columns}
        self._names = {said: names[number] for said, number in table.contract.bound if number in names}
        self._said = {name: said for said, name in self._names.items()}
        self._ids = {column.id: self._said.get(column.name, column.name) for column in table.columns}
        self.rules = table.contract.rules.at_write
        self._checks = RowChecks(self.rules, table, self._names)

        self._is_partly = table.merge.engine in ("partial", "aggregate")
        """Whether a row may bring some of the columns only."""
        self._required = table.contract.required_columns(table)
        self._check_required(table)
        self._loose = self._loosened(self._required)
        self.times = ContractTimes.of(table)
        """Fills the rows' times; None if the contract has no event time."""

    @property
    def has_letters(self) -> bool:
        """Whether rows may become dead letters. A row without a time always does."""
        return self.times is not None or any(rule.action == DEAD_LETTER for rule in self.rules)

    def _check_required(self, table: Table) -> None:
        for rule in self.rules:
            if rule.kind == REQUIRED and rule.action == COUNT:
                name = self._names[rule.columns[0]]
                if table.column(name).required:
                    raise Invalid(
                        f"table {table.name}: rule {rule.where} only counts nulls, and column {name!r} of the table is"
                        " required: make the column optional first, or give the rule another action"
                    )

    def check_same_names(self, made: Table) -> None:
        """Refuse an alteration of a column that a rule reads and that the contract does not describe: a condition finds
        it by its name."""
        assert self.table.contract is not None
        described = {number for _, number in self.table.contract.bound}
        names = {column.id: column.name for column in made.columns}
        ids = {column.name: column.id for column in self.table.columns}
        for rule, read in self._checks.columns_of().items():
            for name in sorted(read):
                if ids[name] not in described and names.get(ids[name]) != name:
                    raise Invalid(
                        f"table {made.name}: rule {rule!r} of the contract names column {name!r}, which the contract"
                        " does not describe, so the column keeps its name: apply a contract that describes it first"
                    )

    def loose(self, given: Collection[int]) -> Table:
        """The table for rows as sent: a null in a column with the rule `required` is left to the rule.

        `given` are the ids of the columns that the rows bring.
        """
        if not self._is_partly:
            return self._loose
        return self._loosened({c.name for c in self.table.columns if c.id in given} & self._required)

    def _loosened(self, names: Collection[str]) -> Table:
        columns = (replace(c, required=False) if c.name in names else c for c in self.table.columns)
        return replace(self.table, columns=tuple(columns))

    def outcome(
        self,
        batch: pa.RecordBatch,
        given: Collection[int],
        kept: Sequence[tuple[Collection[int], Flags]],
        numbers: Ints | None,
        *,
        refuses: bool,
        change: int,
        timed: TimedRows | None = None,
    ) -> Outcome:
        """Check a batch in the table's columns. Raises `Violated`; with `refuses` for rules with dead letters too.

        `given` are the ids of the columns that the rows bring, `kept` those that some rows leave as they are,
        `numbers` the rows' numbers in the message, if they are in another order, `timed` their times.
        """
        brought = [c.name for c in self.table.columns if c.id in given] if self._is_partly else None
        keeps = [KeptValues(frozenset(self._ids[each] for each in columns), rows) for columns, rows in kept]
        late = timed.violations if timed else ()
        gone = [each.rows for each in late if each.rule.action in (*GONE, REFUSE)]
        rows = np.concatenate(gone) if gone else None
        violations = [*late, *self._checks.violations(batch, brought, keeps, rows)]
        if not violations:
            return NOTHING
        refusing = (REFUSE, DEAD_LETTER) if refuses else (REFUSE,)
        if any(each.rule.action in refusing for each in violations):
            raise self._refusal(
                [each for each in violations if each.rule.action in (REFUSE, DEAD_LETTER)], batch, numbers, change
            )
        return self._sorted_out(violations, batch, brought, numbers, timed)

    def _sorted_out(
        self,
        violations: Sequence[Violation],
        batch: pa.RecordBatch,
        brought: list[str] | None,
        numbers: Ints | None,
        timed: TimedRows | None,
    ) -> Outcome:
        first = np.full(batch.num_rows, -1, dtype=np.int64)
        rules = tuple(each.rule for each in violations)
        for place, each in reversed(list(enumerate(violations))):
            if each.rule.action in GONE:
                first[each.rows] = place
        broken = []
        for place, each in enumerate(violations):
            rows = int((first == place).sum()) if each.rule.action in GONE else int((first[each.rows] < 0).sum())
            if rows:
                broken.append(RuleCount(each.rule.name, each.rule.action, rows))
        is_gone = first >= 0
        stays = np.flatnonzero(~is_gone) if is_gone.any() else None
        late = timed.late_partitions(stays) if timed and any(each.action == REWRITE for each in broken) else ()
        lettered = np.array([rule.action == DEAD_LETTER for rule in rules])
        places = np.flatnonzero(is_gone & lettered[first])
        if not len(places):
            return Outcome(tuple(broken), stays, late=late)
        told = batch if brought is None else batch.select([n for n in batch.schema.names if n in brought])
        sent, rule = places if numbers is None else numbers[places], first[places]
        sentences = {row: timed.times.reason(int(places[row])) for row in _places_of(rules, rule, BAD)} if timed else {}
        letters = Letters(told.take(pa.array(places)), sent, rules, rule, places=places, sentences=sentences)
        return Outcome(tuple(broken), stays, letters, late)

    def _refusal(
        self, violations: Sequence[Violation], batch: pa.RecordBatch, numbers: Ints | None, change: int
    ) -> Violated:
        rows = [each.rows if numbers is None else np.sort(numbers[each.rows]) for each in violations]
        told = violations[0]
        place = int(told.rows[0] if numbers is None else told.rows[np.argmin(numbers[told.rows])])
        count = len(distinct(np.concatenate(rows)))
        several = f", one of {count} rows that break rules" if count > 1 else ""
        error = Violated(
            f"table {self.table.name}: row {rows[0][0]} breaks the rule {told.rule.where} of the contract:"
            f" {self._checks.bad_value(told.rule, batch, place)}{several}; nothing of the commit is stored"
        )
        error.changes = tuple(
            RuleRows(change, self.table.name, tuple(some.tolist()), each.rule.name, sentence_of(each.rule))
            for each, some in zip(violations, rows, strict=True)
        )
        return error


NOTHING = Outcome()


def _places_of(rules: Sequence[Rule], rule: Ints, name: str) -> list[int]:
    """The rows whose rule has this name."""
    places = [place for place, each in enumerate(rules) if each.name == name]
    return np.flatnonzero(np.isin(rule, places)).tolist()


def rules_of(table: Table) -> TableRules:
    """The compiled rules of a table with a contract. Raises `Invalid` for a rule that cannot be checked."""
    key = table.uuid, table.schema_id, table.name
    rules = _compiled.get(key) if table.uuid else None
    # A version that was never durable, or that a restore took back, has another contract under the same number.
    if rules is None or not (rules.table is table or _is_same(rules.table, table)):
        rules = TableRules(table)
        if table.uuid:
            if len(_compiled) >= TABLES_KEPT:
                _compiled.clear()
            _compiled[key] = rules
    return rules


def _is_same(known: Table, table: Table) -> bool:
    return known.contract == table.contract and known.columns == table.columns


TOMBSTONE = Rule("tombstone", "deletes", (), action=DEAD_LETTER)
"""The rule that makes deletes dead letters."""


def of_deletes(
    table: Table, batch: pa.RecordBatch, given: Collection[int], as_of: Ints | None, *, refuses: bool, change: int
) -> Outcome:
    """All rows of a delete as dead letters, for a table that takes none. With `refuses` raises `Violated`.

    A letter has the key, the versions that the delete named, and as null the columns that a `partial` delete empties.
    """
    rows = np.arange(batch.num_rows, dtype=np.int64)
    if not len(rows):
        return NOTHING
    if refuses:
        error = Violated(f"table {table.name} takes no deletes: they are dead letters; nothing of the commit is stored")
        error.changes = (RuleRows(change, table.name, tuple(rows.tolist()), TOMBSTONE.name, sentence_of(TOMBSTONE)),)
        raise error
    for column in table.columns:
        if column.id in given and column.name not in batch.schema.names:
            batch = batch.append_column(column.name, pa.nulls(batch.num_rows, column.arrow.type))
    letters = Letters(batch, rows, (TOMBSTONE,), np.zeros(len(rows), dtype=np.int64), as_of=as_of)
    return Outcome((RuleCount(TOMBSTONE.name, DEAD_LETTER, len(rows)),), rows[:0], letters)


def sentence_of(rule: Rule) -> str:
    """The rule in words, for a dead letter."""
    if rule is TOMBSTONE:
        return "the row is a delete, and the table takes none"
    return f"the row breaks the rule {rule.where} of the contract"


def letter_rows(letters: Letters, kind: str, source: str, change: int) -> pa.RecordBatch:
    """Dead letters as rows of a dead-letter table. `source` names the request, `change` is the change's number."""
    count = len(letters)
    value = objects(letters.rows.schema.names, letters.rows.columns, PLAIN).cast(pa.binary())
    rules = letters.rules
    told = {
        "kafka_source": pa.repeat(f"{COMMIT}/{source}/{change}", count),
        "kafka_offset": pa.array(letters.numbers),
        "topic": pa.repeat(COMMIT, count),
        "partition": pa.repeat(pa.scalar(change, pa.int32()), count),
        "value": value,
        "headers": _headers(letters, kind),
        "value_bytes": pa.array([len(each) for each in value.to_pylist()], pa.int64()),
        "bridge": pa.repeat("", count),
        "stage": pa.repeat(STAGE, count),
        "code": pa.array([rule.name for rule in rules]).take(pa.array(letters.rule)),
        "sentence": pa.array(letters.sentence_texts(), pa.string()),
        "path": pa.array([", ".join(rule.columns) or None for rule in rules], pa.string()).take(pa.array(letters.rule)),
    }
    columns = [told[name] if name in told else pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def _headers(letters: Letters, kind: str) -> pa.Array:
    common = [{"name": KIND, "value": kind.lower().encode()}]
    headers = [list(common) for _ in range(len(letters))]
    for column, rows in letters.kept:
        for row in np.flatnonzero(rows).tolist():
            headers[row].append({"name": KEEP, "value": column.encode()})
    if letters.as_of is not None:
        for row, due in enumerate(letters.as_of.tolist()):
            if due != NEVER:
                headers[row].append({"name": AS_OF, "value": str(due).encode()})
    return pa.array(headers, SCHEMA.field("headers").type)


@dataclass(slots=True)
class ViolationCounts:
    """Rows that broke rules since the start, by table, rule and action. Thread-safe."""

    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, table: str, broken: Sequence[RuleCount]) -> None:
        with self._lock:
            for each in broken:
                self.rows[table, each.rule, each.action] += each.rows

    def add_refused(self, error: Violated) -> None:
        """Count the rows of a refused change."""
        with self._lock:
            for each in error.changes:
                self.rows[each.table, each.rule, REFUSE] += len(each.rows)

    def by_rule(self) -> list[tuple[tuple[str, str, str], int]]:
        """(table, rule, action) and number of rows, sorted."""
        with self._lock:
            return sorted(self.rows.items())

    def of_table(self, name: str) -> list[tuple[str, str, int]]:
        """(rule, action, number of rows) of one table, sorted."""
        return [(rule, action, rows) for (table, rule, action), rows in self.by_rule() if table == name]
