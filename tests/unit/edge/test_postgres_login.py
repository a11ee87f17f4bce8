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


HASH = b"h" * 32
BOUND = Peer(is_local=False, may_encrypt=True, is_encrypted=True, server_hash=HASH)


@pytest.mark.parametrize(
    ("mechanism", "binding", "flag", "sqlstate"),
    [
        ("SCRAM-SHA-256-PLUS", HASH, "n", None),
        ("SCRAM-SHA-256", b"", "n", None),
        ("SCRAM-SHA-256-PLUS", b"x" * 32, "n", "08P01"),  # the certificate of somebody between
        ("SCRAM-SHA-256", b"", "y", "08P01"),  # somebody has removed PLUS from the offer
        ("SCRAM-SHA-256-PLUS", b"", "n", "08P01"),
        ("SCRAM-SHA-256-PLUS", b"", "y", "08P01"),
        ("SCRAM-SHA-256", HASH, "n", "08P01"),
    ],
)
def test_a_dialog_is_bound_to_the_certificate(
    auth: Path, mechanism: str, binding: bytes, flag: str, sqlstate: str | None
) -> None:
    session = WireSession(auth, BOUND)
    (offer,) = session.send(wire.start("ann"))
    assert offer.body == b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"
    client = ScramClient(FIRST, binding=binding, flag=flag)
    answer = session.send(client.first(mechanism))[0]
    if answer.kind == "R":
        answer = session.send(client.final(answer.body[4:]))[0]
    assert answer.fields.get("C") == sqlstate if sqlstate else client.trusts(answer.body[4:])


def test_a_last_message_proves_one_dialog_only(auth: Path) -> None:
    """It is refused in another connection, with another nonce, and a second time in its own."""
    first, second = WireSession(auth, FAR), WireSession(auth, FAR)
    second.door.nonce = lambda size: "anothernonce"  # type: ignore[method-assign]
    client = ScramClient(FIRST)
    for session in (first, second):
        session.send(wire.start("ann"))
    (asked,) = first.send(client.first())
    proof = client.final(asked.body[4:])
    second.send(client.first())
    (refusal,) = second.send(proof)
    assert refusal.fields["C"] == "08P01"
    assert first.send(proof)[-1].kind == "Z"
    (refusal,) = first.send(proof)
    assert refusal.fields["C"] == "08P01"


def test_the_dialog_in_clear_needs_tls_also_if_the_client_asks_for_it(auth: Path) -> None:
    (refusal,) = WireSession(auth, FAR).send(wire.start("ann", options="-c lakestore.password=clear"))
    assert refusal.fields["C"] == "28000"
    assert "TLS" in refusal.fields["M"]


def test_an_unknown_user_costs_the_time_of_a_known_one(auth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dialog checks the proof: so its time does not show who exists."""
    admits, checked = ScramVerifier.admits, list[bytes]()

    def counted(self: ScramVerifier, proof: bytes, message: bytes) -> bool:
        checked.append(proof)
        return admits(self, proof, message)

    monkeypatch.setattr(ScramVerifier, "admits", counted)
    users = [name for name in map(str, range(64)) if WireSession(auth).send(wire.start(name))[0].body[3] == 10]
    for user in users[:3]:
        dialog(WireSession(auth, FAR), user, "wrong")
    assert len(checked) == 3


@pytest.mark.parametrize("field", ["", "=", "r=", "p=", "c=,r=,p=", "," * 9_000, "c=" + "A" * 9_000, "\0"])
def test_fields_of_any_size_end_the_connection(auth: Path, field: str) -> None:
    session = WireSession(auth, FAR)
    session.send(wire.start("ann"))
    session.send(ScramClient(FIRST).first())
    (refusal,) = session.send(wire.message("p", field.encode()))
    assert (refusal.fields["C"], refusal.fields["S"]) == ("08P01", "FATAL")


@pytest.mark.parametrize("nonce", ["", "x" * 257, "x" * 9_000])
def test_a_nonce_has_a_length(auth: Path, nonce: str) -> None:
    session = WireSession(auth, FAR)
    session.send(wire.start("ann"))
    (refusal,) = session.send(ScramClient(FIRST, nonce).first())
    assert refusal.fields["C"] == "08P01"


def test_options_are_words_with_escapes() -> None:
    assert options_of("-c a.b=1 --c-d=x\\ y -ce=") == {"a.b": "1", "c_d": "x y", "e": ""}


@pytest.mark.parametrize("scram", ["", "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA", 7, ScramVerifier.of("bob", FIRST).text()])
def test_an_auth_file_with_another_verifier_is_refused(scram: object) -> None:
    tokens = [{"sha256": hash_of(FIRST), "scram": scram}]
    with pytest.raises(Invalid, match="scram of a token of principal ann"):
        book_of(yaml.safe_load(yaml.safe_dump({"principals": {"ann": {"tokens": tokens}}})))
