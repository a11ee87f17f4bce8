"""The sources of bridge.yaml: clusters, registries, how to log in there, and secrets.

A text of a source may hold `${NAME}`, a variable of the environment, and `$${` for the signs themselves; a whole text
`file:PATH` is what the file holds, without the line's end, from the folder of bridge.yaml. Values put in so are never
shown: messages name the variable or the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from lakestore.connectors.bridge.config.yaml_place import Place
from lakestore.connectors.bridge.spec import RegistrySpec, SourceSpec
from lakestore.errors import Invalid

SOURCE_KEYS = ("bootstrap", "group", "registry", "sasl", "tls", "options")
SASL_KEYS = ("mechanism", "username", "password", "token_url", "client_id", "client_secret", "scope")
TLS_KEYS = ("ca", "cert", "key", "key_password", "verify_hostname", "verify")
REGISTRY_KEYS = ("url", "username", "password", "token", "tls", "options")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
GROUP_CHARS_MAX = 249
FILE_BYTES_MAX = 1 << 20
"""Bytes of a secret or a schema in a file of its own; a larger one is another file, named by mistake."""
OURS = (
    "bootstrap.servers", "group.id", "group.protocol", "group.instance.id", "isolation.level", "enable.auto.commit",
    "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "partition.assignment.strategy",
    "allow.auto.create.topics", "transactional.id",
)  # fmt: skip
"""Settings of librdkafka that the bridge makes itself, for they decide about exactly once."""
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+)(:[0-9]{1,5})?")
_SASL: dict[str, str] = {
    "username": "sasl.username",
    "password": "sasl.password",
    "token_url": "sasl.oauthbearer.token.endpoint.url",
    "client_id": "sasl.oauthbearer.client.id",
    "client_secret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_TLS = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}


@dataclass(frozen=True, slots=True)
class Secrets:
    """The places that texts of a source may be put together from."""

    folder: Path
    """The folder of bridge.yaml; paths in it begin there."""
    variable: Callable[[str], str | None]
    """The value of a variable of the environment."""

    def text(self, place: Place) -> str:
        """The text of a place, with variables and files put in."""
        return self.expanded(place, place.text())

    def expanded(self, place: Place, text: str) -> str:
        """A text that stands at a place, with variables and files put in."""
        if text.startswith("file:"):
            return self._held(place, self._path(place, text.removeprefix("file:")))

        def put(match: re.Match[str]) -> str:
            if match[1] is None:
                return "${"
            if not _NAME.fullmatch(match[1]):
                raise place.refused("names a variable as ${NAME}, of letters, digits and _; write $${ for the signs ${")
            value = self.variable(match[1])
            if not value:
                raise place.refused(f"takes the variable {match[1]}, which is not set: export {match[1]}=…")
            return value

        return _VARIABLE.sub(put, text)

    def path(self, place: Place) -> str:
        """The path of a file that is there."""
        text = place.text()
        found = self._path(place, text.removeprefix("file:"))
        if not found.is_file():
            raise place.refused(f"names the file {found}, which is not there")
        return str(found)

    def held(self, place: Place) -> str:
        """The text of the file that a place names."""
        return self._held(place, self._path(place, place.text().removeprefix("file:")))

    def _path(self, place: Place, text: str) -> Path:
        whole = self.expanded(place, text) if not text.startswith("file:") else text
        return self.folder / Path(whole).expanduser()

    @staticmethod
    def _held(place: Place, path: Path) -> str:
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise place.refused(f"takes the file {path}, which has more than {FILE_BYTES_MAX:,} bytes")
            text = path.read_text().removesuffix("\n").removesuffix("\r")
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise place.refused(f"takes the file {path}, which cannot be read: {why}") from error
        except UnicodeDecodeError as error:
            raise place.refused(f"takes the file {path}, which holds no text in UTF-8") from error
        if not text or "\0" in text:
            raise place.refused(f"takes the file {path}, which {'holds a zero byte' if text else 'is empty'}")
        return text


def sources(keys: Mapping[str, Place], name: str, secrets: Secrets) -> dict[str, SourceSpec]:
    """The sources by name; one that is `source:` alone has no name."""
    if "source" in keys:
        if "sources" in keys:
            raise keys["sources"].refused("stands beside source: say one of them")
        return {"": _source("", keys["source"], name, secrets)}
    place = keys["sources"]
    found = {}
    for key, (entry, _) in place.entries().items():
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", key):
            raise entry.refused("is the name of a source: 1 to 100 letters, digits, '.', '_' and '-'")
        found[key] = _source(key, entry, name, secrets)
    if not found:
        raise place.refused("names no source")
    return found


def _source(name: str, place: Place, bridge: str, secrets: Secrets) -> SourceSpec:
    keys = place.hidden().keys(SOURCE_KEYS, ("bootstrap",))
    bootstrap = _bootstrap(keys["bootstrap"], secrets)
    group = secrets.text(keys["group"]) if "group" in keys else bridge
    if len(group) > GROUP_CHARS_MAX:
        raise keys["group"].refused(f"has {GROUP_CHARS_MAX} characters at most")
    registry = _registry(keys["registry"], secrets) if "registry" in keys else None
    return SourceSpec(name, bootstrap, group, registry, _options(keys, secrets))


def _bootstrap(place: Place, secrets: Secrets) -> str:
    parts = place.items() if place.is_list else [place]
    servers = [server.strip() for part in parts for server in secrets.text(part).split(",")]
    for server in servers:
        match = _SERVER.fullmatch(server)
        if not match or (match[2] and not 0 < int(match[2][1:]) < 65_536):
            raise place.refused('is HOST:PORT of a broker, or several with commas between, as in "localhost:9092"')
    if not servers:
        raise place.refused("names no broker")
    return ",".join(servers)


def _options(keys: Mapping[str, Place], secrets: Secrets) -> dict[str, str]:
    """The settings of librdkafka that sasl, tls and options say; the last win."""
    found: dict[str, str] = {}
    secure = "tls" in keys and (keys["tls"].is_list or not keys["tls"].is_text or keys["tls"].flag())
    if secure:
        found |= _tls(keys["tls"], secrets)
    if "sasl" in keys:
        found |= _sasl(keys["sasl"], secrets)
    if secure or "sasl" in keys:
        found["security.protocol"] = ("SASL_" if "sasl" in keys else "") + (
            "SSL" if secure else "PLAINTEXT" if "sasl" in keys else ""
        )
    if "options" in keys:
        found |= free_options(keys["options"], secrets, OURS)
    return found


def _sasl(place: Place, secrets: Secrets) -> dict[str, str]:
    keys = place.keys(SASL_KEYS, ("mechanism",))
    mechanism = replace(keys["mechanism"], secret=False).one_of(MECHANISMS)
    by_token = ("token_url", "client_id", "client_secret", "scope")
    needed = {"GSSAPI": (), "OAUTHBEARER": by_token[:3]}.get(mechanism, ("username", "password"))
    taken = {"GSSAPI": (), "OAUTHBEARER": by_token}.get(mechanism, ("username", "password"))
    for key in needed:
        if key not in keys:
            raise place.refused(f"lacks {key!r}, which {mechanism} needs")
    for key, entry in keys.items():
        if key not in ("mechanism", *taken):
            raise entry.refused(f"is nothing that {mechanism} takes")
    found = {"sasl.mechanism": mechanism} | {_SASL[key]: secrets.text(keys[key]) for key in taken if key in keys}
    return found | ({"sasl.oauthbearer.method": "oidc"} if mechanism == "OAUTHBEARER" else {})


def _tls(place: Place, secrets: Secrets) -> dict[str, str]:
    """Settings of librdkafka, some of which clients of registries take as well."""
    if place.is_text:
        return {}
    keys = place.keys(TLS_KEYS)
    if ("cert" in keys) != ("key" in keys):
        raise place.refused("takes cert and key together, or neither")
    found = {name: secrets.path(keys[key]) for key, name in _TLS.items() if key in keys}
    if "key_password" in keys:
        found["ssl.key.password"] = secrets.text(keys["key_password"])
    if "verify_hostname" in keys and not keys["verify_hostname"].flag():
        found["ssl.endpoint.identification.algorithm"] = "none"
    if "verify" in keys and not keys["verify"].flag():
        found["enable.ssl.certificate.verification"] = "false"
    return found


def free_options(place: Place, secrets: Secrets, ours: tuple[str, ...]) -> dict[str, str]:
    """Settings of a library by its own names; `Invalid` for one that is not for others to make."""
    found = {}
    for name, (entry, _) in place.entries().items():
        if name in ours:
            raise entry.refused("is set by the bridge itself: leave it out")
        if not entry.is_text or entry.is_null:
            raise entry.refused("takes a single value")
        value = entry.value()
        found[name] = str(value).lower() if isinstance(value, bool) else secrets.text(entry)
    return found


def _registry(place: Place, secrets: Secrets) -> RegistrySpec:
    if place.is_text:
        return RegistrySpec(*_url(place, secrets))
    keys = place.keys(REGISTRY_KEYS, ("url",))
    url, options = _url(keys["url"], secrets)
    if ("username" in keys) != ("password" in keys):
        raise place.refused("takes username and password together, or neither")
    if "username" in keys:
        if options or "token" in keys:
            raise keys["username"].refused("is one of two ways to log in: say one of them")
        user = secrets.text(keys["username"])
        options["basic.auth.user.info"] = f"{user}:{secrets.text(keys['password'])}"
    if "token" in keys:
        token = secrets.text(keys["token"])
        options |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": token}
    if "tls" in keys and not (keys["tls"].is_text and not keys["tls"].flag()):
        tls = _tls(keys["tls"], secrets)
        for name in ("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"):
            if name in tls:
                raise keys["tls"].refused("cannot be without verification at a registry: name its authority by ca")
        options |= tls
    if "options" in keys:
        options |= free_options(keys["options"], secrets, ("url",))
    return RegistrySpec(url, options)


def _url(place: Place, secrets: Secrets) -> tuple[str, dict[str, str]]:
    """The address without a password that stands in it, and the setting for the password."""
    refused = place.refused('is an address such as "http://localhost:8081"')
    try:
        parts = urlsplit(secrets.text(place))
        host, port = parts.hostname, parts.port
    except Invalid:
        raise
    except ValueError as error:
        raise refused from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise refused
    shown = f"[{host}]" if ":" in host else host
    url = urlunsplit((parts.scheme, f"{shown}:{port}" if port else shown, parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return url, {}
    return url, {"basic.auth.user.info": f"{unquote(parts.username)}:{unquote(parts.password or '')}"}
