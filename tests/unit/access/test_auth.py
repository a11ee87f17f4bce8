"""Principals, tokens and rights: what is granted holds, all else is denied, and no message holds a secret."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from lakestore.errors import Invalid, NotAuthenticated, NotFound, NotLeader
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.access import ownership, policy, signing
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Access
from lakestore_server.access.principals import ANYONE, book_of, hash_of
from tests.support.world.clock import HandClock

TOKEN, OTHER = "lakestore_" + "a" * 43, "lakestore_" + "b" * 43
KEY = b"k" * 32
DAY_US = 86_400_000_000


def said(*grants: tuple[list[str], list[str]], **more: Any) -> dict[str, Any]:
    """A file's content with one principal."""
    entry = {
        "tokens": [{"sha256": hash_of(TOKEN)}],
        "grants": [{"rights": rights, "tables": tables} for rights, tables in grants],
        **more,
    }
    return {"principals": {"etl": entry}}


def written(file: Path, content: dict[str, Any], mode: int = 0o600) -> Path:
    file.write_text(yaml.safe_dump(content))
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("pattern", "covers", "leaves"),
    [
        ("shop.orders", ["shop.orders"], ["shop.orders2", "shop.order", "shop.*", "*", "Shop.orders"]),
        ("shop.*", ["shop.orders", "shop.", "shop.*", "shop.ord*"], ["shop", "shops.x", "*", "x.shop.orders"]),
        ("shop.o*", ["shop.orders"], ["shop.items", "shop.*"]),
        ("*", ["a.b", "*", "shop.*"], []),
    ],
)
def test_a_pattern_covers_names_that_begin_with_it_and_no_others(
    pattern: str, covers: list[str], leaves: list[str]
) -> None:
    proof = book_of(said((["read"], [pattern]))).by_token(TOKEN, 0)
    assert proof is not None
    assert all(proof.principal.may("read", target) for target in covers)
    assert not any(proof.principal.may("read", target) for target in leaves)
    assert not any(proof.principal.may(right, "shop.orders") for right in ("write", "tier", "admin", "nonsense"))


def test_admin_brings_all_rights_tier_brings_read_and_write_brings_none() -> None:
    held = {}
    for right in ("read", "write", "tier", "admin"):
        proof = book_of(said(([right], ["shop.*"]))).by_token(TOKEN, 0)
        assert proof is not None
        held[right] = {r for r in ("read", "write", "tier", "admin") if proof.principal.may(r, "shop.x")}
    assert held == {
        "read": {"read"},
        "write": {"write"},
        "tier": {"read", "tier"},
        "admin": {"read", "write", "tier", "admin"},
    }


def test_a_principal_sees_namespaces_that_may_hold_its_tables() -> None:
    proof = book_of(said((["read"], ["shop.orders", "web.*", "lo*"]))).by_token(TOKEN, 0)
    assert proof is not None
    assert [n for n in ("shop", "web", "logs", "sho", "other", "shop2") if proof.principal.sees_namespace(n)] == [
        "shop",
        "web",
        "logs",
    ]


def test_unknown_tokens_and_tokens_past_their_time_are_nobodys() -> None:
    until = {"sha256": hash_of(OTHER), "until": "2030-01-01"}
    book = book_of(said((["read"], ["*"]), tokens=[{"sha256": hash_of(TOKEN)}, until]))
    assert book.by_token(TOKEN, 2**62)
    assert book.by_token(OTHER, 1_893_455_999_000_000)
    assert book.by_token(OTHER, 1_893_456_000_000_000) is None
    for wrong in ("", hash_of(TOKEN), TOKEN[:-1], TOKEN + "a", "é", "\udcff"):
        assert book.by_token(wrong, 0) is None


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"principals": []},
        {"principals": {}, "more": 1},
        {"principals": {"a/b": {}}},
        {"principals": {"": {}}},
        {"principals": {"etl": None}},
        said((["read"], ["*"]), grant=[]),
        said((["own"], ["*"])),
        said(([], ["*"])),
        said((["read"], [""])),
        said((["read"], ["a*b"])),
        said((["read"], ["**"])),
        said((["read"], ["*"]), tokens=[{"sha256": TOKEN}]),
        said((["read"], ["*"]), tokens=[TOKEN]),
        said((["read"], ["*"]), tokens=[{"sha256": hash_of(TOKEN), "until": TOKEN}]),
        said((["read"], ["*"]), shared_names=TOKEN),
        said((["read"], ["*"]), certificates=TOKEN),
        said((["read"], ["*"]), tokens=TOKEN),
        {"principals": {n: said((["read"], ["*"]))["principals"]["etl"] for n in ("a", "b")}},
    ],
)
def test_a_malformed_file_is_refused_without_a_word_of_its_secrets(content: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        book_of(content)
    assert TOKEN not in refusal.value.message
    assert hash_of(TOKEN) not in refusal.value.message


def test_a_file_that_others_may_read_or_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    for mode in (0o604, 0o602, 0o620):
        with pytest.raises(Invalid, match="chmod 600"):
            Access(written(tmp_path / "auth.yaml", said((["read"], ["*"])), mode), HandClock(), KEY)
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"principals: [{TOKEN}")
    broken.chmod(0o600)
    with pytest.raises(Invalid, match="line 1") as refusal:
        Access(broken, HandClock(), KEY)
    assert TOKEN not in str(refusal.value.__context__) or refusal.value.__suppress_context__
    with pytest.raises(Invalid, match="cannot be read"):
        Access(tmp_path / "absent.yaml", HandClock(), KEY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "auth.yaml", said((["read"], ["*"])))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def access(file: Path, clock: HandClock) -> Access:
    return Access(file, clock, KEY)


def changed(file: Path, content: str) -> None:
    stamp = file.stat().st_mtime_ns
    file.write_text(content)
    os.utime(file, ns=(stamp + 10**9, stamp + 10**9))


def test_a_changed_file_holds_within_seconds_and_a_broken_one_changes_nothing(
    access: Access, file: Path, clock: HandClock
) -> None:
    caller = access.caller(TOKEN)
    changed(file, "principals: {")
    clock.us += 2_000_000
    assert access.caller(TOKEN).principal.name == "etl"
    changed(file, yaml.safe_dump(said((["read"], ["*"]), tokens=[{"sha256": hash_of(OTHER)}])))
    assert access.caller(TOKEN).principal.name == "etl"
    clock.us += 2_000_000
    with pytest.raises(NotAuthenticated):
        access.caller(TOKEN)
    with pytest.raises(NotAuthenticated):
        access.renewed(caller)
    assert access.caller(OTHER).principal.name == "etl"


def test_a_file_that_was_refused_for_its_mode_holds_once_that_is_right(
    access: Access, file: Path, clock: HandClock
) -> None:
    file.chmod(0o604)
    changed(file, yaml.safe_dump(said((["read"], ["*"]), tokens=[{"sha256": hash_of(OTHER)}])))
    clock.us += 2_000_000
    assert access.caller(TOKEN).principal.name == "etl"
    file.chmod(0o600)
    clock.us += 2_000_000
    with pytest.raises(NotAuthenticated):
        access.caller(TOKEN)


def test_nobody_without_credentials_is_a_principal(access: Access) -> None:
    shows: list[tuple[str, list[str]]] = [("", []), ("nonsense", []), ("", ["x"]), ("nonsense", ["etl"])]
    for token, certificate in shows:
        with pytest.raises(NotAuthenticated):
            access.caller(token, certificate)
    assert access.caller(certificate=["x", "etl"]).principal.name == "etl"


def test_a_status_names_no_subscription_and_no_report_of_others(access: Access) -> None:
    held = ["lake", "subscription etl/daily", "subscription plain", "subscription report/daily"]
    said = {"tables": [{"name": "shop.orders", "held_by": held}], "reports": [{"name": "etl/b"}, {"name": "report/b"}]}
    answer = pb.StatusAnswer(status=json.dumps(said))
    ownership.to_shown_names(access.caller(TOKEN), policy.RPCS[rpc.METHODS["Status"].path], answer)
    shown = json.loads(answer.status)
    assert shown["reports"] == [{"name": "b"}]
    (table,) = shown["tables"]
    assert table["held_by"] == ["lake", "subscription daily", "another's subscription", "another's subscription"]


def test_without_a_file_everyone_may_everything(clock: HandClock) -> None:
    assert Access(None, clock, KEY).caller("whatever").principal == ANYONE
    assert ANYONE.administers


@pytest.mark.parametrize("reads_at_leader", [False, True])
def test_not_found_is_told_to_a_reader_of_the_leader_by_the_leader_alone(
    clock: HandClock, *, reads_at_leader: bool
) -> None:
    leads = [True]

    def check_leads() -> None:
        if not leads[0]:
            raise NotLeader("another server leads")

    def items() -> Iterator[None]:
        leads[0] = False
        yield from ()
        raise NotFound("there is no table 'a.log'")

    admission = Admission(Access(None, clock, KEY), Mock(), clock, check_leads=check_leads)
    call = admission.rpc(rpc.METHODS["Changes"].path, "", (), reads_at_leader=reads_at_leader)
    call.request(pb.ChangesRequest(tables=["a.log"]))
    with pytest.raises(NotLeader if reads_at_leader else NotFound):
        call.next_item(items())


def test_an_access_token_ends_with_its_time_its_origin_or_its_key(access: Access, file: Path, clock: HandClock) -> None:
    token, seconds = access.exchanged(access.caller(TOKEN))
    caller = access.caller(token)
    assert access.renewed(access.renewed(caller)).principal.name == "etl"
    again, _ = access.exchanged(access.caller(token))
    assert access.caller(again).principal.name == "etl"
    with pytest.raises(NotAuthenticated):
        Access(file, clock, b"z" * 32).caller(token)
    clock.us += seconds * 1_000_000
    with pytest.raises(NotAuthenticated):
        access.caller(token)
    with pytest.raises(NotAuthenticated, match="no longer valid"):
        access.renewed(caller)
    fresh, _ = access.exchanged(access.caller(TOKEN))
    changed(file, yaml.safe_dump(said((["read"], ["*"]), tokens=[{"sha256": hash_of(OTHER)}])))
    clock.us += 2_000_000
    with pytest.raises(NotAuthenticated):
        access.caller(fresh)


def _none(head: str, body: str, mark: str) -> str:
    return ".".join((head, body, mark))


FORGERIES: list[Callable[[str, str, str], str]] = [
    lambda head, body, mark: _none("eyJhbGciOiJub25lIn0", body, ""),
    lambda head, body, mark: _none(head, body, ""),
    lambda head, body, mark: _none(head, body[:-1], mark),
    lambda head, body, mark: _none(head, body, mark[:-1] + ("A" if mark[-1] != "A" else "B")),
    lambda head, body, mark: _none(head, body, mark + "."),
    lambda head, body, mark: f"{head}.{body}",
    lambda head, body, mark: "é." + body,
]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_access_token_is_none(forge: Callable[[str, str, str], str]) -> None:
    token = signing.sign(KEY, signing.Claim("etl", "0" * 16, 2_000_000_000), 1_900_000_000)
    assert signing.read(KEY, token, 1_999_999_999) == signing.Claim("etl", "0" * 16, 2_000_000_000)
    assert signing.read(KEY, token, 2_000_000_000) is None
    head, body, mark = token.split(".")
    assert signing.read(KEY, forge(head, body, mark), 1_900_000_000) is None


def test_a_seal_is_good_for_one_principal_and_one_text(access: Access) -> None:
    etl = access.caller(TOKEN).principal
    sealed = access.seal(etl, "lease")
    assert access.unseal(etl, sealed) == "lease"
    for principal, text in ((ANYONE, sealed), (etl, "lease"), (etl, "other." + sealed.split(".")[1]), (etl, "é.é")):
        assert access.unseal(principal, text) is None
