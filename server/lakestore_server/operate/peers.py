"""The check of a request by another server of the shared journal, before this one does something for it."""

from __future__ import annotations

from lakestore.errors import Invalid
from lakestore_server.commit.engine import Engine
from lakestore_server.journals.shared_journal import SharedJournal


def journal_for(engine: Engine, address: str, timeline: str, peer: str) -> SharedJournal:
    """The journal that a server shares with the peer at an address; `peer` names it in errors. `Invalid` for a journal
    in files or without an address, `OtherTimeline` for a server of another journal."""
    journal = engine.loop.journal
    if not isinstance(journal, SharedJournal):
        raise Invalid("the journal of this server is in files: no other server can follow it")
    if not address:
        raise Invalid(f"the address of {peer} is missing")
    if timeline != journal.timeline():  # a folder that moved into the journal has an older timeline
        engine.check_timeline(timeline, f"the journal of {peer}")
    return journal
