"""The begin of a connection: encryption, the first message, and the proof of who the client is.

- A client certificate with the name of the user is enough. Without one, the user's token is checked by SCRAM if the
  auth file has a verifier, and else in clear, which needs TLS or a connection of this machine.
- An access token has no verifier. A client that has one asks for the dialog in clear:
  `options=-c lakestore.password=clear`.
- A user who does not exist gets the dialog of one who does, and the same refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakestore.errors import LakestoreError, NotAuthenticated
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.principals import TokenHash
from lakestore_server.edge.postgres import messages, sqlstates
from lakestore_server.edge.postgres.messages import Message, Password, StartMessage
from lakestore_server.edge.postgres.scram import MalformedDialog, ScramDialog
from lakestore_server.edge.postgres.sqlstates import FatalError

CLEAR = "lakestore.password"
"""The option that asks for the dialog in clear."""
NONCE_BYTES = 18


@dataclass(frozen=True, slots=True)
class Peer:
    """Facts of a client that the port knows."""

    is_local: bool
    """Whether the connection comes from this machine."""
    may_encrypt: bool = False
    """Whether the port has a certificate."""
    is_encrypted: bool = False
    certificate: tuple[str, ...] = ()
    """The names in the client's certificate."""
    server_hash: bytes = b""
    """The hash of the server's certificate, to which a client may bind its dialog."""
    address: str = ""
    """Host and port of the client."""


@dataclass(slots=True)
class Greeting:
    """The wishes of the first message."""

    user: str = ""
    database: str = ""
    minor: int = 0
    values: dict[str, str] = field(default_factory=dict)
    """Variables of the session."""
    unknown: list[str] = field(default_factory=list)
    """Options of the protocol that the server does not know."""
    in_clear: bool = False


def greeting_of(start: StartMessage) -> Greeting:
    """The first message as values. Raises `FatalError`."""
    if start.major != messages.PROTOCOL_MAJOR:
        raise FatalError(
            sqlstates.FEATURE_NOT_SUPPORTED,
            f"unsupported frontend protocol {start.major}.{start.minor}: server supports 3.0 to 3.2",
        )
    made = Greeting(minor=min(start.minor, messages.PROTOCOL_MINOR_MAX))
    for name, value in start.parameters.items():
        folded = name.lower()
        if name == "user":
            made.user = value
        elif name == "database":
            made.database = value
        elif name == "replication":
            if value.lower() not in ("off", "false", "no", "0"):
                raise FatalError(sqlstates.FEATURE_NOT_SUPPORTED, "this server has no replication by this protocol")
        elif name.startswith("_pq_."):
            made.unknown.append(name)
        elif name == "options":
            made.values |= options_of(value)
        else:
            made.values[folded] = value
    if not made.user:
        raise FatalError(sqlstates.NOT_AUTHENTICATED, "no user is named in the first message")
    made.database = made.database or made.user
    made.in_clear = made.values.pop(CLEAR, "") == "clear"
    return made


def options_of(text: str) -> dict[str, str]:
    """The variables of `-c name=value` and `--name=value`; a backslash keeps a space in a value."""
    words: list[str] = []
    word, is_escaped = "", False
    for sign in text + " ":
        if is_escaped or (sign not in "\\" and not sign.isspace()):
            word, is_escaped = word + sign, False
        elif sign == "\\":
            is_escaped = True
        elif word:
            words.append(word)
            word = ""
    values: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        pair = next(rest, "") if word == "-c" else word.removeprefix("-c" if word.startswith("-c") else "--")
        name, equals, value = pair.partition("=")
        if not word.startswith("-") or not equals:
            raise FatalError(sqlstates.SYNTAX_ERROR, f"options {text!r} are not -c name=value")
        values[name.replace("-", "_").lower()] = value
    return values


class Login:
    """The dialog that proves who the client is. `receive` gets its messages and returns answers."""

    def __init__(self, access: Access, peer: Peer, greeting: Greeting, nonce: Callable[[int], str]) -> None:
        self._access, self._peer, self._greeting, self._nonce = access, peer, greeting, nonce
        self.caller: Caller | None = None
        """The client, once it is known."""
        self._dialog: ScramDialog[TokenHash] | None = None
        self._step: Callable[[bytes], bytes] = self._in_clear

    def begin(self) -> bytes:
        """The first answer. Raises `FatalError`."""
        if self._access.is_open:
            self.caller = self._access.caller()
            return b""
        if self._peer.certificate and (caller := self._by_certificate()):
            self.caller = caller
            return b""
        has_dialog, tokens = self._access.verifiers(self._greeting.user)
        if has_dialog and not self._greeting.in_clear:
            known = [(token.scram, token) for token in tokens if token.scram is not None]
            nonce = self._nonce(NONCE_BYTES)
            self._dialog = ScramDialog(self._greeting.user, known, nonce, self._peer.server_hash)
            self._step = self._first
            return messages.sasl_mechanisms(self._dialog.mechanisms)
        if not (self._peer.is_encrypted or self._peer.is_local):
            raise FatalError(
                sqlstates.NOT_AUTHENTICATED,
                "a token goes in clear over TLS only: connect with sslmode=require, or give the token a scram: line in"
                " the auth file, as `lakestore token` prints it",
            )
        return messages.authentication(3)

    def receive(self, message: Message) -> bytes:
        """The answer to a message of the client. Raises `FatalError`."""
        if not isinstance(message, Password):
            raise FatalError(sqlstates.PROTOCOL_VIOLATION, "expected a password or a message of SASL")
        try:
            return self._step(message.data)
        except MalformedDialog as error:
            raise FatalError(sqlstates.PROTOCOL_VIOLATION, str(error)) from error

    def _by_certificate(self) -> Caller | None:
        try:
            caller = self._access.caller(certificate=self._peer.certificate)
        except NotAuthenticated:
            return None  # the client may still have a token
        return caller if caller.principal.name == self._greeting.user else None

    def _in_clear(self, data: bytes) -> bytes:
        token = data.partition(b"\0")[0].decode(errors="surrogateescape")
        try:
            caller = self._access.caller(token) if token else None
        except LakestoreError:
            caller = None
        if caller is None or caller.principal.name != self._greeting.user:
            raise self._refusal()
        self.caller = caller
        return b""

    def _first(self, data: bytes) -> bytes:
        mechanism, zero, rest = data.partition(b"\0")
        if not zero or len(rest) < 4 or self._dialog is None:
            raise MalformedDialog("the first message of SASL has no mechanism")
        (size,) = struct.unpack_from("!i", rest)
        if size != len(rest) - 4:
            raise MalformedDialog("the first message of SASL has another length than it says")
        self._step = self._final
        return messages.authentication(11, self._dialog.first(mechanism.decode(errors="replace"), rest[4:]))

    def _final(self, data: bytes) -> bytes:
        match = self._dialog.final(data) if self._dialog else None
        if match is None:
            raise self._refusal()
        token, answer = match
        try:
            self.caller = self._access.holder(self._greeting.user, token)
        except NotAuthenticated as error:
            raise self._refusal() from error
        return messages.authentication(12, answer)

    def _refusal(self) -> FatalError:
        return FatalError(
            sqlstates.WRONG_PASSWORD,
            f'password authentication failed for user "{self._greeting.user}"',
            hint="The user is a principal of the server's auth file, and the password one of its tokens. An access"
            " token needs options='-c lakestore.password=clear'.",
        )


def first_variables(greeting: Greeting) -> Mapping[str, str]:
    """The variables with which a session begins."""
    quoted = '"' + greeting.database.replace('"', '""') + '"'
    return {"search_path": f"{quoted}, public", **greeting.values, "session_authorization": greeting.user}
