"""The way from a server that follows to the HTTP port of the leader.

A catalog client that knows one server alone may ask a follower for a change. Java clients do not go on at another
address when a POST is redirected, so the follower sends the request to the leader and returns its answer. The leader
judges the caller's rights by the caller's own token.
"""

from __future__ import annotations

import http.client
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.responses import Response

from lakestore.errors import NotAuthenticated, NotLeader, Stopped, Unavailable
from lakestore_server.commit.engine import CommitLoop
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.state.commit_record import Deposed, Unknown

log = logging.getLogger("lakestore.http")
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
"""The longest silence of the leader within an answer."""
FOLLOW_SECONDS = 5.0
"""The longest wait until this server has applied what the leader answered."""
FORWARDED = "x-lakestore-forwarded"
"""The header of a request that came from a follower. It is never sent on."""
LSN = "x-lakestore-lsn"
"""The header of the answer to such a request: the leader's newest commit."""
_OF_CONNECTION = frozenset({"connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding"})
"""Headers that belong to one connection."""
_OF_BODY = frozenset({"content-type", "etag", "retry-after"})
"""Headers of an answer that are returned."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as the client sent it."""

    method: str
    target: str
    """Path and query, encoded."""
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


class LeaderLink:
    """Sends requests to the server that leads. Thread-safe."""

    def __init__(self, loop: CommitLoop, keys: TlsKeys | None, *, is_open: bool) -> None:
        """With `keys` the leader is asked by TLS. `is_open`: the servers have no principals."""
        self._loop, self._keys, self._is_open = loop, keys, is_open

    @property
    def is_leading(self) -> bool:
        """Whether this server is the leader itself."""
        return self._loop.is_leading

    def mark(self, request: SentRequest, answer: Response) -> Response:
        """The leader's own answer, and the newest commit if a follower sent the request. A refusal tells what this
        server has read, so `NotLeader` if another one may lead."""
        if 400 <= answer.status_code < 500:
            try:
                self._loop.journal.confirm()
            except (Deposed, Unknown) as error:
                self._loop.queue.poke()
                raise NotLeader.of("") from error
        if request.header(FORWARDED):
            answer.headers[LSN] = str(self._loop.view.lsn)
        return answer

    def answer(self, request: SentRequest) -> Response:
        """The leader's answer. `NotLeader` before anything was sent; `Unavailable` with `applied="unknown"` if the
        answer was lost."""
        address = self._address()
        if request.header(FORWARDED) or not address:
            self._loop.refuse_when_following()
            raise NotLeader.of("")
        if not self._is_open and not request.header("authorization"):
            raise NotAuthenticated(
                f"this server follows and sends a change to the leader at {address}, for which a client certificate is"
                " not enough: send a token, or ask the leader"
            )
        connection = self._connected(address)
        try:
            status, headers, body = _exchanged(connection, request)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"the leader at {address} did not answer a change that it may have applied: {error!r}",
                applied="unknown",
            ) from error
        finally:
            connection.close()
        self._follow(headers.get(LSN, ""))
        return Response(body, status, {name: value for name, value in headers.items() if name in _OF_BODY})

    def _address(self) -> str:
        """The leader's HTTP address; empty if none is known."""
        leader = self._loop.journal.leader
        known = (each.http for each in self._loop.journal.replicas if each.address == leader.address)
        return "" if leader.has_left else next(known, "")

    def _connected(self, address: str) -> http.client.HTTPConnection:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        connection = (
            http.client.HTTPSConnection(host, int(port), timeout=CONNECT_SECONDS, context=self._keys.trust())
            if self._keys
            else http.client.HTTPConnection(host, int(port), timeout=CONNECT_SECONDS)
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            log.warning("the leader's HTTP port at %s cannot be reached: %s", address, error)
            raise NotLeader.of(self._loop.journal.leader.address) from error
        connection.sock.settimeout(ANSWER_SECONDS)
        return connection

    def _follow(self, lsn: str) -> None:
        """Wait until this server has applied a commit, so the client sees its change here."""
        if lsn.isdecimal():
            with suppress(Stopped):  # the change stands, whatever becomes of this server
                self._loop.wait_beyond(int(lsn) - 1, FOLLOW_SECONDS)


def _exchanged(connection: http.client.HTTPConnection, request: SentRequest) -> tuple[int, dict[str, str], bytes]:
    """(status, headers by lower-case name, body) of the answer."""
    connection.putrequest(request.method, request.target, skip_accept_encoding=True)
    for name, value in request.headers:
        if name.lower() not in _OF_CONNECTION:
            connection.putheader(name, value)
    connection.putheader(FORWARDED, "1")
    connection.putheader("content-length", str(len(request.body)))
    connection.endheaders(request.body)
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, headers, answer.read()
