"""Rules for changes of a table that has an owner, and for changes of columns that need an approval.

- The owner and the delegates change everything. Another principal with `admin` changes how the lake is maintained, and
  columns as the policy says.
- An administrator of the whole server can name another owner, and nothing else: a table is not lost with its owner.
- A refusal by these rules is a decision: `decided` writes it to the audit. A change is audited in its own commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass

from lakestore.errors import Denied, Invalid, LakestoreError
from lakestore.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SetContract,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
    to_json,
)
from lakestore.model.contract.document import WHY_CHARS_MAX
from lakestore.model.contract.ownership import APPROVE, REFUSE, Ownership
from lakestore.model.table import Table
from lakestore_server.access.principals import ANYONE, Principal
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import Completion, IndexEntries, T
from lakestore_server.commit.system_rows import add_decision
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import View

CALLER: ContextVar[Principal] = ContextVar("caller", default=ANYONE)
"""The principal that asks for what this code does; `ANYONE` in duties and in a server without principals."""
MAINTENANCE = ("freshness", "target_file_bytes", "snapshots", "snapshot_seconds", "upkeep_percent", "upkeep_files")
"""Options of the lake that whoever has `admin` may set."""
_KINDS: dict[type[Step], str] = {
    AddColumn: "add",
    WidenColumn: "widen",
    MakeOptional: "widen",
    RenameColumn: "rename",
    DropColumn: "drop",
}
DONE, DENIED, REFUSED = "done", "denied", "refused"
"""Outcomes of a decision."""
APPROVAL = "approve"
"""The action of a decision to alter a table by a proposal. Only the verb of proposals makes one."""
_WHAT_CHARS_MAX = 2_000


class called_by:  # noqa: N801 - read as a verb: `with called_by(principal)`
    """Run a block for a principal."""

    __slots__ = ("_principal", "_token")
    _token: Token[Principal]

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def __enter__(self) -> None:
        self._token = CALLER.set(self._principal)

    def __exit__(self, *_: object) -> None:
        CALLER.reset(self._token)


class OwnerDenied(Denied):
    """A change that only the owner or a delegate makes."""

    def __init__(self, message: str, table: Table, decision: Decision) -> None:
        super().__init__(message)
        self.table, self.decision, self.outcome = table, decision, DENIED


class PolicyRefused(Invalid):
    """A change of columns that the contract refuses to everybody."""

    def __init__(self, message: str, table: Table, decision: Decision) -> None:
        super().__init__(message)
        self.table, self.decision, self.outcome = table, decision, REFUSED


class ApprovalMissing(LakestoreError):
    """A change of columns that waits for an approver. It never leaves the server: it becomes a proposal."""

    def __init__(self, table: Table) -> None:
        super().__init__("the change waits for an approval")
        self.table = table


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a principal does, or wants to do, to a table."""

    principal: Principal
    action: str
    what: str
    why: str = ""

    @staticmethod
    def of_caller(action: str, what: str, why: str = "") -> Decision:
        """A decision of the principal that this thread works for. Raises `Invalid` for a reason that is too long."""
        if len(why) > WHY_CHARS_MAX:
            raise Invalid(f"the reason of a change has at most {WHY_CHARS_MAX} characters, not {len(why)}")
        return Decision(CALLER.get(), action, what[:_WHAT_CHARS_MAX], why)

    @property
    def name(self) -> str:
        """The principal's name; empty on a server without principals."""
        return "" if self.principal is ANYONE else self.principal.name

    def is_free(self, owner: Ownership | None) -> bool:
        """Whether the principal is an owner, or no rule applies."""
        return owner is None or self.principal is ANYONE or owner.is_owner(self.name)

    def check_owner(self, table: Table) -> None:
        """`OwnerDenied` unless the principal may do whatever it likes with the table."""
        owner = owner_of(table)
        if owner is not None and not self.is_free(owner):
            raise OwnerDenied(
                f"only {owner.owner}, the owner of table {table.name}, or a delegate does this ({self.action}),"
                f" not {self.name}: ask {owner.owner}",
                table,
                self,
            )

    def add(self, view: View, record: CommitRecord, table: Table, outcome: str = DONE) -> None:
        """Add the decision to a commit of its table, if that has a contract."""
        if table.contract is not None:
            add_decision(
                view,
                record,
                table,
                principal=self.name,
                action=self.action,
                what=self.what,
                why=self.why,
                outcome=outcome,
                version=table.contract.version,
            )

    def make(self, view: View, record: CommitRecord, table: Table) -> None:
        """Check the owner's rule for a table and add the decision to the commit."""
        self.check_owner(table)
        self.add(view, record, table)


def owner_of(table: Table) -> Ownership | None:
    """The owner of a table; None for a table without one."""
    return table.contract.owner if table.contract else None


def check_steps(before: Table, made: Table, steps: Sequence[Step], decision: Decision) -> None:
    """Check an alteration by the contract of the table before it. Raises `OwnerDenied`, `PolicyRefused` or
    `ApprovalMissing`."""
    if before.contract is None or made == before:
        return
    owner, policy = before.contract.owner, before.contract.schema_changes
    if not decision.is_free(owner) and any(_is_for_owner(step) for step in steps):
        if not _names_owner(before, made, steps, decision.principal):
            decision.check_owner(before)
    is_approved = decision.action == APPROVAL or is_approver(before, decision.principal)
    waits = False
    for kind in dict.fromkeys(_KINDS[type(step)] for step in steps if type(step) in _KINDS):
        if policy.of(kind) == REFUSE:
            raise PolicyRefused(
                f"the contract of table {before.name} refuses changes of the kind {kind!r}: its owner"
                f"{f' {owner.owner}' if owner else ''} applies a contract that allows it first",
                before,
                decision,
            )
        waits |= policy.of(kind) == APPROVE and not is_approved
    if waits:
        raise ApprovalMissing(before)


def is_approver(table: Table, principal: Principal) -> bool:
    """Whether a principal decides about changes of a table's columns. On a server without principals nobody is one: an
    alteration becomes a proposal, which anybody approves."""
    owner = owner_of(table)
    return owner is not None and principal is not ANYONE and owner.is_approver(principal.name)


def _is_for_owner(step: Step) -> bool:
    if isinstance(step, SetOptions):
        others = {name for name in _set_fields(step) if name != "lake"}
        return bool(others) or not set(step.lake) <= set(MAINTENANCE)
    return isinstance(step, SetContract | SetDefault)


def _set_fields(step: SetOptions) -> list[str]:
    return [name for name in SetOptions.__dataclass_fields__ if getattr(step, name) not in ("unchanged", {})]


def _names_owner(before: Table, made: Table, steps: Sequence[Step], principal: Principal) -> bool:
    """Whether an administrator of the whole server names another owner, and changes nothing else."""
    if not principal.administers or not all(isinstance(step, SetContract) for step in steps):
        return False
    assert before.contract is not None
    is_owned = made.contract is not None and made.contract.owner is not None
    return is_owned and made.contract is not None and before.contract.is_same_but_owner(made.contract)


def decided(
    engine: Engine, plan: Callable[[State, CommitRecord], T], entries: Callable[[T], IndexEntries] | None = None
) -> Completion[T]:
    """Run an operation like `Engine.operate`; a refusal by the rules of this module is written to the audit before it
    is raised."""
    try:
        return engine.operate(plan, entries)
    except (OwnerDenied, PolicyRefused) as verdict:
        write_refusal(engine, verdict)
        raise


def write_refusal(engine: Engine, verdict: OwnerDenied | PolicyRefused) -> None:
    """Write a refusal to the audit, in a commit of its own."""

    def plan(state: State, record: CommitRecord) -> None:
        verdict.decision.add(state.view, record, verdict.table, verdict.outcome)

    engine.operate(plan)


def words_of(steps: Sequence[Step]) -> str:
    """An alteration as one sentence."""
    return "; ".join(map(_words, steps)) or "nothing"


def _words(step: Step) -> str:
    if isinstance(step, AddColumn):
        return f"add column {step.name!r} of type {step.type}"
    if isinstance(step, WidenColumn):
        return f"widen column {step.name!r} to {step.type}"
    if isinstance(step, RenameColumn):
        return f"rename column {step.name!r} to {step.to!r}"
    if isinstance(step, DropColumn):
        return f"drop column {step.name!r}"
    if isinstance(step, MakeOptional):
        return f"let column {step.name!r} be null"
    if isinstance(step, SetContract):
        return "apply a contract" if step.document else "end the contract"
    return to_json([step])
