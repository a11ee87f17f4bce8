"""What belongs to one principal: producers and subscriptions by their names, leases by their seals.

A name `orders` of the principal `etl` is kept as `etl/orders`, so that nobody else can open, fence or acknowledge it;
its owner never sees the longer name. Administrators, and principals with `shared_names`, use names as they are kept.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from lakestore.errors import Denied, PlanExpired
from lakestore_server.access.callers import Caller

_NAMES = ("producer", "subscription")


def kept(caller: Caller, request: Any) -> None:
    """Put the names of a request as they are kept, and its lease as it was granted; `Denied` for those of others."""
    fields = request.DESCRIPTOR.fields_by_name
    for field in _NAMES:
        if field in fields and getattr(request, field):
            setattr(request, field, _kept_name(caller, getattr(request, field)))
    if "lease" in fields and request.lease and not caller.access.is_open:
        lease = caller.access.unseal(caller.principal, request.lease)
        if lease is None:
            raise PlanExpired("the lease is over, or another principal's: plan again")
        request.lease = lease


def shown(caller: Caller, answer: Any) -> None:
    """Put an answer's lease as its owner must send it, and leave out subscriptions of others."""
    fields = answer.DESCRIPTOR.fields_by_name
    if "lease" in fields and answer.lease and not caller.access.is_open:
        answer.lease = caller.access.seal(caller.principal, answer.lease)
    if "subscriptions" in fields:
        own = [deepcopy(info) for info in answer.subscriptions if _is_shown(caller, info.name)]
        for info in own:
            info.name = _shown_name(caller, info.name)
        del answer.subscriptions[:]
        answer.subscriptions.extend(own)


def _kept_name(caller: Caller, name: str) -> str:
    if caller.owns_by_name:
        return f"{caller.principal.name}/{name}"
    if not _is_shown(caller, name):
        raise Denied(f"the name {name!r} belongs to another principal: take another")
    return name


def _is_shown(caller: Caller, name: str) -> bool:
    owner, slash, _ = name.partition("/")
    if caller.owns_by_name:
        return bool(slash) and owner == caller.principal.name
    return caller.principal.administers or not (slash and caller.access.is_principal(owner))


def _shown_name(caller: Caller, name: str) -> str:
    return name.partition("/")[2] if caller.owns_by_name else name
