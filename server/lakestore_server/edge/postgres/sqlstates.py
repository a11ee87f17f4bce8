"""SQLSTATEs: the code of each error, and errors that only this protocol has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakestore import errors
from lakestore.errors import LakestoreError
from lakestore_server.queries.memory_watch import TOO_MUCH
from lakestore_server.queries.question import Cancelled
from lakestore_server.queries.service import PROCESS_ENDED

PROTOCOL_VIOLATION = "08P01"
SYNTAX_ERROR = "42601"
FEATURE_NOT_SUPPORTED = "0A000"
FAILED_TRANSACTION = "25P02"
READ_ONLY = "25006"
NO_TRANSACTION = "25P01"
ACTIVE_TRANSACTION = "25001"
UNKNOWN_STATEMENT, UNKNOWN_CURSOR, UNKNOWN_SAVEPOINT = "26000", "34000", "3B001"
TAKEN_STATEMENT, TAKEN_CURSOR = "42P05", "42P03"
CURSOR_STATE = "55000"
UNKNOWN_VARIABLE, FIXED_VARIABLE, BAD_VALUE = "42704", "55P02", "22023"
CANCELLED = "57014"
GOING_DOWN = "57P01"
TOO_MANY_CONNECTIONS = "53300"
OUT_OF_MEMORY = "53200"
NOT_AUTHENTICATED, WRONG_PASSWORD = "28000", "28P01"
SUCCESSFUL = "00000"
WARNING = "01000"

_OF_KINDS: Mapping[type[LakestoreError], str] = {
    errors.Invalid: "42000",
    errors.NotFound: "42P01",
    errors.PlanExpired: "72000",
    errors.Conflict: "40001",
    errors.Fenced: "57P01",
    errors.Denied: "42501",
    errors.NotAuthenticated: NOT_AUTHENTICATED,
    errors.Unavailable: "57P03",
    errors.Stopped: GOING_DOWN,
    errors.Exhausted: "53000",
    errors.LimitReached: "54000",
    Cancelled: CANCELLED,
    errors.Corrupt: "XX001",
    errors.NotFresh: "55000",
    errors.PositionExpired: "72000",
    errors.Internal: "XX000",
}
"""By class of error; a class that is not here has the code of its base."""


_OF_SENTENCES: Sequence[tuple[str, str]] = (
    ("there is no schema", "3F000"),
    ("there is no type", "42704"),
    ("there is no role", "42704"),
    ("there is no function", "42883"),
    ('" of relation does not exist', "42703"),
    ('relation "', "42P01"),
    ('schema "', "3F000"),
    ('database "', "3D000"),
    ('role "', "42704"),
    ('window "', "42704"),
    ("unrecognized privilege type", BAD_VALUE),
    ("is not supported by the Postgres port", FEATURE_NOT_SUPPORTED),
    ("there is no table", "42P01"),
    ("Referenced table", "42P01"),
    ("there is no column", "42703"),
    ("Referenced column", "42703"),
    ("does not have a column named", "42703"),
    ("is on no list", "42883"),
    ("No function matches", "42883"),
    ("does not support the supplied arguments", "42883"),
    ("duplicate alias", "42712"),
    ("Ambiguous reference", "42702"),
    ("must appear in the GROUP BY", "42803"),
    ("cannot contain aggregates", "42803"),
    ("cannot contain window functions", "42P20"),
    ("cannot contain window function calls", "42803"),
    ("is not an aggregate function", "42809"),
    ("is a Scalar Function", "42809"),
    ("Cannot compare values of type", "42883"),
    ("Cannot mix values of type", "42804"),
    ("Cannot combine types", "42804"),
    ("Cannot deduce template type", "42883"),
    ("Unimplemented type for cast", "42846"),
    ("on left side of join", "42703"),
    ("ORDER BY non-integer literal", SYNTAX_ERROR),
    ("GROUP BY term out of range", "42P10"),
    ("expected 1", SYNTAX_ERROR),
    ("the query failed: the type ", "42704"),
    ("function calls cannot be nested", "42803"),
    ("ORDER term out of range", "42P10"),
    ("same number of result columns", SYNTAX_ERROR),
    ("More than one row returned by a subquery", "21000"),
    ("cannot cast type", "42846"),
    ("malformed array literal", "22P02"),
    ("invalid input syntax", "22P02"),
    ("is out of range for type", "22003"),
    ("too few arguments for format()", "22023"),
    ("division by zero", "22012"),
    ("field position must not be zero", "22023"),
    ("negative substring length", "22011"),
    ("Unknown TimeZone", "22023"),
    ("extract specifier", "22023"),
    ("LIMIT/OFFSET cannot be negative", "2201W"),
    ("Like pattern must not end", "22025"),
    ("square root of a negative number", "2201F"),
    ("cannot take logarithm", "2201E"),
    ("field value out of range", "22008"),
    ("Date out of range", "22008"),
    ("invalid date field format", "22007"),
    ("invalid timestamp field format", "22007"),
    ("invalid time field format", "22007"),
    ("cannot be read", SYNTAX_ERROR),
    ("syntax error", SYNTAX_ERROR),
    ("Parser Error", SYNTAX_ERROR),
    ("value is out of range", "22003"),
    ("Conversion Error", "22P02"),
    ("Out of Range Error", "22003"),
)
"""Parts of sentences of `Invalid` and `NotFound` by which a query process tells more than its class does."""
_PROCESS_ENDED = "the query's process has ended"
_NO_MEMORY = (TOO_MUCH, PROCESS_ENDED)


class SqlError(LakestoreError):
    """An error with a code of its own, and perhaps a place in the text of the statement."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "", position: int = 0) -> None:
        """`position` counts characters from 1; 0 is no place."""
        super().__init__(message)
        self.sqlstate, self.detail, self.hint, self.position = sqlstate, detail, hint, position


class ChangedColumns(SqlError):
    """The columns of a prepared statement are not those that its client was told. Drivers prepare it again: they know
    the error by its sentence, or by the function of Postgres that raises it."""

    routine = "RevalidateCachedQuery"

    def __init__(self) -> None:
        super().__init__(FEATURE_NOT_SUPPORTED, "cached plan must not change result type")


class FatalError(SqlError):
    """An error that ends the connection."""


def sqlstate_of(error: LakestoreError) -> str:
    """The code of an error: its own, or that of its class."""
    own = getattr(error, "sqlstate", "")
    if own:
        return str(own)
    if isinstance(error, errors.Invalid | errors.NotFound):
        code = next((code for part, code in _OF_SENTENCES if part in error.message), "")
        if code:
            return code
    if error.message in _NO_MEMORY:
        return OUT_OF_MEMORY
    if error.message.startswith(_PROCESS_ENDED):
        return "58000"
    return next((_OF_KINDS[kind] for kind in type(error).__mro__ if kind in _OF_KINDS), "XX000")


def fields_of(error: LakestoreError) -> dict[str, str]:
    """The fields of an ErrorResponse, by their letters."""
    severity = "FATAL" if isinstance(error, FatalError) else "ERROR"
    position = int(getattr(error, "position", 0) or 0)
    return {
        "S": severity,
        "V": severity,
        "C": sqlstate_of(error),
        "M": error.message,
        "D": str(getattr(error, "detail", "")),
        "H": str(getattr(error, "hint", "")),
        "P": str(position) if position else "",
        "R": str(getattr(error, "routine", "")),
    }


def notice_fields(sqlstate: str, message: str, severity: str = "NOTICE") -> dict[str, str]:
    """The fields of a NoticeResponse."""
    return {"S": severity, "V": severity, "C": sqlstate, "M": message}
