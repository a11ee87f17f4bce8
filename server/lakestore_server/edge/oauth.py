"""OAuth2 in the form that catalog clients speak: credentials, or a token, for a short-lived access token.

`client_id` is a principal's name (or nothing) and `client_secret` its token. The grants are `client_credentials` and
token exchange, by which clients refresh. `scope` narrows nothing: rights are the principal's.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from lakestore.errors import LakestoreError, NotAuthenticated
from lakestore_server.access.callers import Access, Caller, basic

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 (the name of a kind of token)
_FIELDS_MAX = 32


def answer(access: Access, body: bytes, authorization: str) -> tuple[int, dict[str, Any]]:
    """(HTTP status, answer) to a request for a token."""
    try:
        fields = dict(parse_qsl(body.decode(), max_num_fields=_FIELDS_MAX))
    except ValueError:
        return _refused(400, "invalid_request", "the body is no form")
    grant = fields.get("grant_type", "")
    try:
        if grant == "client_credentials":
            caller = _client(access, *_credentials(fields, authorization))
        elif grant == EXCHANGE:
            caller = access.caller(fields.get("subject_token", ""))
        else:
            return _refused(400, "unsupported_grant_type", "grant_type is client_credentials or token exchange")
        token, seconds = access.exchanged(caller)
    except LakestoreError as error:
        return _refused(401, "invalid_client", error.message)
    return 200, {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": seconds,
        "issued_token_type": ACCESS_TOKEN,
        "scope": "catalog",
    }


def _credentials(fields: dict[str, str], authorization: str) -> tuple[str, str]:
    scheme, _, said = authorization.partition(" ")
    if scheme.lower() == "basic":
        return basic(said)
    return fields.get("client_id", ""), fields.get("client_secret", "")


def _client(access: Access, name: str, secret: str) -> Caller:
    if not access.is_open and not secret:
        raise NotAuthenticated("client_secret is missing: it is the token of a principal")
    caller = access.caller(secret)
    if name and not access.is_open and name != caller.principal.name:
        raise NotAuthenticated("client_id and client_secret do not belong together")
    return caller


def _refused(status: int, error: str, why: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": error, "error_description": why}
