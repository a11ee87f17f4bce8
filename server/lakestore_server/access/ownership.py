"""Ownership: producers, registers and subscriptions by name, leases by seal, lists by rights.

- The name `orders` of principal `etl` is stored as `etl/orders`. Nobody else can open, fence or acknowledge it, and the
  owner sees the short name.
- Administrators, and principals with `shared_names`, use stored names.
- The policy's row of a call says which fields are owned (`owns`) and which list is cut (`lists`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import orjson

from lakestore.errors import Denied, PlanExpired
from lakestore.model.names import DROPPED, HIDDEN
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.callers import Caller
from lakestore_server.access.finders import TableFacts, catalog_target
from lakestore_server.access.policy import Listing, Own, Row
from lakestore_server.access.principals import EVERYTHING

UNTOLD = "an administrator sees why"
_COUNTED = (
    pb.HeadRequest,
    pb.PlanRequest,
    pb.ChangesRequest,
    pb.OpenProducerRequest,
    pb.OpenRegistersRequest,
    pb.UploadPartRequest,
    pb.DropPartsRequest,
    pb.CommitRequest,
    pb.ReportRequest,
    pb.StoreKeyRequest,
)
"""Requests that use a principal's quota or create something that only this principal may use."""


def bind_tables(request: Any, known: TableFacts) -> None:
    """Bind a change stream to the uuids of the tables that were checked, whatever their names become."""
    if isinstance(request, pb.ChangesRequest) and len(request.table_uuids) in (0, len(request.tables)):
        said = request.table_uuids or [""] * len(request.tables)
        named = zip(request.tables, said, strict=True)
        request.table_uuids[:] = [uuid or known.uuid_of(name) or "" for name, uuid in named]


def to_stored_names(caller: Caller, row: Row, request: Any) -> None:
    """Replace names in a request by stored names and its lease by the granted one; `Denied` for names of others."""
    if isinstance(request, _COUNTED):
        request.owner = caller.counted_as
    if isinstance(request, pb.StoreKeyRequest):
        request.rights[:] = [right for right in ("read", "tier") if caller.principal.may(right, EVERYTHING)]
    if Own.PRODUCER in row.owns and request.producer:
        request.producer = _kept_name(caller, request.producer)
    if Own.REGISTERS in row.owns and request.registers:
        _keep_registers(caller, request)
    if Own.REGISTER_PREFIX in row.owns:
        _keep_prefix(caller, request)
    if Own.SUBSCRIPTION in row.owns and request.subscription:
        request.subscription = _kept_name(caller, request.subscription)
    if Own.LEASE in row.owns and request.lease and not caller.access.is_open:
        lease = caller.access.unseal(caller.principal, request.lease)
        if lease is None:
            raise PlanExpired("the lease is over, or belongs to another principal: plan again")
        request.lease = lease


def to_shown_names(caller: Caller, row: Row, answer: Any) -> None:
    """Seal an answer's lease for its owner and cut its list to what the caller may know."""
    if caller.access.is_open:
        return
    if Own.GRANTED_LEASE in row.owns and answer.lease:
        answer.lease = caller.access.seal(caller.principal, answer.lease)
    if row.lists is not None:
        _CUTS[row.lists](caller, answer)


def _keep_registers(caller: Caller, request: Any) -> None:
    if caller.access.is_open:
        return
    if isinstance(request, pb.CommitRequest):
        for move in request.registers:
            move.register = _kept_name(caller, move.register)
    else:
        request.registers[:] = [_kept_name(caller, name) for name in request.registers]


def _keep_prefix(caller: Caller, request: Any) -> None:
    """Leave other principals' names out of a list. An entry that is only cut from the answer would be missing where the
    next page starts."""
    if caller.owns_by_name:
        request.prefix = f"{caller.principal.name}/{request.prefix}"
        request.after = f"{caller.principal.name}/{request.after}" if request.after else ""
    request.hidden[:] = [] if caller.owns_by_name or caller.principal.administers else caller.access.principals()


def _kept_name(caller: Caller, name: str) -> str:
    if caller.owns_by_name:
        return f"{caller.principal.name}/{name}" if name else ""
    if not _is_shown(caller, name):
        raise Denied(f"the name {name!r} belongs to another principal: choose another name")
    return name


def _is_shown(caller: Caller, name: str) -> bool:
    owner, slash, _ = name.partition("/")
    if caller.owns_by_name:
        return bool(slash) and owner == caller.principal.name
    return caller.principal.administers or not (slash and caller.access.is_principal(owner))


def _shown_name(caller: Caller, name: str) -> str:
    return name.partition("/")[2] if caller.owns_by_name else name


def _cut_own(caller: Caller, entries: Any) -> None:
    own = [deepcopy(entry) for entry in entries if _is_shown(caller, entry.name)]
    for entry in own:
        entry.name = _shown_name(caller, entry.name)
    del entries[:]
    entries.extend(own)


def _cut_tables(caller: Caller, answer: pb.ListTablesAnswer) -> None:
    sees = caller.principal.sees
    if sees(EVERYTHING):
        return
    seen = [info.definition for info in answer.tables if sees(json.loads(info.definition)["name"])]
    del answer.tables[:]
    for definition in seen:
        answer.tables.add(definition=definition)


def _cut_dropped(caller: Caller, answer: pb.ListDroppedTablesAnswer) -> None:
    seen = [deepcopy(each) for each in answer.tables if caller.principal.sees(each.table)]
    del answer.tables[:]
    answer.tables.extend(seen)


def _cut_proposals(caller: Caller, answer: pb.ListProposalsAnswer) -> None:
    seen = [deepcopy(each) for each in answer.proposals if caller.principal.sees(each.table)]
    del answer.proposals[:]
    answer.proposals.extend(seen)


def _cut_databases(caller: Caller, answer: pb.ListDatabasesAnswer) -> None:
    """Leave only databases in which the caller sees a table or may make one."""
    principal = caller.principal
    seen = [deepcopy(each) for each in answer.databases if principal.sees_namespace(each.name)]
    del answer.databases[:]
    answer.databases.extend(seen)
    for each in answer.databases:
        if not principal.sees(catalog_target(each.name, EVERYTHING)):
            each.tables = 0


def _cut_subscriptions(caller: Caller, answer: pb.ListSubscriptionsAnswer | pb.TruncateTableAnswer) -> None:
    """Leave only the caller's own subscriptions; a truncate names them alone. A subscription stays even if the caller
    may no longer know its tables, so that it can be dropped, but without their names and figures."""
    if isinstance(answer, pb.ListSubscriptionsAnswer):
        _cut_own(caller, answer.subscriptions)
        for each in answer.subscriptions:
            if not _sees_all(caller, each.tables):
                each.tables[:] = [name if _sees_all(caller, [name]) else HIDDEN for name in each.tables]
                each.behind = 0
                del each.members[:]
        return
    answer.subscriptions[:] = [_shown_name(caller, name) for name in answer.subscriptions if _is_shown(caller, name)]


def _sees_all(caller: Caller, tables: Iterable[str]) -> bool:
    return all(name == DROPPED or caller.principal.sees(name) for name in tables)


def own_name(caller: Caller, kept_as: str) -> str | None:
    """The caller's name of a stored name; None if another principal owns it."""
    return _shown_name(caller, kept_as) if _is_shown(caller, kept_as) else None


def shown_holder(caller: Caller, holder: str) -> str:
    """A holder of a table's log as the caller may know it; another principal's subscription has no name."""
    kind, _, name = holder.partition(" ")
    if kind != "subscription":
        return holder
    return f"subscription {_shown_name(caller, name)}" if _is_shown(caller, name) else "another's subscription"


def cut_status(caller: Caller, said: dict[str, Any]) -> dict[str, Any]:
    """The JSON form of a status as the caller may see it."""
    if caller.principal.administers:
        return said
    if not caller.principal.sees(EVERYTHING):
        said = {**said, **_without_sentences(said)}
    tables = [table for table in said["tables"] if caller.principal.sees(table["name"])]
    reports = [each for each in said["reports"] if _is_shown(caller, each["name"])]
    return {
        **said,
        "tables": [
            {**table, "held_by": [shown_holder(caller, holder) for holder in table["held_by"]]}
            if "held_by" in table
            else table
            for table in tables
        ],
        "reports": [{**each, "name": _shown_name(caller, each["name"])} for each in reports],
    }


def _without_sentences(said: dict[str, Any]) -> dict[str, Any]:
    """A server's part without the sentences of damage and errors, which may name any table or file."""
    damage, duties, index = said["damage"], said["duties"], said["index"]
    told = f"damaged places: {len(damage)}; an administrator can list them"
    return {
        "index": "ready" if index.partition(";")[0] == "ready" else f"not ready: {UNTOLD}",
        "damage": [told] if isinstance(damage, list) and damage else damage,
        "duties": {name: {**duty, "error": UNTOLD if duty["error"] else ""} for name, duty in duties.items()},
    }


def _cut_status(caller: Caller, answer: pb.StatusAnswer) -> None:
    if not caller.principal.administers:
        answer.status = orjson.dumps(cut_status(caller, orjson.loads(answer.status))).decode()


_CUTS: dict[Listing, Callable[[Caller, Any], None]] = {
    Listing.TABLES: _cut_tables,
    Listing.DROPPED: _cut_dropped,
    Listing.PROPOSALS: _cut_proposals,
    Listing.DATABASES: _cut_databases,
    Listing.STATUS: _cut_status,
    Listing.SUBSCRIPTIONS: _cut_subscriptions,
    Listing.PRODUCERS: lambda caller, answer: _cut_own(caller, answer.producers),
    Listing.REGISTERS: lambda caller, answer: _cut_own(caller, answer.registers),
}
