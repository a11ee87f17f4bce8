"""Verbs of tables: create, alter, rename, get, list. One commit creates a table and its lake table."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from lakestore import evolution
from lakestore.errors import Conflict, Invalid, LimitReached, NeedsApproval, NotFound
from lakestore.evolution import DropColumn, RenameColumn, SetContract
from lakestore.iceberg.values import decimal_of, fixed_of
from lakestore.limits import Limits
from lakestore.model import alteration, dead_letter_table
from lakestore.model import table as schema
from lakestore.model.columns import LAKE_COLUMNS
from lakestore.model.contract import deletes
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.rules import DEAD_LETTER
from lakestore.model.names import ADOPTING
from lakestore.model.outside_values import shown_name
from lakestore.model.table import Table, check_database
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import catalog, locations, our_tables, owners, schemas
from lakestore_server.catalog.catalog import Catalog, move_pointer
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.catalog.owners import Decision
from lakestore_server.catalog.schemas import Json
from lakestore_server.catalog.system_tables import make_system_tables
from lakestore_server.commit.contract_rows import TableRules
from lakestore_server.commit.engine import Engine
from lakestore_server.state.catalog_change import CatalogStep, DropNamespace, SetNamespace, SetPointer
from lakestore_server.state.commit_record import CommitRecord, Rename
from lakestore_server.state.erasure import ErasureStep
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View


def check_free(view: View, table: Table, limits: Limits) -> None:
    """Refuse a name that is taken or not allowed."""
    schema.check(table, limits)
    schema.refuse_system_database(table.namespace)
    locations.check_namespace(table.namespace)
    if table.is_adopting:
        raise Invalid(f"table name {table.name} ends with {ADOPTING}, which is for adoptions that run: choose another")
    if table.name in view.names:
        raise Conflict(f"table {table.name} exists already")
    if (table.namespace, table.short_name) in view.pointers:
        raise Conflict(f"the catalog has a table {table.name} already, which is not Lakestore's")
    if (table.namespace, table.short_name) in view.sql_views:
        raise Conflict(f"there is a view {table.name}: choose another name")


def refuse_adopting(table: Table) -> None:
    """`Conflict` if a table takes the rows of an adoption: under another name or with other columns it would not be the
    table that is adopted."""
    if table.is_adopting:
        raise Conflict(
            f"table {table.name} takes the rows of an adoption, which gives it its name: wait for its end, or drop it"
            f" (`lakestore drop {table.name} --now`)"
        )


def refuse_feeds(state: State, name: str) -> None:
    """`Conflict` if a table that gets another name has feeds: their names hold the present one."""
    feeds = [feed for feed, _ in state.registers.said(name, state.view.lsn)]
    if feeds:
        raise Conflict(
            f"table {name} has the feed {feeds[0]!r}, a register that is named after it: drop it first, with"
            f" `lakestore producers --drop-registers {feeds[0]}`, and have it opened under the new name"
        )


def plan(
    limits: Limits, name: str, uuid: str, new_name: str, key: str = "", outside_letters: str = ""
) -> Callable[[State, CommitRecord], Table]:
    """The plan of a rename; its result is the definition under the new name. `outside_letters` is the uuid of the
    dead-letter table that got its new name in an outside catalog already; empty if none did."""
    by = Decision.of_caller("rename", f"table {name} to {new_name}")

    def renamed(state: State, record: CommitRecord) -> Table:
        view = state.view
        table = view.meant(name, uuid).table
        view.refuse_change(table)
        refuse_adopting(table)
        made = replace(table, name=new_name)
        if new_name == name:
            return table
        by.make(view, record, table)
        _move(limits, state, record, table, made, key)
        move_letters(limits, state, record, by, (name, new_name), outside_letters)
        return made

    return renamed


def letters_of(view: View, name: str) -> Table | None:
    """The dead-letter table of the table `name`, if there is one."""
    uuid = view.names.get(dead_letter_table.table_of(name))
    letters = view.tables[uuid].table if uuid else None
    return letters if letters is not None and dead_letter_table.has_letters(letters) else None


def move_letters(
    limits: Limits, state: State, record: CommitRecord, by: Decision, names: tuple[str, str], outside: str
) -> None:
    """Move the dead letters of a table that gets another name. They belong to the table, so a right on their own names
    is not needed. If a contract names another owner for them, only that owner moves them."""
    (name, new_name), view = names, state.view
    letters = letters_of(view, name)
    if (letters.uuid if letters is not None and is_outside(letters) else "") != outside:
        raise Conflict(f"the dead letters of table {name} were created, dropped or renamed meanwhile: try again")
    if letters is None:
        return
    moved = replace(letters, name=dead_letter_table.table_of(new_name))
    if moved.name in view.names:
        raise Conflict(
            f"table {letters.name} has the dead letters of {name} and moves with it, but table {moved.name}"
            f" exists already: first rename or drop {moved.name}"
        )
    view.refuse_change(letters)
    by.make(view, record, letters)
    _move(limits, state, record, letters, moved)


def _move(limits: Limits, state: State, record: CommitRecord, table: Table, made: Table, key: str = "") -> None:
    """Give a table and its pointer another name, if that name is free."""
    check_free(state.view, made, limits)
    refuse_feeds(state, table.name)
    record.rename.append(Rename(table.uuid, made.name))
    move_pointer(state.view, record, (table.namespace, table.short_name), (made.namespace, made.short_name), key)


class Databases:
    """The verbs of databases. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list_databases(self, _: pb.ListDatabasesRequest) -> pb.ListDatabasesAnswer:
        """All databases by name, with the number of our tables in each."""
        view = self._engine.view
        tables = Counter(name.partition(".")[0] for name in view.names)
        entries = [pb.DatabaseEntry(name=name, tables=tables[name]) for name in sorted({*view.namespaces, *tables})]
        return pb.ListDatabasesAnswer(databases=entries)

    def create_database(self, request: pb.DatabaseRequest) -> pb.DatabaseAnswer:
        """Create an empty database. Creating a table creates its database."""
        name = request.database
        check_database(name)
        schema.refuse_system_database(name)
        locations.check_namespace(name)

        def plan(state: State, record: CommitRecord) -> None:
            if name in state.view.namespaces:
                raise Conflict(f"database {name} exists already")
            catalog.add_steps(state.view, record, SetNamespace(name))

        return pb.DatabaseAnswer(token=self._engine.operate(plan).view.token())

    def drop_database(self, request: pb.DatabaseRequest) -> pb.DatabaseAnswer:
        """Remove an empty database."""
        name = request.database

        def plan(state: State, record: CommitRecord) -> None:
            view = state.view
            if name not in view.namespaces:
                raise NotFound(f"there is no database {shown_name(name)}")
            inside = sorted(table for namespace, table in (*view.pointers, *view.sql_views) if namespace == name)
            if inside:
                more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
                kind = "table" if (name, inside[0]) in view.pointers else "view"
                raise Invalid(
                    f"database {name} is not empty: it has the {kind} {inside[0]}{more}; drop its {kind}s first"
                )
            catalog.add_steps(view, record, DropNamespace(name))

        return pb.DatabaseAnswer(token=self._engine.operate(plan).view.token())


_DATES = ("date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_WHOLE = ("int", "long")
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "identity": (*_WHOLE, *_DATES, "time", "boolean", "float", "double", "string", "uuid", "binary", "decimal"),
    "bucket": (*_WHOLE, *_DATES, "time", "string", "uuid", "binary", "decimal", "fixed"),
    "truncate": (*_WHOLE, "string", "binary"),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _DATES[1:],
}
"""Transform to the source types whose values Java can store. Java 1.12 writes an identity of `fixed` so that no reader
can read the manifest. It refuses a decimal that `truncate` took below the type's minimum: one row near the minimum
would stop the tiering of its table."""
_TRANSFORM = re.compile(r"(\w+)(?:\[(\d+)\])?")


def check_new(table: Table) -> None:
    """Refuse a new table's definition that Java cannot build."""
    check_version(table, table)
    types = {number: kind for number, _, kind in schemas.fields(our_tables.schema_of(table))}
    for part, text in zip(our_tables.spec_of(table)["fields"], table.lake.partition_by, strict=True):
        _check_transform(table, text, part["transform"], types[part["source-id"]])


def _check_transform(table: Table, text: str, transform: str, kind: str) -> None:
    match = _TRANSFORM.fullmatch(transform)
    assert match is not None
    plain = "decimal" if decimal_of(kind) else "fixed" if fixed_of(kind) is not None else kind
    if plain not in _SOURCES[match[1]]:
        known = [name for name, sources in _SOURCES.items() if plain in sources]
        raise Invalid(
            f"table {table.name}: partition field {text!r} has no values that engines can store for the type {kind};"
            f" use {', '.join(known)}"
        )
    if match[2] is not None and not int(match[2]):
        raise Invalid(f"table {table.name}: partition field {text!r} needs a number from 1 up")


def check_version(first: Table, table: Table) -> None:
    """Refuse a table's version that Java cannot build. Partition fields of the first version keep their names."""
    schema = our_tables.schema_of(table)
    taken: dict[str, tuple[int, str]] = {}
    for number, name, _ in schemas.fields(schema):
        other = taken.setdefault(name.lower(), (number, name))
        if other[0] != number:
            raise Invalid(
                f"table {table.name}: column or nested field {name!r} has the same name as {other[1]!r} (upper and"
                " lower case are alike): choose another name"
            )
    schemas.check_schema(schema, table.lake.format_version)
    specs = [our_tables.spec_of(first)]
    if not our_tables.has_spec(table, specs[0]):
        numbered = [our_tables.numbered_name(part) for part in table.lake.partition_fields()]
        fields = our_tables.spec_of(table)["fields"]
        named = [{**part, "name": name} for part, name in zip(fields, numbered, strict=True)]
        specs += [{"fields": fields}, {"fields": named}]
    for spec in specs:
        parts: set[str] = set()
        for part in spec["fields"]:
            _check_part(table, part, taken, parts)
            parts.add(part["name"].lower())


def _check_part(table: Table, part: Json, taken: Mapping[str, tuple[int, str]], parts: set[str]) -> None:
    name = part["name"].lower()
    if name in parts:
        raise Invalid(
            f"table {table.name}: two fields of the lake's partitioning have the name {part['name']!r}: keep one"
        )
    number, column = taken.get(name, (part["source-id"], ""))
    if number != part["source-id"]:
        raise Invalid(
            f"table {table.name}: column {column!r} has the name of a field of the lake's partitioning:"
            " choose another name"
        )


def _check_layout(held: TableState, made: Table) -> None:
    """Refuse a new partitioning that engines cannot store."""
    if is_outside(made):
        raise Invalid(
            f"table {made.name} lives in the catalog {made.lake.catalog}: partition_by and sort_by of such a table"
            " cannot change"
        )
    types = {number: kind for number, _, kind in schemas.fields(our_tables.schema_of(made))}
    for part, text in zip(our_tables.spec_of(made)["fields"], made.lake.partition_by, strict=True):
        _check_transform(made, text, part["transform"], types[part["source-id"]])


def _check_partition_columns(held: TableState, made: Table) -> None:
    """Refuse to drop a column by which the lake was partitioned: engines open no table with such a partitioning."""
    kept = {column.id for column in made.columns}
    for version in held.versions.tables:
        for part in version.lake.partition_fields():
            if part.column not in LAKE_COLUMNS and version.column(part.column).id not in kept:
                raise Invalid(
                    f"table {made.name}: column {part.column!r} was in the lake's partitioning and cannot be dropped"
                )


def altered_copy(view: View, made: Table) -> list[Table]:
    """The definition of the copy of a running rescale after an alteration of its source; empty without a rescale."""
    held = view.rescales.get(made.uuid)
    return [as_copy(made, view.tables[held.copy].table)] if held else []


def as_copy(table: Table, copy: Table) -> Table:
    """A version of a table as the version of its copy."""
    return replace(table, name=copy.name, uuid=copy.uuid, number=copy.number, buckets=copy.buckets)


def stamped(made: Table, versions: Sequence[Table], by: str, record: CommitRecord) -> Table:
    """The definition with the next version of its contract, and who applied it when, if the contract is a new one."""
    if made.contract is None or made.contract.version:
        return made
    last = max((table.contract.version for table in versions if table.contract), default=0)
    return replace(made, contract=replace(made.contract, version=last + 1, by=by, at_us=record.time_us))


def altered(held: TableState, steps: Sequence[evolution.Step], limits: Limits) -> Table:
    """The definition after the steps, or `Invalid`. Who may do that is not checked."""
    table = held.table
    made = alteration.apply_steps(table, steps, limits)
    check_version(held.versions.tables[0], made)
    _check_partition_columns(held, made)
    if alteration.layout(made) != alteration.layout(table):
        _check_layout(held, made)
    if made.schema_id >= limits.schema_versions:
        raise Invalid(
            f"table {table.name} has had {limits.schema_versions} schema versions, the most that are kept: make a new"
            " table"
        )
    return made


def add_alteration(
    limits: Limits, state: State, record: CommitRecord, held: TableState, steps: Sequence[evolution.Step], by: Decision
) -> Table:
    """Add an alteration, if its decider may make it, and the decision to a commit; returns the new definition."""
    state.view.refuse_change(held.table)
    refuse_adopting(held.table)
    made = altered(held, steps, limits)
    if made == held.table:
        return made
    if any(isinstance(step, RenameColumn | DropColumn) for step in steps):
        state.view.refuse_searching(held.table)
    owners.check_steps(held.table, made, steps, by)
    _check_altered_rules(held.table, made)
    made = alteration.with_old_names(held.table, made, record.clock_us)
    made = stamped(made, held.versions.tables, by.name, record)
    record.alter += [made, *altered_copy(state.view, made)]
    decision = by
    if made.contract != held.table.contract and by.action == "alter":
        decision = contract_decision(by, made.contract, [step for step in steps if not isinstance(step, SetContract)])
    decision.add(state.view, record, made if made.contract else held.table)
    return made


def _check_altered_rules(before: Table, made: Table) -> None:
    """Refuse an alteration after which a write cannot check a rule, or a rule reads another column."""
    if made.contract is None or (made.contract, made.columns) == (before.contract, before.columns):
        return
    if made.contract == before.contract:
        TableRules(before).check_same_names(made)
    TableRules(made)


def contract_decision(by: Decision, contract: Contract | None, others: Sequence[evolution.Step] = ()) -> Decision:
    """The decision to apply or end a contract, with the alteration's other steps."""
    what = f"version {contract.version} of the contract" if contract else "the table has no contract any more"
    action = "apply contract" if contract else "end contract"
    return replace(by, action=action, what="; ".join((what, owners.words_of(others))) if others else what)


Propose = Callable[[Table, Sequence[evolution.Step], Decision, pb.Proposal], NeedsApproval]
"""Stores a proposal and returns the error that names it."""


class TableVerbs:
    """The verbs of table definitions. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, propose: Propose, *, owner_required: bool) -> None:
        self._engine, self._catalog = engine, catalog
        self._propose, self._owner_required = propose, owner_required

    def create_table(self, request: pb.CreateTableRequest) -> pb.TableInfo:
        table = replace(
            Table.received(request.definition), uuid=str(uuid.uuid4()), schema_id=0, former=(), old_names=()
        )
        if table.contract is not None:
            unversioned = Contract(table.contract.document, table.contract.object, why=table.contract.why)
            table = deletes.obeyed(alteration.bind_contract(replace(table, contract=unversioned)))
        schema.check(table, self._engine.limits)
        if table.name in self._engine.view.names:
            raise Conflict(f"table {table.name} exists already")
        schema.refuse_system_database(table.namespace)
        table = self._catalog.outside.catalogs.placed(table)
        check_new(table)
        self._check_owned(table)
        locations.check_namespace(table.namespace)
        has_letters = self._check_rules(table)
        if request.check_only:
            return pb.TableInfo(definition=table.to_json())
        if has_letters:
            self.dead_letters(table)
        if table.contract is not None:
            make_system_tables(self._engine, self._catalog)
        with self._catalog.creating(table) as step:
            return self._created(table, step)

    def _created(self, table: Table, step: SetPointer) -> pb.TableInfo:
        by = Decision.of_caller("apply contract", "", table.contract.why if table.contract else "")

        def plan(state: State, record: CommitRecord) -> Table:
            if table.name in state.view.names:
                raise Conflict(f"table {table.name} exists already")
            check_room(state, self._engine.limits.tables)
            made = stamped(replace(table, number=state.next_number), (), by.name, record)
            record.create.append(made)
            steps: list[CatalogStep] = [step]
            if table.namespace not in state.view.namespaces:
                steps.insert(0, SetNamespace(table.namespace))
            catalog.add_steps(state.view, record, *steps)
            contract_decision(by, made.contract).add(state.view, record, made)
            return made

        return pb.TableInfo(definition=self._engine.operate(plan).result.to_json())

    def _check_rules(self, table: Table) -> bool:
        """Whether rules of the contract make dead letters. `Invalid` for a rule that no write can check, and if
        another kind of table has the name of the dead-letter table."""
        if table.contract is None:
            return False
        has_letters = table.deletes == DEAD_LETTER or TableRules(table).has_letters
        view, name = self._engine.view, dead_letter_table.table_of(table.name)
        if has_letters and name in view.names:
            dead_letter_table.check(view.named(name).table, table.name)
        return has_letters

    def dead_letters(self, table: Table) -> Table:
        """The dead-letter table of a table. It is made if there is none."""
        name = dead_letter_table.table_of(table.name)
        if name not in self._engine.view.names:
            definition = dead_letter_table.definition(table.name)
            with suppress(Conflict):  # another request has made it
                self.create_table(pb.CreateTableRequest(definition=definition.to_json()))
        letters = self._engine.view.named(name).table
        dead_letter_table.check(letters, table.name)
        return letters

    def alter_table(self, request: pb.AlterTableRequest) -> pb.TableInfo:
        """Change a table's definition from the next commit on. `NeedsApproval` if that became a proposal."""
        steps = evolution.from_json(request.alteration)
        contracts = [step for step in steps if isinstance(step, SetContract)]
        why = contracts[0].why if contracts else request.why
        by = Decision.of_caller("alter", owners.words_of(steps), why)
        if request.proposal.only:
            table = self._engine.view.meant(request.table, request.table_uuid).table
            table.refuse_change()
            if contracts:
                self._checked(request, steps, by, is_shown=True)
            raise self._propose(table, steps, replace(by, action="propose"), request.proposal)

        if request.check_only:
            return pb.TableInfo(definition=self._checked(request, steps, by, is_shown=True).to_json())

        def plan(state: State, record: CommitRecord) -> Table:
            held = state.view.meant(request.table, request.table_uuid)
            self._check_alteration(held.table, request.schema_id)
            made = add_alteration(self._engine.limits, state, record, held, steps, by)
            self._check_new_contract(made, held.table)
            return made

        try:
            if contracts:
                made = self._checked(request, steps, by)
                if made.contract is not None:
                    make_system_tables(self._engine, self._catalog)
                    if self._check_rules(made):
                        self.dead_letters(made)  # a row that breaks a rule finds its place
            return pb.TableInfo(definition=self._engine.operate(plan).result.to_json())
        except owners.ApprovalMissing as missing:
            raise self._propose(missing.table, steps, replace(by, action="propose"), request.proposal) from None
        except (owners.OwnerDenied, owners.PolicyRefused) as verdict:
            owners.write_refusal(self._engine, verdict)
            raise

    def _checked(
        self, request: pb.AlterTableRequest, steps: Sequence[evolution.Step], by: Decision, *, is_shown: bool = False
    ) -> Table:
        """The definition as it would be. With `is_shown` a change that waits for an approval is shown as approved."""
        held = self._engine.view.meant(request.table, request.table_uuid)
        held.table.refuse_change()
        self._check_alteration(held.table, request.schema_id)
        made = altered(held, steps, self._engine.limits)
        self._check_new_contract(made, held.table)
        with suppress(*([owners.ApprovalMissing] if is_shown else [])):
            owners.check_steps(held.table, made, steps, by)
        return made

    def _check_new_contract(self, made: Table, before: Table) -> None:
        if made.contract != before.contract:
            self._check_rules(made)
            self._check_owned(made, before)

    @staticmethod
    def _check_alteration(table: Table, schema_id: int) -> None:
        if table.schema_id != schema_id:
            raise Conflict(
                f"table {table.name} has schema version {table.schema_id}, the change was made for {schema_id}:"
                " load the table again"
            )

    def _check_owned(self, made: Table, before: Table | None = None) -> None:
        """`Invalid` for a table without an owner, where the server asks for one. A table from before stays as it is."""
        if not self._owner_required or owners.owner_of(made) is not None:
            return
        if before is not None and owners.owner_of(before) is None:
            return
        with suppress(Invalid):
            dead_letter_table.check(made, made.name.removesuffix(dead_letter_table.SUFFIX))
            return
        raise Invalid(
            f"table {made.name} has no owner, and this server asks for one (owner_required): first apply a contract"
            " with the property lakestore.owner by `lakestore contract apply`, which makes the table (docs/owners.md)"
        )

    def rename_table(self, request: pb.RenameTableRequest) -> pb.TableInfo:
        held = self._engine.view.meant(request.table, request.table_uuid).table
        names = request.table, held.uuid, request.new_name
        with (
            self._catalog.renaming(held, request.new_name)
            if request.new_name != held.name
            else nullcontext("") as moved
        ):
            made = plan(self._engine.limits, *names, outside_letters=moved)
            return pb.TableInfo(definition=owners.decided(self._engine, made).result.to_json())

    def get_table(self, request: pb.TableRequest) -> pb.TableInfo:
        return pb.TableInfo(definition=self._engine.view.named(request.table).table.to_json())

    def list_tables(self, _: pb.ListTablesRequest) -> pb.ListTablesAnswer:
        view = self._engine.view
        tables = (view.named(name).table for name in sorted(view.names))
        infos = [pb.TableInfo(definition=t.to_json(), erasure=self._erasure(view, t.uuid)) for t in tables]
        return pb.ListTablesAnswer(tables=infos)

    def _erasure(self, view: View, uuid: str) -> pb.LakeErasure | None:
        """The erasure that waits for the tierer: for its rewrite, or past the deadline for files of killed rounds."""
        held = view.erasing(uuid)
        if held is None or held.step is ErasureStep.ROWS:
            return None
        part = held.part(uuid)
        if not view.tables[uuid].table.keyed and part.rows and not part.dead_lsn and view.dying(uuid) is None:
            return None  # the log has the rows yet
        now = self._engine.time.read()
        is_past = held.is_past(now.time_us, may_delete=now.may_delete)
        if held.step is ErasureStep.LOG and not is_past:
            return None
        dying = view.dying(uuid)
        rows = [part.serialize() for part in dying.offsets] if dying else []
        return pb.LakeErasure(id=held.id, floors=view.floors(uuid), past=is_past, rows=rows)


def check_room(state: State, most: int) -> None:
    """Check that one more table fits. Dropped tables count, otherwise repeated create and drop would fill the disk."""
    dropped = len(state.view.dropped)
    if len(state.view.tables) + dropped < most:
        return
    kept = f", {dropped} of them dropped ones: `lakestore drop NAME --now` removes such a one" if dropped else ""
    raise LimitReached(f"the server has {most} tables, its limit{kept}")
