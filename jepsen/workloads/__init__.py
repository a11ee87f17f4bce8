"""The workloads, one module each: a generator, a client and a checker of one promise.

A module's class is named after it and takes the run's chance, from which it draws its shape (tables, buckets, keys);
`WORKLOADS` names all of them for the command line: `administration`, `bank`, `bridge`, `changelog`, `contract`,
`copying`, `counters`, `erase`, `evolution`, `expiry`, `list_append`, `log`, `register`, `retention`, `subscription`,
`tier`.
Parts of several clients: `one_table`, `tokens`, `named` (producers), `following` (change streams), `by_spark`; the
log's client is big and has `log_client` to itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from jepsen.workload import Workload
from jepsen.workloads.administration import Administered
from jepsen.workloads.bank import Bank, BankOfEngines, BankOfSpark, BankOfSql
from jepsen.workloads.bridge import Bridged
from jepsen.workloads.changelog import Changelog
from jepsen.workloads.contract import Contracted
from jepsen.workloads.copying import Copying
from jepsen.workloads.counters import Counters
from jepsen.workloads.erase import Erased
from jepsen.workloads.evolution import Evolution
from jepsen.workloads.expiry import Expiring
from jepsen.workloads.list_append import ListAppend
from jepsen.workloads.log import Log
from jepsen.workloads.register import Register
from jepsen.workloads.retention import Retained
from jepsen.workloads.subscription import Subscribed
from jepsen.workloads.tier import Tier

WORKLOADS: dict[str, Callable[[random.Random], Workload]] = {
    each.name: each
    for each in (
        Administered,
        Bank,
        BankOfEngines,
        BankOfSpark,
        BankOfSql,
        Bridged,
        Changelog,
        Contracted,
        Copying,
        Erased,
        Evolution,
        Expiring,
        Counters,
        ListAppend,
        Log,
        Register,
        Retained,
        Subscribed,
        Tier,
    )
}
