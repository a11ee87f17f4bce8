"""The text of docs/rights.md, written from the policy's table. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lakestore_server.access.policy import ROUTES, RPCS, Row


def reference() -> str:
    """The text of docs/rights.md."""
    lines = [
        "# Rights",
        "",
        "Written by `make docs` from the table that the server itself decides by: `access/policy.py` of the server.",
        "`read`, `write`, `tier` and `admin` are granted on tables (SECURITY.md); `admin` brings the other three,",
        "`tier` brings `read`. `open` is for everybody, `known` for every principal, `see` for any right at all, and",
        "`commit` is `tier` for Lakestore's own tables, `write` for others and `admin` for new ones.",
        "The right is needed on each table named; where a request names none, on some table. Names of producers,",
        "registers and subscriptions, and leases, are the principal's own: nobody else can open, fence, move,",
        "acknowledge or read by them.",
        "A list in an answer leaves out what the principal may not know of.",
        "",
        "## gRPC",
        "",
        *_markdown(("RPC", path.rsplit("/", 1)[-1], row) for path, row in RPCS.items()),
        "",
        "## HTTP",
        "",
        *_markdown(("route", f"{method} {path}", row) for (method, path), row in ROUTES.items()),
        "",
    ]
    return "\n".join(lines)


def _markdown(rows: Iterable[tuple[str, str, Row]]) -> Iterable[str]:
    first = True
    for head, name, row in rows:
        if first:
            yield f"| {head} | right | on | the principal's own | list in the answer |"
            yield "|---|---|---|---|---|"
            first = False
        owns = ", ".join(own.value for own in row.owns)
        lists = row.lists.value if row.lists else ""
        yield f"| `{name}` | {row.right} | {row.tables or '-'} | {owns or '-'} | {lists or '-'} |"
