"""Conditions as SQL text, `amount > 10 AND customer = 'x'`, read into filters on a table's rows.

Negations are pushed into the comparisons while parsing, so nothing is ever inverted afterwards.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows.comparisons import Operand, Read, among, widened, with_column, with_literal
from lakestore.rows.condition import ALWAYS, NEVER, UNKNOWN, AllOf, AnyOf, Comparison, RowFilter
from lakestore.rows.literals import Literal, cast, cast_type, constant, first_line, minus, refused, short

CHARS_MAX = 1 << 18
"""Characters of a condition."""
NODES_MAX = 1_000
"""Comparisons, negations and connections of a condition; the values of IN are counted apart."""
VALUES_MAX = 10_000
"""Values in all lists of IN together."""
DEPTH_MAX = 64
"""Parentheses, negations and casts inside one another."""
PATTERN_CHARS_MAX = 1_000
"""Characters of the pattern of LIKE."""
_TOKENS_MAX = 8 * NODES_MAX + 2 * VALUES_MAX
_TREES_KEPT = 4


def parse(text: str, table: Table) -> RowFilter:
    """The filter that a condition in SQL means on a table; `Invalid` names the piece that is not understood."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"the condition has {len(text)} characters; at most {CHARS_MAX} are read")
    try:
        text.encode()
        reader = _Reader(table)
        expression, skip = reader.condition(_tree(text), negated=False)
    except UnicodeEncodeError as error:
        raise Invalid("the condition holds half of a character (a surrogate): write it as Unicode") from error
    except RecursionError as error:
        raise Invalid(f"condition {short(text)!r} nests too deep: at most {DEPTH_MAX} levels are read") from error
    columns, inside = tuple(sorted(reader.columns)), tuple(sorted(reader.inside))
    made = RowFilter(expression, columns, skip=skip, text=text, inside=inside)
    _try(made, table, text)
    return made


@lru_cache(maxsize=_TREES_KEPT)
def _tree(text: str) -> exp.Expr:
    """The tree of a condition's text, which nobody changes: a stream of many tables reads it for each."""
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
        if len(tokens) > _TOKENS_MAX:
            raise _too_large()
        return sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except SqlglotError as error:
        raise Invalid(f"{short(text)!r} is not a whole condition in SQL, such as amount > 10") from error


def _too_large() -> Invalid:
    return Invalid(
        f"a condition has at most {NODES_MAX} comparisons and connections and {VALUES_MAX} values of IN: look the rows"
        " up by their keys, or use lake.sql"
    )


def _try(made: RowFilter, table: Table, text: str) -> None:
    """Refuse what Arrow cannot compare before any row is read: the filter is run over a row of nulls."""
    kinds = {field.name: field.type for field in table.read_schema(made.columns)} if made.columns else {"": pa.null()}
    row = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in kinds.values()], names=list(kinds))
    try:
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


def _joined(parts: list[pc.Expression], *, every: bool) -> pc.Expression:
    """The parts connected as a balanced tree: Arrow goes down into it by recursion."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [*(a & b if every else a | b for a, b in pairs), *odd]
    return parts[0]


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


class _Reader:
    """Walks the tree of one condition."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns: set[str] = set()
        self.inside: set[str] = set()
        self._nodes = self._values = 0
        self._names = {name.lower(): name for name in (*table.selected(None), *SYSTEM_TYPES) if name != "__change"}

    def condition(self, node: exp.Expr, *, negated: bool, depth: int = 0) -> Read:
        """A node that is true, false or unknown."""
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(node, exp.Paren):
            return self.condition(node.this, negated=negated, depth=depth + 1)
        self._count(1)
        if isinstance(node, exp.Not):
            return self.condition(node.this, negated=not negated, depth=depth + 1)
        if isinstance(node, exp.And | exp.Or):
            return self._connected(node, negated=negated, depth=depth + 1)
        return self._leaf(node, negated=negated)

    def _count(self, nodes: int, values: int = 0) -> None:
        self._nodes += nodes
        self._values += values
        if self._nodes > NODES_MAX or self._values > VALUES_MAX:
            raise _too_large()

    def _connected(self, node: exp.And | exp.Or, *, negated: bool, depth: int) -> Read:
        reads = [self.condition(part, negated=negated, depth=depth) for part in node.flatten()]
        every = isinstance(node, exp.And) != negated
        skips = tuple(skip for _, skip in reads)
        return _joined([read for read, _ in reads], every=every), (AllOf if every else AnyOf)(skips)

    def _leaf(self, node: exp.Expr, *, negated: bool) -> Read:
        if any(value for name, value in node.args.items() if name not in _ARGUMENTS):
            raise refused(node)
        negated ^= bool(node.args.get("negate"))
        if type(node) in _SIGNS:
            sign = _SIGNS[type(node)]
            return self._compared(node.this, _NEGATED[sign] if negated else sign, node.expression)
        if isinstance(node, exp.Between):
            return self._between(node, negated=negated)
        if isinstance(node, exp.In):
            return self._among(node, negated=negated)
        if isinstance(node, exp.Is):
            return self._is(node, negated=negated)
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node, negated=negated)
        if isinstance(node, exp.Boolean):
            return pc.scalar(bool(node.this) != negated), NEVER if bool(node.this) == negated else ALWAYS
        if isinstance(node, exp.Column | exp.Dot):
            return self._compared(node, "=", exp.Boolean(this=not negated))
        raise refused(node)

    def _compared(self, left: exp.Expr, sign: str, right: exp.Expr) -> Read:
        a, b = self._operand(left), self._operand(right)
        if isinstance(a, Literal):
            if isinstance(b, Literal):
                raise Invalid(f"condition {short(f'{a.text} {sign} {b.text}')} names no column")
            return with_literal(b, _MIRRORED[sign], a)
        return with_literal(a, sign, b) if isinstance(b, Literal) else (with_column(a, sign, b), UNKNOWN)

    def _between(self, node: exp.Between, *, negated: bool) -> Read:
        low, high = node.args["low"], node.args["high"]
        first, first_skip = self._compared(node.this, "<" if negated else ">=", low)
        last, last_skip = self._compared(node.this, ">" if negated else "<=", high)
        skips = first_skip, last_skip
        return (first | last, AnyOf(skips)) if negated else (first & last, AllOf(skips))

    def _among(self, node: exp.In, *, negated: bool) -> Read:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise refused(node)
        self._count(0, len(node.expressions))
        operand = self._column(node.this)
        return among(operand, [self._literal(part) for part in node.expressions], negated=negated)

    def _is(self, node: exp.Is, *, negated: bool) -> Read:
        if isinstance(node.expression, exp.Boolean):
            operand = self._column(node.this)
            held = operand.expression == pc.scalar(bool(node.expression.this))
            return (~held | operand.expression.is_null() if negated else held & operand.expression.is_valid()), UNKNOWN
        if not isinstance(node.expression, exp.Null):
            raise refused(node)
        operand = self._column(node.this)
        if negated:
            return operand.present
        return operand.expression.is_null(), Comparison(operand.column, "is null") if operand.plain else UNKNOWN

    def _like(self, node: exp.Like | exp.ILike, *, negated: bool) -> Read:
        operand, pattern = self._column(node.this), self._literal(node.expression).value.as_py()
        if isinstance(pattern, str) and len(pattern) > PATTERN_CHARS_MAX:
            raise Invalid(f"a pattern of LIKE has at most {PATTERN_CHARS_MAX} characters, not {len(pattern)}")
        if not isinstance(pattern, str) or "\\" in pattern or not pa.types.is_string(operand.type):
            raise refused(node)
        prefix = pattern[:-1] if pattern.endswith("%") else ""
        exact = bool(prefix) and not set(prefix) & set("%_") and isinstance(node, exp.Like)
        if exact:
            matched = pc.starts_with(operand.expression, pattern=prefix)
        else:
            matched = pc.match_like(operand.expression, pattern=pattern, ignore_case=isinstance(node, exp.ILike))
        if negated:
            return ~matched, UNKNOWN
        return matched, operand.skip("starts with", prefix) if exact else UNKNOWN

    def _operand(self, node: exp.Expr) -> Operand | Literal:
        if isinstance(node, exp.Paren):
            return self._operand(node.this)
        if isinstance(node, exp.Column | exp.Dot) or (isinstance(node, exp.Cast) and node.find(exp.Column)):
            return self._column(node)
        return self._literal(node)

    def _column(self, node: exp.Expr) -> Operand:
        if isinstance(node, exp.Paren):
            return self._column(node.this)
        if isinstance(node, exp.Cast):
            self._count(1)
            return widened(self._column(node.this), cast_type(node), node.sql())
        path = _path(node)
        name = self._names.get(path[0].lower())
        if name is None:
            raise Invalid(f"table {self.table.name} has no column {short('.'.join(path))!r}")
        field, inner = self.table.read_schema([name]).field(0), [name]
        for part in path[1:]:
            field = _field(field, part, node)
            inner.append(field.name)
        if pa.types.is_nested(field.type):
            raise Invalid(
                f"column {'.'.join(inner)!r} is nested and cannot stand in a condition: name a field of a struct"
                " (place.city), or use lake.sql"
            )
        self.columns.add(name)
        if path[1:]:
            self.inside.add(name)
            return Operand(name, pc.field(*inner), field.type)
        return Operand(name, pc.field(name), field.type, plain=True)

    def _literal(self, node: exp.Expr) -> Literal:
        return Literal(self._value(node), node)

    def _value(self, node: exp.Expr) -> pa.Scalar:
        if isinstance(node, exp.Paren):
            return self._value(node.this)
        if isinstance(node, exp.Cast):
            return cast(self._value(node.this), cast_type(node), node)
        if isinstance(node, exp.Neg):
            return minus(self._value(node.this), node)
        if isinstance(node, exp.Null):
            raise Invalid("NULL equals nothing: write IS NULL or IS NOT NULL")
        return constant(node)
