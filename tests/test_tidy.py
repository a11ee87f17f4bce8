"""The style of this repository as tests: sizes, layers, names, docstrings, limits.

Each rule is a function from a parsed file to complaints, so that the last tests can plant a violation of
each rule and see it found.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

import lakestore
from lakestore.limits import Limits
from tests.support import house, nouns, prose, spark, syntax
from tests.support.begun_threads import THREADS

ROOT = Path(__file__).resolve().parent.parent
RUN_LOCK, DEV_LOCK = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
PRODUCT = ("lakestore", "server", "tiering", "spark_reader")
CODE = (*PRODUCT, "tests", "jepsen", "examples")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
"""Of tests; the product's is `house.FILE_LINES_MAX`."""
DOCSTRING_LINES_MAX = 12

MODEL = tuple(
    f"lakestore/{name}.py"
    for name in (
        "errors",
        "limits",
        "model/table",
        "model/columns",
        "rows/offsets",
        "rows/live_sum",
        "model/token",
        "rows/ipc",
        "rows/keys",
    )
)
PURE = (
    *MODEL,
    "lakestore/union/plan.py",
    "lakestore/iceberg/avro.py",
    "lakestore/iceberg/other_formats.py",
    "lakestore/iceberg/avro_values.py",
    "lakestore/iceberg/manifest_schemas.py",
    "lakestore/iceberg/manifest_lists.py",
    "lakestore/iceberg/manifests.py",
    "lakestore/iceberg/values.py",
    "lakestore/iceberg/transforms.py",
    "lakestore/iceberg/position_deletes.py",
    "lakestore/iceberg/puffin.py",
    "lakestore/iceberg/row_search.py",
    "server/lakestore_server/files/journal.py",
    "server/lakestore_server/files/segment.py",
    "server/lakestore_server/files/checkpoint.py",
    "server/lakestore_server/commit/draft.py",
    "server/lakestore_server/changes/sharing/members.py",
    "server/lakestore_server/catalog/metadata.py",
    "server/lakestore_server/catalog/metadata_updates.py",
    "server/lakestore_server/catalog/gate.py",
)
BANNED_CALLS = re.compile(
    r"time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|sleep)|(datetime\.)*datetime\.(now|utcnow)|date\.today"
    r"|random\..*|secrets\..*|uuid4|uuid\.uuid[14]|os\.urandom|open|io\.open|os\.open"
)
DECIMAL_CONTEXTS = {"Context", "getcontext", "setcontext", "localcontext", "DefaultContext"}
DECIMAL_METHODS = {"scaleb", "quantize", "fma", "remainder_near", "create_decimal"}
UNSEEDED = (
    "tests/bench/",
    "tests/support/seeds.py",
    "tests/simulation/test_world.py",
    "jepsen/__main__.py",
)
"""Files that draw without a seed: measurements, and the places that draw or replace seeds."""
GENERATORS = ("random.Random", "Random", "random.default_rng", "SystemRandom")
UNSEEDED_CALLS = r"random\.[a-z]\w*|(np|numpy)\.random\.(?!Generator)\w+|secrets\.\w+|os\.urandom"
CLOCKS = r"time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|process_time|thread_time)"
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BY_PLACE_MAX = 5
"""The most values that a constructor takes by their place."""
BANNED_IMPORTS = {"threading", "asyncio", "random", "secrets", "time"}

ONLY_HERE: dict[str, tuple[str, ...]] = {
    "grpc": ("lakestore/wire/rpc.py", "lakestore/v1/", "server/lakestore_server/edge/rpc_port.py"),
    "grpc_health": ("server/lakestore_server/edge/grpc.py",),
    "grpc_reflection": ("server/lakestore_server/edge/grpc.py",),
    "pyiceberg": ("server/lakestore_server/catalog/outside_catalog.py",),
    "pyspark": ("tiering/", "spark_reader/"),
    "py4j": ("tiering/", "spark_reader/"),
    "duckdb": ("lakestore/union/sql.py", "lakestore/kafka/bridge/expressions.py"),
    "click": ("lakestore/cli/",),
    "prompt_toolkit": ("lakestore/cli/shell_prompt.py",),
    "confluent_kafka": (
        "lakestore/kafka/client.py",
        "lakestore/kafka/sink.py",
        "lakestore/kafka/bridge/cluster.py",
        "lakestore/kafka/bridge/decode/registry.py",
        "lakestore/kafka/bridge/source.py",
        "server/lakestore_server/journals/kafka_log.py",
        "examples/demo/lakestore_demo/kafka.py",
    ),
    "opentelemetry": ("lakestore/wire/tracing.py",),
    "httpx2": ("lakestore/kafka/bridge/decode/registry.py",),
    "starlette": (
        *("server/lakestore_server/edge/console/", "server/lakestore_server/edge/catalog_request.py"),
        "server/lakestore_server/edge/http.py",
        "server/lakestore_server/edge/http_gate.py",
        "server/lakestore_server/edge/iceberg_rest.py",
        "server/lakestore_server/edge/leader_link.py",
        "server/lakestore_server/edge/presented_rest.py",
    ),
    "uvicorn": ("server/lakestore_server/edge/http.py",),
}
"""Technology lives in the module named after it (docs/architecture.md §1)."""

FILE_URIS = "lakestore/model/file_uri.py"
BY_HAND = re.compile(
    r"(un)?quote(_plus|_to_bytes|_from_bytes)?$|as_uri$|from_uri$|url2pathname$|pathname2url$|\^?file:(/|$)"
)
ESCAPES: dict[str, tuple[str, ...]] = {
    "lakestore/iceberg/places.py": ("from_uri",),  # opens an object store
    "lakestore/loading/files.py": ("from_uri",),
    "lakestore/kafka/bridge/spec_file.py": ("unquote", "file:"),  # a user's name in a URL; `file:PATH`
    "server/lakestore_server/doctor/bundle.py": ("quote",),  # spellings of a secret that is struck out
    "server/lakestore_server/edge/arrivals.py": ("unquote",),  # a peer's address as gRPC writes it
    "server/lakestore_server/edge/postgres/statements.py": ("quote",),  # an option of COPY
}
"""Files that escape or name something other than a path, and with what."""

LAYERS: dict[str, tuple[str, ...]] = {
    "server/": ("lakestore_tiering", "lakestore_spark", "lakestore.client", "lakestore.cli", "tests"),
    "server/lakestore_server/queries/process.py": ("lakestore_tiering", "lakestore_spark", "lakestore.cli", "tests"),
    "tiering/": ("lakestore_server", "lakestore.cli", "tests"),
    "spark_reader/": ("lakestore_server", "lakestore_tiering", "lakestore.cli", "tests"),
    "lakestore/union/": ("lakestore_server", "lakestore_tiering", "lakestore_spark", "lakestore.cli", "tests"),
    "lakestore/": ("tests", "jepsen"),
    "jepsen/": ("lakestore_server", "tests"),
}
"""Folder -> modules that it must not import."""
_SPARK = ("lakestore.spark", "lakestore.spark.attach", "lakestore.spark.session")
PUBLIC = frozenset({"lakestore", *(f"lakestore.{name}" for name in lakestore.__all__), *_SPARK})
"""Modules and names of the product that jepsen imports: those of anybody's program."""
KAFKA = "lakestore_demo.broker"
"""Starts a broker of Kafka, which is not ours and not on trial: the one tool of the product that jepsen takes."""

BROAD_EXCEPT_ALLOWED = {
    "lakestore/client/local.py",  # the edge of a server in this process
    "lakestore/client/credentials.py",  # a function of the program
    "lakestore/client/changes.py",  # a thread whose errors another one raises
    "lakestore/client/writer.py",  # the same
    "lakestore/union/side_by_side.py",  # the same
    "lakestore/kafka/bridge/consumer.py",  # the same
    "server/lakestore_server/commit/in_flight.py",
    "server/lakestore_server/commit/engine.py",
    "server/lakestore_server/commit/build.py",  # the same loop: one request that fails, and its group goes on
    "server/lakestore_server/commit/commit_verbs.py",  # requests of a stream before one that fails go on
    "server/lakestore_server/files/journal_file.py",  # the same
    "server/lakestore_server/host/child.py",  # both ends: whoever asked is told
    "server/lakestore_server/host/supervisor.py",
    "server/lakestore_server/host/worker.py",
    "server/lakestore_server/host/workers.py",
    "lakestore/cli/main.py",
    "tiering/lakestore_tiering/epoch.py",
    "tiering/lakestore_tiering/service.py",
    *(
        f"server/lakestore_server/edge/{name}.py"
        for name in (
            "catalog_request console/answers console/api console/queries flight/port grpc postgres/port"
            " postgres/session rpc_dispatch rpc_port rpc_streams"
        ).split()
    ),
}
"""Where any defect ends: the commit loop, its thread and those of duties, ports, the command line, a table's round."""

TEXT_TESTS = {"startswith", "endswith", "find", "index", "count", "partition", "match", "search", "fullmatch", "lower"}

PRINT_ALLOWED = ("lakestore/cli/", "tests/", "jepsen/", "examples/")


@dataclass(frozen=True)
class Source:
    """One Python file, read and parsed."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        return syntax.tree(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of that tree."""
        return syntax.nodes(self.text)

    @property
    def product(self) -> bool:
        """Whether the file is part of the package."""
        return self.path.split("/")[0] in PRODUCT

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions, nested ones included."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def comments(self) -> Iterator[tuple[int, str]]:
        """(line, text) of every comment."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _sources() -> list[Source]:
    """Every Python file, less generated code."""
    paths = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


SOURCES = _sources()
Rule = Callable[[Source], Iterator[str]]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _calls(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.nodes:
        if isinstance(node, ast.Call):
            yield node.lineno, _dotted(node.func)


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, module) of every import; `from a import b` is both a and a.b."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def unmarked_spark(source: Source) -> Iterator[str]:
    """Tests that take the Spark of their process say so, for files run side by side in several."""
    if not Path(source.path).name.startswith("test_") or spark.MARK in source.text:
        return
    for function in source.functions:
        taken = spark.FIXTURES & {argument.arg for argument in function.args.args}
        if taken:
            yield f"{function.lineno}: takes {min(taken)} in a file without {spark.MARK}"
    for line, module in _imports(source):
        if module == "tests.support.spark.SPARK_CONF":
            yield f"{line}: makes a session of Spark in a file without {spark.MARK}"


def long_functions(source: Source) -> Iterator[str]:
    """A function fits a screen."""
    for function in source.functions:
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{function.lineno}: {function.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def long_files(source: Source) -> Iterator[str]:
    """A file is one noun."""
    lines, most = source.text.count("\n"), house.FILE_LINES_MAX if source.product else FILE_LINES_MAX
    if lines > most:
        yield f"1: {lines} lines, more than {most}"


def prints(source: Source) -> Iterator[str]:
    """Only the command line prints."""
    if not source.path.startswith(PRINT_ALLOWED):
        yield from (f"{line}: print" for line, name in _calls(source) if name == "print")


def unfinished(source: Source) -> Iterator[str]:
    """What is to do is an issue, not a comment."""
    if UNFINISHED.search(source.text):
        yield from (f"{line}: {text}" for line, text in source.comments() if UNFINISHED.search(text))


def broad_excepts(source: Source) -> Iterator[str]:
    """Each `except` names its type, outside the named boundaries."""
    if not source.product or source.path in BROAD_EXCEPT_ALLOWED:
        return
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {"" if part is None else _dotted(part) for part in types}
        if names & {"", "Exception", "BaseException"} and not _raises_again(node):
            yield f"{node.lineno}: except of {', '.join(sorted(names)) or 'everything'}"


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether the handler only cleans up: its last statement is a plain `raise`."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def impure_cores(source: Source) -> Iterator[str]:
    """What decides has no clock, no file, no chance and no thread."""
    if source.path not in PURE:
        return
    for line, name in _calls(source):
        if BANNED_CALLS.fullmatch(name):
            yield f"{line}: {name}() in a pure core"
    for line, module in _imports(source):
        if module.split(".")[0] in BANNED_IMPORTS:
            yield f"{line}: import of {module} in a pure core"


def misplaced_imports(source: Source) -> Iterator[str]:
    """Technology stays in its module, and layers import downwards only."""
    if not source.product and not source.path.startswith("jepsen/"):
        return
    layer = max((folder for folder in LAYERS if source.path.startswith(folder)), key=len)
    seen = set()
    for line, module in _imports(source):
        top = module.split(".")[0]
        places = ONLY_HERE.get(top) if source.product else None
        if places and not source.path.startswith(places) and (line, top) not in seen:
            seen.add((line, top))
            yield f"{line}: {top} is imported only by {', '.join(places)}"
        for banned in LAYERS[layer]:
            if module == banned or module.startswith(f"{banned}."):
                yield f"{line}: {layer} does not import {banned}"
        if layer == "jepsen/" and top == "lakestore" and module not in PUBLIC and not module.startswith(KAFKA):
            yield f"{line}: jepsen imports the public lakestore alone, not {module}"
        if top in ("server", "tiering", "spark_reader"):
            yield f"{line}: {top} is imported as lakestore_{top.removesuffix('_reader')}"


def file_uris_by_hand(source: Source) -> Iterator[str]:
    """Paths and locations are turned into one another in one place; engines take locations without escapes."""
    allowed = ESCAPES.get(source.path, ())
    for node in ast.walk(source.tree) if source.product and source.path != FILE_URIS else ():
        for line, name in _names_and_texts(node):
            if BY_HAND.match(name) and name not in allowed:
                yield f"{line}: {name!r} is the business of {FILE_URIS}"


def _names_and_texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("urllib"):
        yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "shlex":
        yield node.lineno, node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value


def missing_module_docstring(source: Source) -> Iterator[str]:
    """A module begins with what it is, briefly."""
    docstring = ast.get_docstring(source.tree)
    if not docstring:
        if source.tree.body:
            yield "1: no module docstring"
    elif docstring.count("\n") + 1 > DOCSTRING_LINES_MAX:
        if source.path != "lakestore/errors.py":  # its docstring is the tree of errors
            yield f"1: module docstring has {docstring.count(chr(10)) + 1} lines, more than {DOCSTRING_LINES_MAX}"


def missing_public_docstrings(source: Source) -> Iterator[str]:
    """Every public class and module function says what it is; a method whose name and types say all needs not."""
    if source.product:
        yield from _undocumented(source.tree)


def _undocumented(parent: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and (isinstance(node, ast.ClassDef) or isinstance(parent, ast.Module)):
            yield f"{node.lineno}: {node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node)


def riddles(source: Source) -> Iterator[str]:
    """A docstring names its noun first, and no sentence has a phrase of `prose.ANYWHERE`."""
    if source.product or source.path.startswith("examples/"):
        for line, text in prose.docstrings(source.text):
            if prose.FIRST.match(text):
                yield f"{line}: a docstring that does not name its noun first"
        yield from (f"{line}: {words!r}: name the thing" for line, words in sorted(set(prose.riddles(source.text))))


def long_constructors(source: Source) -> Iterator[str]:
    """A constructor takes no `*values`, and its parameters by keyword only if they are more than five."""
    for node in ast.walk(source.tree) if source.product else ():
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            if node.args.vararg is not None:
                yield f"{node.lineno}: a constructor takes *{node.args.vararg.arg}"
            if len(node.args.args) > 1 + BY_PLACE_MAX:
                yield f"{node.lineno}: a constructor takes {len(node.args.args) - 1} values by their place"


def decisions_by_message(source: Source) -> Iterator[str]:
    """A message is for people: the server decides by types and fields, never by the English of an error."""
    if not source.path.startswith("server/"):
        return
    caught = {node.name for node in source.nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for node in source.nodes:
        read: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            read = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_TESTS:
            read = [node.func.value, *node.args]
        elif isinstance(node, ast.Subscript):
            read = [node.value]
        if any(_is_message(part, caught) for part in read):
            yield f"{getattr(node, 'lineno', 1)}: a decision by the text of an error"


def _is_message(node: ast.expr, caught: set[str]) -> bool:
    """Whether an expression is the text of an error that was caught: `error.message`, `error.args`, `str(error)`."""
    if isinstance(node, ast.Attribute) and node.attr in ("message", "args"):
        return isinstance(node.value, ast.Name) and node.value.id in caught
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(isinstance(part, ast.Name) and part.id in caught for part in node.args)
    return False


def foreign_loggers(source: Source) -> Iterator[str]:
    """Every logger lies below `lakestore`, by name and not by module: the level that is set holds for that tree."""
    if not source.product or source.path == "server/lakestore_server/host/event_log.py":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _dotted(node.func).endswith("getLogger"):
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            if not str(name).startswith("lakestore."):
                yield f"{node.lineno}: a logger that is not named lakestore.…"


def decimal_arithmetic(source: Source) -> Iterator[str]:
    """`Decimal` rounds to 28 digits wherever no context is named, so arithmetic stands in `model/decimals.py`."""
    if not source.product or source.path == "lakestore/model/decimals.py":
        return
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "decimal":
            wrong = sorted({each.name for each in node.names} & DECIMAL_CONTEXTS)
            yield from (f"{node.lineno}: decimal.{name} outside lakestore/model/decimals.py" for name in wrong)
        if isinstance(node, ast.Attribute) and node.attr in DECIMAL_METHODS:
            yield f"{node.lineno}: .{node.attr} outside lakestore/model/decimals.py"
        if isinstance(node, ast.FunctionDef):
            yield from _decimal_operators(node)


def _decimal_operators(function: ast.FunctionDef) -> Iterator[str]:
    """Operators on a call of `Decimal`, or on a name that the function declares or assigns as one."""
    arguments = (*function.args.args, *function.args.kwonlyargs)
    names = {each.arg for each in arguments if each.annotation is not None and _dotted(each.annotation) == "Decimal"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_decimal(node.value, set()):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            operands = [node.operand]
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("abs", "round", "divmod", "pow", "sum"):
            operands = node.args
        if any(_is_decimal(each, names) for each in operands):
            yield f"{function.lineno}: arithmetic with a Decimal outside lakestore/model/decimals.py"


def _is_decimal(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    called = _dotted(node.func) if isinstance(node, ast.Call) else ""
    return called.rpartition(".")[2] in ("Decimal", "fitted", "from_unscaled_value", "rounded", "product")


def chance_without_seed(source: Source) -> Iterator[str]:
    """Tests and jepsen draw from a generator that has a seed: a run that failed can be done again."""
    if not source.path.startswith(("tests/", "jepsen/")) or source.path.startswith(UNSEEDED):
        return
    imports = [alias.name for node in source.nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in source.nodes:
        if isinstance(node, ast.Call) and _dotted(node.func).endswith(GENERATORS):
            if not node.args and not node.keywords:
                yield f"{node.lineno}: {_dotted(node.func)}() without a seed; tests.support.seeds has one"
        elif isinstance(node, ast.Attribute) and not (called := _dotted(node)).endswith(GENERATORS):
            module = "numpy" if called.startswith("np.") else called.partition(".")[0]
            if module in imports and re.fullmatch(UNSEEDED_CALLS, called):
                yield f"{node.lineno}: {called} has no seed of its own; take a generator of tests.support.seeds"
        elif isinstance(node, ast.ImportFrom) and node.module in ("random", "secrets", "uuid"):
            for alias in node.names:
                if alias.name not in ("Random", "UUID"):
                    yield f"{node.lineno}: {node.module}.{alias.name} has no seed of its own"


def upper_bounds_of_time(source: Source) -> Iterator[str]:
    """No assertion says that something took at most so long: a busy machine would break it. Benchmarks measure.

    A lower bound may stand. Waiting with an end is `tests.support.waiting.until`.
    """
    if not source.path.startswith("tests/") or source.path.startswith((*UNSEEDED, "tests/support/waiting.py")):
        return
    for function in source.functions:
        spans = {name for node in ast.walk(function) for name in _spans(node)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                pairs = (
                    pair for each in ast.walk(node.test) if isinstance(each, ast.Compare) for pair in _lesser(each)
                )
                for lesser in pairs:
                    if any(_is_clock(part) or (isinstance(part, ast.Name) and part.id in spans) for part in lesser):
                        yield f"{node.lineno}: asserts that time has not passed"


def _spans(node: ast.AST) -> Iterator[str]:
    """Names that a statement gives a difference of times, or appends one to."""
    value: ast.expr | None = None
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        value, targets = node.value, node.targets
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append" and node.args
    ):
        value, targets = node.args[0], [node.func.value]
    if value is None or not any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) for part in ast.walk(value)
    ):
        return
    if any(_is_clock(part) for part in ast.walk(value)):
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


def _lesser(compare: ast.Compare) -> Iterator[list[ast.AST]]:
    """All parts of the lesser side of each inequality."""
    sides = [compare.left, *compare.comparators]
    for place, operator in enumerate(compare.ops):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield list(ast.walk(sides[place]))
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield list(ast.walk(sides[place + 1]))


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and re.fullmatch(CLOCKS, _dotted(node.func)) is not None


RULES: tuple[Rule, ...] = (
    chance_without_seed,
    upper_bounds_of_time,
    long_functions,
    long_files,
    prints,
    unfinished,
    broad_excepts,
    impure_cores,
    misplaced_imports,
    missing_module_docstring,
    missing_public_docstrings,
    riddles,
    nouns.names_without_noun,
    long_constructors,
    file_uris_by_hand,
    decisions_by_message,
    foreign_loggers,
    decimal_arithmetic,
    unmarked_spark,
)


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """They are needed here alone."""
    yield
    syntax.forget()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    complaints = [f"{source.path}:{complaint}" for source in SOURCES for complaint in rule(source)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_modules_import_in_no_circle() -> None:
    found = list(house.imports(house.modules()))
    assert house.circle(found) == []
    planted = next(each for each in found if not each.inside_function)
    assert house.circle([*found, house.Import(planted.target, planted.source, 1)])


def test_rooms_import_downwards_only() -> None:
    drawn = house.arrows(house.imports(house.modules()))
    complaints = list(house.upward(drawn))
    assert not complaints, "\n" + "\n".join(complaints)


def test_an_upward_import_is_found() -> None:
    planted = [house.Import("lakestore_server.files.journal", "lakestore_server.commit.engine", 1)]
    assert list(house.upward(house.arrows(iter(planted))))
    planted = [house.Import("lakestore_server.access.rights", "lakestore_server.state.view", 1)]
    assert list(house.upward(house.arrows(iter(planted)))), "rooms of one floor know nothing of each other"


def test_every_room_says_what_lives_there() -> None:
    known = house.modules()
    packages = {module: path for module, path in known.items() if path.name == "__init__.py"}
    folders = {path.parent for path in known.values()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
    empty = [module for module, path in packages.items() if not ast.get_docstring(syntax.tree(path.read_text()))]
    assert not [module for module in empty if module != "lakestore.v1"]


def test_no_symlink_stands_in_for_a_package() -> None:
    folders = [ROOT / name for name in (*PRODUCT, "tests", "proto")]
    assert not [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]


def test_every_limit_is_used() -> None:
    names = [field.name for field in fields(Limits)]
    rest = "\n".join(source.text for source in SOURCES if source.product and source.path != "lakestore/limits.py")
    assert len(names) > 5
    unused = [name for name in names if not re.search(rf"limits\.{name}\b", rest)]
    assert not unused, f"limits that nothing keeps: {', '.join(unused)}"


def test_every_limit_is_reached_by_a_test() -> None:
    tests = "\n".join(source.text for source in SOURCES if source.path.startswith("tests/"))
    untested = [field.name for field in fields(Limits) if not re.search(rf"Limits\([^()]*\b{field.name}=", tests)]
    assert not untested, f"limits that no test sets and reaches: {', '.join(untested)}"


def test_asserts_are_never_switched_off() -> None:
    """`python -O` drops asserts, and this code relies on them."""
    files = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci/run", *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    texts |= {source.path: source.text for source in SOURCES if source.path != "tests/test_tidy.py"}
    found = [name for name, text in texts.items() if re.search(r"PYTHONOPTIMIZE|(python3?|\$\(PY\)) -O", text)]
    assert not found
    assert __debug__


def test_no_address_of_a_package_index_or_absolute_path_is_pinned() -> None:
    for lock in (RUN_LOCK, DEV_LOCK):
        form = r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
        assert all(re.fullmatch(form, line) for line in lock.read_text().splitlines())


def test_tests_run_with_the_packages_that_users_get() -> None:
    assert _pins(RUN_LOCK) <= _pins(DEV_LOCK)


def _pins(lock: Path) -> set[str]:
    return {line for line in lock.read_text().splitlines() if "==" in line}


PLANTED: dict[Rule, tuple[str, str]] = {
    chance_without_seed: ("tests/x.py", "import random\n\nx = random.randrange(5)\n"),
    upper_bounds_of_time: ("tests/x.py", "def f() -> None:\n    assert time.monotonic() - began < 5\n"),
    long_functions: ("server/x.py", "def f() -> None:\n" + "    pass\n" * FUNCTION_LINES_MAX),
    long_files: ("server/x.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    prints: ("server/x.py", "print(1)\n"),
    unfinished: ("server/x.py", "x = 1  # TO" + "DO later\n"),
    broad_excepts: ("server/x.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    impure_cores: ("server/lakestore_server/commit/draft.py", "import time\n\nx = time.time()\n"),
    misplaced_imports: ("server/x.py", "import grpc\n"),
    missing_module_docstring: ("server/x.py", "x = 1\n"),
    foreign_loggers: ("server/x.py", "import logging\n\nlog = logging.getLogger(__name__)\n"),
    decimal_arithmetic: ("server/x.py", "def f(a: Decimal) -> Decimal:\n    return -a\n"),
    decisions_by_message: ("server/x.py", "try:\n    f()\nexcept E as e:\n    if 'full' in str(e):\n        g()\n"),
    missing_public_docstrings: ("server/x.py", '"""X."""\n\n\ndef f() -> None:\n    pass\n'),
    unmarked_spark: ("tests/x/test_x.py", "def test_x(spark: SparkSession) -> None:\n    pass\n"),
    file_uris_by_hand: ("server/x.py", "from urllib.parse import quote\n"),
    long_constructors: ("server/x.py", "class X:\n    def __init__(self, a, b, c, d, e, f): ...\n"),
    nouns.names_without_noun: ("server/x.py", "class Found:\n    pass\n"),
    riddles: ("server/x.py", '"""X."""\n\nY = 1\n"""As it was."""\n'),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_planted_violation_is_found(rule: Rule) -> None:
    path, text = PLANTED[rule]
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize("text", ["x = 'file://' + y", "x = f'file://{y}'", "x = y.as_uri()", "x = parse.unquote(y)"])
def test_a_planted_file_uri_is_found(text: str) -> None:
    assert list(file_uris_by_hand(Source("server/x.py", text)))


@pytest.mark.parametrize(
    "text",
    [
        "from decimal import Context\n",
        "x = y.scaleb(-2)\n",
        "def f(a: str) -> Any:\n    return Decimal(a) * 3\n",
        "def f(a: int) -> Any:\n    b = from_unscaled_value(a, 2)\n    return abs(b)\n",
    ],
)
def test_planted_decimal_arithmetic_is_found(text: str) -> None:
    assert list(decimal_arithmetic(Source("lakestore/x.py", text)))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (chance_without_seed, "import random\n\nx = random.Random()\n"),
        (chance_without_seed, "import numpy as np\n\nx = np.random.default_rng()\n"),
        (chance_without_seed, "import numpy as np\n\nx = np.random.permutation(5)\n"),
        (chance_without_seed, "import os\n\nx = os.urandom(5)\n"),
        (chance_without_seed, "from secrets import token_hex\n"),
        (upper_bounds_of_time, "def f() -> None:\n    took = time.time() - began\n    assert 0.1 <= took < 5\n"),
        (upper_bounds_of_time, "def f() -> None:\n    took.append(time.time() - began)\n    assert max(took) < 5\n"),
        (upper_bounds_of_time, "def f() -> None:\n    assert 5 > time.perf_counter() - began\n"),
    ],
)
def test_other_planted_chances_and_bounds_of_time_are_found(rule: Rule, text: str) -> None:
    assert list(rule(Source("tests/x.py", text)))


@pytest.mark.parametrize(
    "text",
    [
        "import random\n\nx = random.Random(5).random()\n",
        "def f(random: Random) -> int:\n    return random.randrange(5)\n",
        "import time\n\n\ndef f() -> None:\n    assert time.monotonic() - began >= 0.1\n",
    ],
)
def test_seeded_chance_and_lower_bounds_of_time_may_stand(text: str) -> None:
    source = Source("tests/x.py", text)
    assert not [*chance_without_seed(source), *upper_bounds_of_time(source)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("server/x.py", "from lakestore_tiering import flush\n"),
        ("server/x.py", "from lakestore import client\n"),
        ("lakestore/model/table.py", "import grpc\n"),
        ("spark_reader/x.py", "import lakestore_server.commit.engine\n"),
        ("server/x.py", "from server import engine\n"),
        ("jepsen/x.py", "from lakestore.client.grpc import connect\n"),
        ("jepsen/x.py", "import lakestore.limits\n"),
    ],
)
def test_a_planted_wrong_import_is_found(path: str, text: str) -> None:
    assert list(misplaced_imports(Source(path, text)))


def test_threads_of_the_server_are_supervised() -> None:
    begun = re.compile(r"threading\.(Thread|Timer)\(")
    files = {source.path for source in SOURCES if source.path.startswith("server/") and begun.search(source.text)}
    assert files <= THREADS, "a duty is a `Worker`, work that is done once `Supervisor.once`"


INDEX_INSTALL = re.compile(r"pip install ['\"]?lakestore\b")
"""A command that would install whatever a package index has under our name."""


def _index_installs(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if INDEX_INSTALL.search(line)]


def test_nobody_is_told_to_install_lakestore_from_an_index() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    code = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in [*pages, *code]
        if path.is_file() and (lines := _index_installs(path.read_text(errors="replace")))
    }
    assert found == {}
    assert _index_installs("text\nPython needs `pip install 'lakestore[kafka]'`.") == [2]
    assert _index_installs('pip install "dist/lakestore-0.3.0-py3-none-any.whl[kafka]"') == []
