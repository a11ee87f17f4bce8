"""Conditions as SQL text, `amount > 10 AND customer = 'x'`, read into filters on a table's rows.

Negations are pushed into the comparisons while parsing, so nothing is ever inverted afterwards.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import meant
from lakestore.model.table import Table
from lakestore.rows.comparisons import Operand, among, widened, with_column, with_literal
from lakestore.rows.computed import kinds, logic
from lakestore.rows.computed.nodes import PATTERN_CHARS_MAX
from lakestore.rows.computed.reading import ValueReader
from lakestore.rows.computed.texts import in_slices
from lakestore.rows.computed.value import Value, is_true
from lakestore.rows.condition import (
    ALWAYS,
    NEVER,
    UNKNOWN,
    AllOf,
    AnyOf,
    Comparison,
    RowFilter,
    RowTest,
    Skip,
    connected,
)
from lakestore.rows.condition_tree import NODES_MAX, VALUES_MAX, too_large, tree
from lakestore.rows.literals import Literal, cast_type, first_line, refused, short

CHARS_MAX = 1 << 18
"""Characters of a condition."""
DEPTH_MAX = 64
"""Parentheses, negations and casts inside one another."""
_DAY_AND_TIME = {pa.date32(), pa.timestamp("us")}
_SPANS = (kinds.INTERVAL, kinds.DURATION)
Found = tuple[pc.Expression | RowTest, Skip]


def parse(text: str, table: Table) -> RowFilter:
    """The filter that a condition in SQL means on a table; `Invalid` names the piece that is not understood."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"the condition has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        text.encode()
        reader = _Reader(table)
        expression, skip = reader.condition(tree(text), negated=False)
    except UnicodeEncodeError as error:
        raise Invalid("the condition holds half of a character (a surrogate): write it as Unicode") from error
    except RecursionError as error:
        raise Invalid(f"condition {short(text)!r} nests too deep: at most {DEPTH_MAX} levels are read") from error
    columns, inside = tuple(sorted(reader.columns)), tuple(sorted(reader.inside))
    made = RowFilter(expression, columns, skip=skip, text=text, inside=inside)
    _try(made, table, text)
    return made


def _try(made: RowFilter, table: Table, text: str) -> None:
    """Refuse what Arrow cannot compare before any row is read: the filter is run over a row of nulls."""
    kinds = {field.name: field.type for field in table.read_schema(made.columns)} if made.columns else {"": pa.null()}
    row = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in kinds.values()], names=list(kinds))
    try:
        if isinstance(made.expression, RowTest):
            made.expression.held(row)
        else:
            row.filter(made.expression)
    except pa.ArrowException as error:
        what = first_line(error)
        raise Invalid(f"condition {short(text)!r} compares values of types that do not fit: {what}") from error


_SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARGUMENTS = {"this", "expression", "expressions", "low", "high", "negate"}
"""Arguments that a comparison may have; any other changes its meaning in a way not known here."""


def _path(node: exp.Expr) -> list[str]:
    """The names of a column, or of a field inside it, from the outside in."""
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return [*_path(node.this), node.name]
    if not isinstance(node, exp.Column) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise refused(node)
    return [part.name for part in node.parts]


def _field(outer: pa.Field, name: str, node: exp.Expr) -> pa.Field:
    """A field of a struct; its name's case decides only where two differ in nothing else."""
    known = list(outer.type) if pa.types.is_struct(outer.type) else []
    found = [part for part in known if part.name == name] or [p for p in known if p.name.lower() == name.lower()]
    if len(found) != 1:
        raise Invalid(f"{short(node.sql())!r} is no column, nor a field of a struct: name one that there is")
    return found[0]


def _is_wider(operand: Operand, *literals: Operand | Literal | None) -> bool:
    """Whether a column of 32-bit floats stands beside a literal of 64 bits: then both are compared as 64 bits."""
    if not pa.types.is_float32(operand.type):
        return False
    return any(isinstance(each, Literal) and pa.types.is_float64(each.value.type) for each in literals)


class _Reader:
    """Walks the tree of one condition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns: set[str] = set()
        self.inside: set[str] = set()
        self._nodes = self._listed = 0
        self._values = ValueReader(self)
        self._names = {name.lower(): name for name in (*table.selected(None), *SYSTEM_TYPES) if name != "__change"}

    def condition(self, node: exp.Expr, *, negated: bool, depth: int = 0) -> Found:
        """A node that is true, false or unknown."""
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(node, exp.Paren):
            return self.condition(node.this, negated=negated, depth=depth + 1)
        self.count(1)
        if isinstance(node, exp.Not):
            return self.condition(node.this, negated=not negated, depth=depth + 1)
        if isinstance(node, exp.And | exp.Or):
            return self._connected(node, negated=negated, depth=depth + 1)
        return self._leaf(node, negated=negated)

    def count(self, nodes: int, values: int = 0) -> None:
        """Count parts of the condition, or refuse it."""
        self._nodes += nodes
        self._listed += values
        if self._nodes > NODES_MAX or self._listed > VALUES_MAX:
            raise too_large()

    def _connected(self, node: exp.And | exp.Or, *, negated: bool, depth: int) -> Found:
        reads = [self.condition(part, negated=negated, depth=depth) for part in node.flatten()]
        every = isinstance(node, exp.And) != negated
        skips = tuple(skip for _, skip in reads)
        return connected([read for read, _ in reads], every=every), (AllOf if every else AnyOf)(skips)

    def _leaf(self, node: exp.Expr, *, negated: bool) -> Found:
        if any(value for name, value in node.args.items() if name not in _ARGUMENTS):
            return self._computed(node, negated=negated)
        if isinstance(node, exp.Boolean):
            return pc.scalar(bool(node.this) != negated), NEVER if bool(node.this) == negated else ALWAYS
        if isinstance(node, exp.Column | exp.Dot) and not node.find(exp.Bracket):
            node, negated = exp.EQ(this=node, expression=exp.Boolean(this=not negated)), False
        switched = negated != bool(node.args.get("negate"))
        found = self._simple_leaf(node, negated=switched)
        return self._computed(node, negated=negated) if found is None else found

    def _simple_leaf(self, node: exp.Expr, *, negated: bool) -> Found | None:
        """A comparison of columns and literals, of which statistics may know; None for any other condition."""
        if type(node) in _SIGNS:
            sign = _SIGNS[type(node)]
            return self._compared(node.this, _NEGATED[sign] if negated else sign, node.expression)
        if isinstance(node, exp.Between):
            return self._between(node, negated=negated)
        if isinstance(node, exp.In):
            return self._among(node, negated=negated)
        if isinstance(node, exp.Is):
            return self._is(node, negated=negated)
        return self._like(node, negated=negated) if isinstance(node, exp.Like) else None

    def _computed(self, node: exp.Expr, *, negated: bool) -> Found:
        """A condition that is computed from values, of which statistics know nothing."""
        value = self._values.condition(node)
        if negated:
            value = logic.inverted(value)
        if value.constant is not None:
            held = value.constant.as_py() is True
            return pc.scalar(held), ALWAYS if held else NEVER
        return RowTest(in_slices(lambda batch: is_true(value.array(batch)))), UNKNOWN

    def _compared(self, left: exp.Expr, sign: str, right: exp.Expr) -> Found | None:
        a, b = self._operand(left), self._operand(right)
        if isinstance(a, Literal) and isinstance(b, Operand):
            a, b, sign = b, a, _MIRRORED[sign]
        if not isinstance(a, Operand) or b is None:
            return None
        if isinstance(b, Literal):
            return None if _is_wider(a, b) else with_literal(a, sign, b)
        return None if {a.type, b.type} == _DAY_AND_TIME else (with_column(a, sign, b), UNKNOWN)

    def _between(self, node: exp.Between, *, negated: bool) -> Found | None:
        low, high = node.args["low"], node.args["high"]
        operand = self._operand(node.this)
        if isinstance(operand, Operand) and _is_wider(operand, self._operand(low), self._operand(high)):
            return None
        first = self._compared(node.this, "<" if negated else ">=", low)
        last = self._compared(node.this, ">" if negated else "<=", high)
        if first is None or last is None:
            return None
        parts, skips = [first[0], last[0]], (first[1], last[1])
        return connected(parts, every=not negated), AnyOf(skips) if negated else AllOf(skips)

    def _among(self, node: exp.In, *, negated: bool) -> Found | None:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise refused(node)
        operand = self._operand(node.this)
        if any(isinstance(part, exp.Null) for part in node.expressions):
            return None
        values = [self._operand(part) for part in node.expressions]
        literals = [value for value in values if isinstance(value, Literal)]
        if not isinstance(operand, Operand) or len(literals) < len(values):
            return None
        if _is_wider(operand, *literals):
            return None
        self.count(0, len(values))
        return among(operand, literals, negated=negated)

    def _is(self, node: exp.Is, *, negated: bool) -> Found | None:
        operand = self._operand(node.this)
        if not isinstance(operand, Operand):
            return None
        if isinstance(node.expression, exp.Boolean) and pa.types.is_boolean(operand.type):
            held = operand.expression == pc.scalar(bool(node.expression.this))
            return (~held | operand.expression.is_null() if negated else held & operand.expression.is_valid()), UNKNOWN
        if not isinstance(node.expression, exp.Null):
            raise refused(node)
        if negated:
            return operand.present
        return operand.expression.is_null(), Comparison(operand.column, "is null") if operand.plain else UNKNOWN

    def _like(self, node: exp.Like, *, negated: bool) -> Found | None:
        """A beginning of a text, which statistics may know."""
        operand, literal = self._operand(node.this), self._operand(node.expression)
        pattern = literal.value.as_py() if isinstance(literal, Literal) else None
        if not isinstance(operand, Operand) or not isinstance(pattern, str) or not pa.types.is_string(operand.type):
            return None
        prefix = pattern[:-1] if pattern.endswith("%") else ""
        if not prefix or set(prefix) & set("%_") or len(pattern) > PATTERN_CHARS_MAX:
            return None
        matched = pc.starts_with(operand.expression, pattern=prefix)
        return (~matched, UNKNOWN) if negated else (matched, operand.skip("starts with", prefix))

    def _operand(self, node: exp.Expr) -> Operand | Literal | None:
        """A column or a constant; None for a value that is computed."""
        if isinstance(node, exp.Paren):
            return self._operand(node.this)
        if isinstance(node, exp.Column | exp.Dot) and not node.find(exp.Bracket):
            return self._column(node)
        if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast) and node.find(exp.Column):
            return self._cast(node)
        if node.find(exp.Column):
            return None
        if isinstance(node, exp.Null):
            raise Invalid("NULL equals nothing: write IS NULL or IS NOT NULL")
        value = self._values.value(node).constant
        if value is None or not value.is_valid or pa.types.is_nested(value.type) or value.type in _SPANS:
            return None
        return Literal(value, node)

    def _cast(self, node: exp.Cast) -> Operand | None:
        inner = self._operand(node.this)
        if not isinstance(inner, Operand):
            return None
        self.count(1)
        try:
            return widened(inner, cast_type(node), node.sql())
        except Invalid as error:
            try:
                self._values.value(node)
            except Invalid:
                raise error from None
            return None

    def _column(self, node: exp.Expr) -> Operand:
        name, inner, kind = self._found(node)
        if pa.types.is_nested(kind):
            raise Invalid(
                f"column {'.'.join(inner)!r} is nested and cannot stand in a condition: name a field of a struct"
                " (place.city), an element (tags[1]), or use lake.sql"
            )
        if inner[1:]:
            return Operand(name, pc.field(*inner), kind)
        return Operand(name, pc.field(name), kind, plain=True)

    def column(self, node: exp.Expr) -> Value:
        """The value of a column, or of a field inside it."""
        name, inner, kind = self._found(node)

        def rows(batch: pa.RecordBatch) -> pa.Array:
            found = batch.column(name)
            return pc.struct_field(found, inner[1:]) if inner[1:] else found

        return Value(kind, rows)

    def _found(self, node: exp.Expr) -> tuple[str, list[str], pa.DataType]:
        """The column that a node names, the path from it to a field, and the type found there."""
        path = _path(node)
        name = self._names.get(path[0].lower())
        if name is None:
            close = meant(path[0], self._names.values())
            raise Invalid(f"table {self.table.name} has no column {short('.'.join(path))!r}{close}")
        field, inner = self.table.read_schema([name]).field(0), [name]
        for part in path[1:]:
            field = _field(field, part, node)
            inner.append(field.name)
        self.columns.add(name)
        if path[1:]:
            self.inside.add(name)
        return name, inner, field.type
