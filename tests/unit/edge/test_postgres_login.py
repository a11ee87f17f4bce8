"""The proof of who a client of the Postgres port is: SCRAM with a client written apart, passwords, certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lakestore.errors import Invalid
from lakestore_server.access.principals import book_of, hash_of
from lakestore_server.access.scram import ScramVerifier
from lakestore_server.edge.postgres.login import Peer, options_of
from tests.support import postgres_wire as wire
from tests.support.postgres_session import WireSession
from tests.support.postgres_wire import Reply, ScramClient
from tests.support.rights import write_auth
from tests.support.world.clock import HandClock

FIRST, SECOND, OLD, PLAIN = "lakestore_first", "lakestore_second", "lakestore_old", "lakestore_plain"
FAR = Peer(is_local=False, may_encrypt=True)


def token(name: str, text: str, **fields: str) -> dict[str, str]:
    """A token of the auth file with its verifier."""
    return {"sha256": hash_of(text), "scram": ScramVerifier.of(name, text).text(), **fields}


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    """ann has three tokens, one of them expired; bob has one without a verifier."""
    tokens = [token("ann", FIRST), token("ann", SECOND), token("ann", OLD, until="2001-01-01")]
    fields = {"ann": {"tokens": tokens}, "bob": {"tokens": [{"sha256": hash_of(PLAIN)}]}}
    return write_auth(tmp_path / "auth.yaml", {"ann": {"*": ["read"]}, "bob": {"*": ["read"]}}, **fields)


def dialog(session: WireSession, user: str, text: str) -> list[Reply]:
    """The answers to a whole dialog of SCRAM."""
    (offer,) = session.send(wire.start(user))
    assert offer.body == b"\0\0\0\x0aSCRAM-SHA-256\0\0"
    client = ScramClient(text)
    (first,) = session.send(client.first())
    assert first.body[:4] == b"\0\0\0\x0b"
    answer = session.send(client.final(first.body[4:]))
    if answer[0].kind == "R":
        assert client.trusts(answer[0].body[4:]), "the server must show that it knows the token"
    return answer


@pytest.mark.parametrize("peer", [FAR, Peer(is_local=True), Peer(is_local=False, may_encrypt=True, is_encrypted=True)])
@pytest.mark.parametrize("text", [FIRST, SECOND])
def test_every_token_of_a_principal_proves_it(auth: Path, text: str, peer: Peer) -> None:
    session = WireSession(auth, peer)
    assert dialog(session, "ann", text)[-1].kind == "Z"
    assert session.session.caller is not None
    assert session.session.caller.principal.name == "ann"
    assert session.session.caller.proof.token == hash_of(text)


@pytest.mark.parametrize(("user", "text"), [("ann", "wrong"), ("ann", OLD), ("ann", PLAIN), ("max", FIRST)])
def test_other_tokens_and_unknown_users_get_the_same_dialog_and_refusal(auth: Path, user: str, text: str) -> None:
    session = WireSession(auth, FAR)
    (refusal,) = dialog(session, user, text)
    assert (refusal.fields["C"], refusal.fields["S"]) == ("28P01", "FATAL")
    assert refusal.fields["M"] == f'password authentication failed for user "{user}"'
    assert session.session.is_over


def test_unknown_users_get_the_dialogs_of_known_ones(auth: Path) -> None:
    first = {user: WireSession(auth).send(wire.start(user))[0].body for user in map(str, range(64))}
    assert {body[3] for body in first.values()} == {3, 10}, "some names get SCRAM, the others the password in clear"
    again = {user: WireSession(auth).send(wire.start(user))[0].body for user in first}
    assert again == first


def test_a_token_without_a_verifier_goes_in_clear_if_nobody_can_read_it(auth: Path) -> None:
    for peer in (Peer(is_local=True), Peer(is_local=False, is_encrypted=True)):
        session = WireSession(auth, peer)
        (offer,) = session.send(wire.start("bob"))
        assert offer.body == b"\0\0\0\x03"
        assert session.send(wire.message("p", wire.text(PLAIN)))[-1].kind == "Z"
    (refusal,) = WireSession(auth, FAR).send(wire.start("bob"))
    assert refusal.fields["C"] == "28000"
    assert "TLS" in refusal.fields["M"]


@pytest.mark.parametrize(("user", "text"), [("bob", "wrong"), ("bob", ""), ("bob", FIRST), ("ann", PLAIN)])
def test_a_token_in_clear_must_be_one_of_the_user(auth: Path, user: str, text: str) -> None:
    session = WireSession(auth)
    session.send(wire.start(user, options="-c lakestore.password=clear"))
    (refusal,) = session.send(wire.message("p", wire.text(text)))
    assert refusal.fields["C"] == "28P01"


def test_an_access_token_is_a_password_until_it_expires(auth: Path) -> None:
    clock = HandClock()
    session = WireSession(auth, clock=clock)
    text, seconds = session.access.exchanged(session.access.caller(FIRST))
    session.send(wire.start("ann", options="-c lakestore.password=clear"))
    assert session.send(wire.message("p", wire.text(text)))[-1].kind == "Z"
    clock.advance(seconds + 1)
    (end,) = session.send(wire.query("SELECT rows 1"))
    assert (end.fields["C"], end.fields["S"]) == ("28000", "FATAL")
    assert session.session.is_over
    assert not session.service.asked


def test_a_certificate_counts_for_the_user_whose_name_it_has(auth: Path) -> None:
    peer = Peer(is_local=False, is_encrypted=True, certificate=("bob",))
    assert WireSession(auth, peer).send(wire.start("bob"))[-1].kind == "Z"
    assert WireSession(auth, peer).send(wire.start("ann"))[0].body[3] == 10


@pytest.mark.parametrize(
    "data",
    [
        wire.message("p", b"SCRAM-SHA-1\0\0\0\0\x08n,,n=,r=x"),
        wire.message("p", b"SCRAM-SHA-256\0\0\0\0\x07n,,n=,r="),
        wire.message("p", b"SCRAM-SHA-256\0\0\0\0\x63n,,n=,r=x"),
        wire.message("p", b"SCRAM-SHA-256"),
        wire.message("p", b"SCRAM-SHA-256\0\0\0\0\x0bp=x,,n=,r=ab"),
        wire.message("p", b"SCRAM-SHA-256\0\0\0\0\x0an,a=bob,r=x"),
        wire.message("p", b"SCRAM-SHA-256\0\0\0\0\x02\xff\xff"),
        wire.query("SELECT 1"),
    ],
)
def test_a_malformed_dialog_ends_the_connection(auth: Path, data: bytes) -> None:
    session = WireSession(auth, FAR)
    session.send(wire.start("ann"))
    (refusal,) = session.send(data)
    assert (refusal.fields["C"], refusal.fields["S"]) == ("08P01", "FATAL")


@pytest.mark.parametrize("change", [(b"servernonce", b"othernonce."), (b"c=biws", b"c=eSws"), (b",p=", b",q=")])
def test_a_last_message_that_was_changed_on_its_way_is_refused(auth: Path, change: tuple[bytes, bytes]) -> None:
    session = WireSession(auth, FAR)
    session.send(wire.start("ann"))
    client = ScramClient(FIRST)
    (first,) = session.send(client.first())
    (refusal,) = session.send(client.final(first.body[4:]).replace(*change))
    assert refusal.fields["C"] == "08P01"


def test_options_are_words_with_escapes() -> None:
    assert options_of("-c a.b=1 --c-d=x\\ y -ce=") == {"a.b": "1", "c_d": "x y", "e": ""}


@pytest.mark.parametrize("scram", ["", "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA", 7, ScramVerifier.of("bob", FIRST).text()])
def test_an_auth_file_with_another_verifier_is_refused(scram: object) -> None:
    tokens = [{"sha256": hash_of(FIRST), "scram": scram}]
    with pytest.raises(Invalid, match="scram of a token of principal ann"):
        book_of(yaml.safe_load(yaml.safe_dump({"principals": {"ann": {"tokens": tokens}}})))
