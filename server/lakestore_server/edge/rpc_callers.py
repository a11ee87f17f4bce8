"""Callers of RPCs: TLS of a port, the token in the metadata, the names in the client certificate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lakestore.errors import Invalid, NotAuthenticated
from lakestore.wire.rpc import grpc
from lakestore_server.edge.rpc_port import Rpc
from lakestore_server.edge.tls import TlsKeys

log = logging.getLogger("lakestore.grpc")


def credentials_of(keys: TlsKeys) -> grpc.ServerCredentials:
    """TLS of the port: with a client CA every client must show a certificate. Handshakes use the present files."""
    state = {"stamp": keys.stamp()}

    def configured() -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = keys.read()
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=client_ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        stamp = keys.stamp()
        if stamp == state["stamp"]:
            return None
        state["stamp"] = stamp
        try:
            return configured()
        except Invalid as error:
            log.error("the certificate stays as it was: %s", error.message)
            return None

    fetch: Any = renewed  # None means no change; the stubs lack this
    return grpc.dynamic_ssl_server_credentials(configured(), fetch, require_client_authentication=bool(keys.client_ca))


def authorization(call: Rpc) -> tuple[str, str]:
    """(scheme in lower case, the rest) of the authorization metadata; empty texts without one."""
    said = {value for key, value in call.metadata if key == "authorization"}  # ADBC sends the same one twice
    if not said:
        return "", ""
    if len(said) > 1:
        raise NotAuthenticated("the call has more than one authorization metadata: send one")
    (value,) = said
    scheme, _, rest = (value.decode("latin-1") if isinstance(value, bytes) else value).partition(" ")
    return scheme.lower(), rest.strip()


def bearer_token(call: Rpc) -> str:
    """The token of a call; empty without one."""
    scheme, token = authorization(call)
    if scheme and (scheme != "bearer" or not token):
        raise NotAuthenticated("the authorization metadata is not `Bearer <token>`")
    return token


def certificate_names(call: Rpc) -> Sequence[str]:
    """The names in the client certificate of a call."""
    said = call.auth_context()
    fields = ("x509_common_name", "x509_subject_alternative_name")
    return [value.decode("utf-8", "replace") for field in fields for value in said.get(field, ())]
